// The browser's half of panel.py: asks for new rows once a second, feeds them to the charts, shows progress and failures.
// figures.js stands above this text in the same module.
export default (() => {
  const { make, fill, figure, followLook } = distillFigures;
  const POLL_MS = 1000;
  const GIVE_UP_MS = 10000;
  const MORE_ROWS = 1500; // past the history as it first came; then it comes again, thinned
  const STYLE = `${distillFigures.STYLE}
    .tracks { display: grid; gap: 8px; margin-bottom: 12px; }
    .track { border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 10px; padding: 10px 14px; }
    .track.shown { border-color: #0f7dbf; box-shadow: inset 3px 0 0 #0f7dbf; }
    .line { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; }
    .name { background: none; border: 0; padding: 0; font: inherit; font-weight: 600; color: inherit; }
    button.name { cursor: pointer; text-decoration: underline dotted; text-underline-offset: 3px; }
    .state { font-size: 12px; padding: 1px 9px; border-radius: 99px; border: 1px solid currentColor; }
    .state[data-is=running] { color: #0f7dbf; } .state[data-is=done] { color: #0a8a63; }
    .state[data-is=failed] { color: #d55e00; } .state[data-is=queued], .state[data-is=stopped] { opacity: .75; }
    .facts { font-variant-numeric: tabular-nums; opacity: .85; }
    .bar { height: 6px; border-radius: 3px; margin-top: 8px; background: color-mix(in srgb, currentColor 14%, transparent); overflow: hidden; }
    .bar div { height: 100%; width: 0; background: #0f7dbf; transition: width .4s; }
    .bar div[data-is=done] { background: #009e73; } .bar div[data-is=failed] { background: #d55e00; }
    .failure { margin-top: 10px; border-left: 3px solid #d55e00; padding: 4px 12px; }
    .failure ul { margin: 4px 0 4px 1.1em; padding: 0; list-style: disc; }
    .failure p { margin: 6px 0 0; font-size: 12.5px; opacity: .85; }
    .failure pre, .log pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; max-height: 220px; overflow: auto; margin: 6px 0 0; opacity: .9; }
    .help, .log { font-size: 12.5px; opacity: .8; margin-top: 8px; }
    @media (pointer: coarse) { .zoom { display: none; } }
    .stale { color: #d55e00; }`;

  const time = (seconds) => {
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
    return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  };

  function render({ model, el }) {
    const viewer = crypto.getRandomValues(new Uint32Array(1))[0];
    const names = model.get("names");
    const pictures = model.get("pictures");
    const words = model.get("words");
    const count = (number) => Math.round(number).toLocaleString(words.locale);
    const root = make("div", "panel");
    const style = make("style", "", STYLE);
    const trackList = make("div", "tracks");
    const stale = make("div", "help stale", words.no_answer);
    const grid = make("div", "grid");
    const help = make("div", "help zoom", words.zoom);
    const log = make("details", "log");
    const logText = make("pre", "", "");
    log.append(make("summary", "", words.log), logText);
    stale.hidden = true;
    grid.hidden = help.hidden = pictures.length === 0;
    root.append(style, trackList, stale, grid, help, log);
    root.dataset.state = "waiting";
    root.dataset.laststep = "0";
    root.dataset.rows = "0";
    el.append(root);

    // ---- progress, one line for each run
    let shown = names[0];
    let chosenByHand = false;
    const lines = Object.fromEntries(
      names.map((name) => {
        const box = make("div", "track");
        const title = make(names.length > 1 ? "button" : "span", "name", name);
        const [state, facts, bar] = [make("span", "state", "…"), make("span", "facts", ""), make("div", "")];
        const frame = make("div", "bar");
        const failure = make("div", "failure");
        failure.hidden = true;
        failure.setAttribute("role", "alert");
        frame.setAttribute("role", "progressbar");
        frame.setAttribute("aria-label", name);
        frame.append(bar);
        const line = make("div", "line");
        line.append(title, state, facts);
        box.append(line, frame, failure);
        title.addEventListener("click", () => {
          chosenByHand = true;
          show(name);
        });
        trackList.append(box);
        return [name, { box, state, facts, bar, frame, failure, speed: null }];
      }),
    );

    function drawTrack(track) {
      const line = lines[track.name];
      line.speed = track.tokens_per_s ?? line.speed;
      line.state.textContent = words.states[track.state] ?? track.state;
      line.state.dataset.is = line.bar.dataset.is = track.state;
      const share = track.total ? Math.min(1, track.done / track.total) : track.state === "done" ? 1 : 0;
      line.bar.style.width = `${100 * share}%`;
      line.frame.setAttribute("aria-valuenow", String(Math.round(100 * share)));
      line.facts.textContent = factsOf(track, line.speed).join("  ·  ");
      line.failure.hidden = track.state !== "failed";
      if (track.state === "failed") line.failure.replaceChildren(...failureOf(track));
    }

    function factsOf(track, speed) {
      const facts = [];
      if (track.state === "queued" && track.ahead !== null) {
        facts.push(track.ahead === 0 ? words.next : fill(track.ahead === 1 ? words.one_ahead : words.ahead, { count: track.ahead }));
        if (track.wait_s) facts.push(fill(words.wait, { time: time(track.wait_s) }));
      }
      if (track.total) facts.push(fill(words.of, { unit: words.units[track.unit] ?? track.unit, done: count(track.done), total: count(track.total) }));
      if (speed && track.state !== "queued") facts.push(fill(words.speed, { count: count(speed) }));
      if (track.active && track.time_left_s !== null) facts.push(fill(words.left, { time: time(track.time_left_s) }));
      if (track.active && track.phase && !track.total && !(track.state === "queued" && facts.length)) facts.push(track.phase);
      return facts;
    }

    // why, what would help, and the last that it wrote
    function failureOf(track) {
      const parts = [make("strong", "", track.reason || words.no_reason)];
      if (track.remedies.length) {
        const list = make("ul");
        list.append(...track.remedies.map((words) => make("li", "", words)));
        parts.push(make("p", "", words.remedies), list);
      }
      if (track.log.length) parts.push(make("p", "", words.last_lines), make("pre", "", track.log.join("\n")));
      return parts;
    }

    // ---- charts
    const views = [];
    let all = [];
    let building = null;

    async function build() {
      views.splice(0).forEach((made) => made.finalize());
      grid.replaceChildren();
      for (const picture of pictures) views.push(await figure(picture, { grid, root, words, owner: model.get("owner") }));
      root.views = views.map((made) => made.view);
      await draw(all, names);
    }

    async function draw(rows, replaced) {
      for (const made of views) {
        const change = made.view.changeset();
        if (replaced.length) change.remove((row) => replaced.includes(row.run));
        made.view.change("live", change.insert(rows.map((row) => ({ ...row }))));
        if (made.followsRun) made.view.signal("shown", shown);
        await made.view.runAsync();
        made.empty.hidden = all.some((row) => row[made.field] !== undefined && (row.run === shown || !made.followsRun));
      }
    }

    async function show(name) {
      shown = name;
      for (const other of names) lines[other].box.classList.toggle("shown", names.length > 1 && other === name);
      await draw([], []);
    }

    // ---- the questions
    let gen = 0;
    let asked = null; // when the open question was put
    let cursors = {};
    let ended = false;
    let atStart = 0; // rows of the histories as they came

    function pull({ evenIfEnded = false } = {}) {
      if ((ended && !evenIfEnded) || document.hidden || building) return;
      const now = Date.now();
      if (asked !== null && now - asked < GIVE_UP_MS) return;
      stale.hidden = asked === null;
      gen += 1;
      asked = now;
      if (all.length > atStart + MORE_ROWS) cursors = {};
      model.send({ kind: "pull", viewer, gen, cursors, log: log.open });
    }

    async function receive(reply) {
      if (reply.kind !== "rows" || reply.viewer !== viewer || reply.gen !== gen) return;
      root.dataset.rtt = String(Date.now() - asked);
      stale.hidden = true;
      cursors = reply.cursors;
      all = all.filter((row) => !reply.replaced.includes(row.run)).concat(reply.rows);
      if (reply.replaced.length) atStart = all.length;
      reply.tracks.forEach(drawTrack);
      const first = reply.tracks.find((track) => track.name === names[0]);
      ended = reply.tracks.every((track) => !track.active);
      const hasRows = (track) => all.some((row) => row.run === track.name);
      const looked = ended ? first : reply.tracks.find((track) => track.state === "running" && hasRows(track));
      if (looked && !chosenByHand && looked.name !== shown) await show(looked.name);
      if (reply.rows.length || reply.replaced.length) await draw(reply.rows, reply.replaced);
      const logged = reply.tracks.find((track) => track.active) ?? first;
      if (log.open) logText.textContent = logged.log.join("\n") || words.no_log;
      root.dataset.state = ended ? first.state : "active";
      root.dataset.laststep = String(Math.max(0, ...all.filter((row) => row.run === names[0]).map((row) => row.step ?? row.windows ?? 0)));
      root.dataset.firststep = String(Math.min(...all.filter((row) => row.run === names[0] && "loss" in row).map((row) => row.step)));
      root.dataset.rows = String(all.length);
      for (const track of reply.tracks) root.dataset[`is${names.indexOf(track.name)}`] = track.state;
      if (ended) clearInterval(timer);
      asked = null;
    }

    model.on("msg:custom", receive);
    const timer = setInterval(() => pull(), POLL_MS);
    const visible = () => !document.hidden && pull();
    document.addEventListener("visibilitychange", visible);
    log.addEventListener("toggle", () => log.open && pull({ evenIfEnded: true }));
    const rebuild = () => {
      if (building) return;
      building = build().finally(() => {
        building = null;
        pull();
      });
    };
    const unfollow = followLook(root, rebuild);
    if (names.length > 1) lines[shown].box.classList.add("shown");

    return () => {
      clearInterval(timer);
      unfollow();
      document.removeEventListener("visibilitychange", visible);
      model.off("msg:custom", receive);
      views.forEach((made) => made.finalize());
    };
  }
  return { render };
})();
