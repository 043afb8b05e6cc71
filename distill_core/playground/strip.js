// A window of text, token by token: click one, or move with the arrow keys; beside it the teacher's first choices at the marked token.
export default (() => {
  const STYLE = `
    .strip { display: grid; grid-template-columns: minmax(0, 1fr); gap: 12px; font: 15px/1.5 system-ui, sans-serif; container-type: inline-size; }
    .inside { display: grid; grid-template-columns: minmax(0, 1fr); gap: 12px; }
    @container (min-width: 620px) { .inside { grid-template-columns: minmax(0, 1fr) 270px; } }
    .text { border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 10px; padding: 10px 14px; max-height: 15.5rem; overflow: auto; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
    .text:focus-visible { outline: 2px solid #0f7dbf; outline-offset: 2px; }
    .token { border-radius: 4px; padding: 1px 0; border-bottom: 2px solid transparent; }
    .token.asked { cursor: pointer; background: color-mix(in srgb, #0f7dbf calc(34% * (1 - var(--p))), transparent); }
    .token.asked:hover { border-bottom-color: #0f7dbf; }
    .token:not(.asked) { opacity: .55; }
    .token[aria-selected=true] { outline: 2px solid #d55e00; border-radius: 3px; background: color-mix(in srgb, #d55e00 18%, transparent); }
    .choices { border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 10px; padding: 8px 14px; font-size: 14px; }
    .choices ol { list-style: none; margin: 6px 0 0; padding: 0; display: grid; gap: 3px; }
    .choices li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 8px; padding: 1px 6px; border-radius: 4px; border: 1px solid transparent; background: linear-gradient(90deg, color-mix(in srgb, #0f7dbf 30%, transparent) calc(100% * var(--p)), transparent 0); }
    .choices li.hit { border-color: #009e73; } .choices code { font-family: ui-monospace, monospace; white-space: pre; overflow: hidden; text-overflow: ellipsis; }
    .choices span { font-variant-numeric: tabular-nums; } .quiet { opacity: .8; font-size: 12.5px; margin: 6px 0 0; }`;

  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll(" ", "␣");

  function render({ model, el }) {
    const [tokens, words] = [model.get("tokens"), model.get("words")];
    const percent = (p) => {
      const digits = p < 0.01 ? 2 : 1;
      return `${(100 * p).toLocaleString(words.locale, { minimumFractionDigits: digits, maximumFractionDigits: digits })} %`;
    };
    const root = make("div", "strip");
    const [inside, text, choices] = [make("div", "inside"), make("div", "text"), make("div", "choices")];
    const asked = tokens.flatMap((token, place) => (token.asked ? [place] : []));
    text.tabIndex = 0;
    text.setAttribute("role", "listbox");
    text.setAttribute("aria-label", words.label);
    choices.setAttribute("aria-live", "polite");
    const name = (place) => `token-${model.get("serial")}-${place}`;
    const nodes = tokens.map((token, place) => {
      const node = make("span", token.asked ? "token asked" : "token", token.text);
      if (token.asked) {
        node.id = name(place);
        node.setAttribute("role", "option");
        node.style.setProperty("--p", token.p);
        node.title = `${percent(token.p)}`;
        node.addEventListener("click", () => go(place));
      }
      return node;
    });
    text.append(...nodes);

    function show() {
      const at = model.get("position");
      nodes.forEach((node, place) => tokens[place].asked && node.setAttribute("aria-selected", String(place === at)));
      text.setAttribute("aria-activedescendant", name(at));
      const token = tokens[at];
      const before = tokens.slice(Math.max(0, at - 4), at).map((other) => other.text).join("");
      const list = make("ol");
      for (const [choice, p, isThis] of token.choices) {
        const item = make("li", isThis ? "hit" : "");
        item.style.setProperty("--p", p);
        item.append(make("code", "", visible(choice)), make("span", "", percent(p)));
        list.append(item);
      }
      const said = words.said.replace("{token}", visible(token.text)).replace("{p}", percent(token.p));
      choices.replaceChildren(make("b", "", `…${before} ?`), list, make("p", "quiet", said), make("p", "quiet", words.help));
      root.dataset.position = String(at);
    }

    function go(place) {
      model.set("position", place);
      model.save_changes();
      show();
      const node = nodes[place];
      const [top, bottom] = [node.offsetTop - text.offsetTop, node.offsetTop - text.offsetTop + node.offsetHeight];
      if (top < text.scrollTop || bottom > text.scrollTop + text.clientHeight) text.scrollTop = top - text.clientHeight / 2;
    }

    text.addEventListener("keydown", (event) => {
      const here = asked.indexOf(model.get("position"));
      const there = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + 10, ArrowUp: here - 10, Home: 0, End: asked.length - 1 }[event.key];
      if (there === undefined) return;
      event.preventDefault();
      go(asked[Math.min(asked.length - 1, Math.max(0, there))]);
    });
    model.on("change:position", show);
    inside.append(text, choices);
    root.append(make("style", "", STYLE), inside);
    el.append(root);
    show();
    return () => model.off("change:position", show);
  }
  return { render };
})();
