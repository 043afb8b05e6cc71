// Charts in their frames, for panel.js and pictures.js, which stand below this text in the same module: theme, width, saving as PNG or SVG.
// The chart library stands above it and leaves `distillVegaEmbed` behind.
const distillFigures = (() => {
  const STYLE = `
    .panel { font: 14px/1.45 system-ui, sans-serif; color: inherit; container-type: inline-size; }
    .grid { display: grid; grid-template-columns: minmax(0, 1fr); gap: 14px; }
    @container (min-width: 640px) { .grid { grid-template-columns: repeat(2, minmax(0, 1fr)); } .grid .wide { grid-column: 1 / -1; } }
    figure { margin: 0; min-width: 0; border: 1px solid color-mix(in srgb, currentColor 14%, transparent); border-radius: 10px; padding: 12px; }
    .chart { position: relative; } .chart > .vega { width: 100%; }
    .empty { position: absolute; inset: 56px 12px 70px 48px; display: grid; place-items: start center; text-align: center; opacity: .8; pointer-events: none; } /* above a lone line, which lies in the middle */
    figcaption { font-size: 12.5px; opacity: .85; margin-top: 6px; }
    .saves { white-space: nowrap; }
    .save { background: none; border: 0; padding: 2px 4px; font: inherit; color: inherit; text-decoration: underline; cursor: pointer; margin-left: 4px; border-radius: 4px; }
    .save:focus-visible, button.name:focus-visible { outline: 2px solid #0f7dbf; outline-offset: 1px; }
    [hidden] { display: none !important; }`;

  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // "{count} left" with {count: 3} -> "3 left"
  const fill = (sentence, values = {}) => sentence.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));

  const isDark = () =>
    [document.documentElement, document.body].some((node) => node.classList.contains("dark") || node.dataset.theme === "dark");

  // "#ffffff" for any CSS colour: a saved SVG is read by programs that do not know color(srgb 1 1 1)
  function plain(color) {
    const pen = make("canvas").getContext("2d", { willReadFrequently: true });
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    return "#" + [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)].map((part) => part.toString(16).padStart(2, "0")).join("");
  }

  // the colour behind a node: its own, or that of what it stands in, through shadow roots
  function behind(node) {
    for (let at = node; at; at = at.parentElement ?? at.getRootNode().host) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/^(transparent|.*[,/] 0\))$/.test(color)) return plain(color);
    }
    return isDark() ? "#181c1a" : "#ffffff";
  }

  // transparent on the page, but a picture that is saved takes its background along: pale lines on a white slide cannot be read
  async function save(view, node, kind, fileName) {
    view.background(behind(node));
    try {
      const link = make("a");
      link.href = await view.toImageURL(kind, 2);
      link.download = `${fileName}.${kind}`.replace(/[^\p{L}\p{N}._-]+/gu, "-");
      link.click();
    } finally {
      await view.background("transparent").runAsync();
    }
  }

  // a title in lines that fit: Vega would cut it off at the frame
  function wrapped(text, width, letter) {
    const lines = [""];
    for (const word of [].concat(text).join(" ").split(" ")) {
      const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
      if (longer.length * letter > width && lines.at(-1)) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    return lines;
  }

  async function figure(picture, { grid, root, words, owner }) {
    const ink = plain(getComputedStyle(root).color);
    const [frame, chart, target] = [make("figure", picture.wide ? "wide" : ""), make("div", "chart"), make("div", "vega")];
    const [empty, caption, saves] = [make("div", "empty", picture.empty ?? ""), make("figcaption", "", picture.reading ?? ""), make("span", "saves")];
    empty.hidden = !picture.empty;
    chart.append(target, empty);
    frame.append(chart, caption);
    grid.append(frame);
    const quiet = { labelColor: ink, titleColor: ink, tickColor: ink, domainColor: ink, gridColor: isDark() ? "#777" : "#bbb" };
    const config = { font: getComputedStyle(root).fontFamily, axis: quiet, legend: quiet, title: { color: ink, subtitleColor: ink } };
    const spec = structuredClone(picture.spec);
    delete spec.usermeta; // the menu of charts that stand alone; these have buttons
    const width = target.clientWidth;
    if (width < 420) spec.config.legend = { ...spec.config.legend, columns: 1 };
    spec.title.text = wrapped(spec.title.text, width - 20, 7.4);
    if (spec.title.subtitle) spec.title.subtitle = wrapped(spec.title.subtitle, width - 20, 6);
    const made = await globalThis.distillVegaEmbed(target, spec, { actions: false, renderer: "canvas", config });
    Object.assign(made, { empty, name: picture.name, field: picture.field });
    made.followsRun = picture.spec.params?.some((param) => param.name === "shown");
    for (const kind of ["png", "svg"]) {
      const button = make("button", "save", kind.toUpperCase());
      button.type = "button";
      button.title = fill(words.save, { kind: kind.toUpperCase() });
      button.setAttribute("aria-label", `${button.title}: ${picture.name}`);
      button.addEventListener("click", () => save(made.view, root, kind, `${owner}-${picture.name}`));
      saves.append(button);
    }
    caption.append(saves);
    return made;
  }

  // calls `rebuild` when the frame first has a width and when the page turns dark or light; returns what ends it
  function followLook(root, rebuild) {
    let [width, theme] = [0, null]; // a chart that is made while the page gives it no width stays without one
    const sized = new ResizeObserver(() => {
      if (root.clientWidth === width || root.clientWidth === 0) return;
      width = root.clientWidth;
      if (theme !== null) return window.dispatchEvent(new Event("resize"));
      theme = isDark();
      rebuild();
    });
    sized.observe(root);
    const themed = new MutationObserver(() => {
      if (theme === null || isDark() === theme) return;
      theme = isDark();
      rebuild();
    });
    for (const node of [document.documentElement, document.body])
      themed.observe(node, { attributes: true, attributeFilter: ["class", "data-theme"] });
    return () => {
      sized.disconnect();
      themed.disconnect();
    };
  }

  return { STYLE, make, fill, figure, followLook };
})();
