// The browser's half of pictures.py: charts whose rows the app sends, drawn again in place, so that a slider's step is seen at once.
export default (() => {
  const { STYLE, make, figure, followLook } = distillFigures;

  function render({ model, el }) {
    const root = make("div", "panel");
    const grid = make("div", "grid");
    root.append(make("style", "", STYLE), grid);
    root.dataset.drawn = "0";
    el.append(root);
    const views = [];
    let building = null;
    let drawing = Promise.resolve();

    async function build() {
      views.splice(0).forEach((made) => made.finalize());
      grid.replaceChildren();
      for (const picture of model.get("pictures"))
        views.push(await figure(picture, { grid, root, words: model.get("words"), owner: model.get("owner") }));
      root.views = Object.fromEntries(views.map((made) => [made.name, made.view]));
      await draw();
    }

    async function draw() {
      const rows = model.get("rows");
      for (const made of views) {
        const own = rows[made.name] ?? [];
        const change = made.view.changeset().remove(() => true);
        await made.view.change("live", change.insert(own.map((row) => ({ ...row })))).runAsync();
        made.empty.hidden = own.length > 0;
      }
      root.dataset.drawn = String(Number(root.dataset.drawn) + 1);
    }

    const redraw = () => {
      if (!building && views.length) drawing = drawing.then(draw);
    };
    const rebuild = () => {
      if (building) return;
      building = drawing.then(build).finally(() => (building = null));
    };
    model.on("change:rows", redraw);
    const unfollow = followLook(root, rebuild);

    return () => {
      unfollow();
      model.off("change:rows", redraw);
      views.forEach((made) => made.finalize());
    };
  }
  return { render };
})();
