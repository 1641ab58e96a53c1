// The page of lazyviz.widgets.TableView. It shows the table that the kernel makes and sends back
// what was asked for; it decides nothing about what the rows stand for.

const HELP = [
  ["Tab", "next button"], ["Enter", "press it"], ["← →", "next column"], ["r", "make the table anew"],
  ["Escape", "keep what was asked about"], ["?", "this help"],
];

function render({ model, el }) {
  const root = element("div", "lzl"), bar = element("div", "lzl-bar");
  const title = element("span", "lzl-title"), stale = element("span", "lzl-stale", "from before the last cell");
  const refresh = element("button", "", "Refresh"), note = element("div", "lzl-note"), waiting = element("div", "lzl-waiting"), table = element("div", "lzl-table");
  refresh.type = "button"; refresh.dataset.kind = "refresh"; refresh.title = "make the table anew (r)";
  waiting.hidden = true; waiting.setAttribute("role", "status"); note.setAttribute("role", "status"); title.setAttribute("role", "status");
  root.setAttribute("role", "region"); root.setAttribute("aria-label", model.get("what") || "table");
  keepKeys(root);
  const [question, help] = keyHelp("lzl-help", HELP);
  bar.append(title, stale, refresh, question); root.append(bar, help, waiting, note, table); el.append(root);
  const { ask, send, close } = channel(model, root, (text) => { waiting.textContent = text; waiting.hidden = !text; });

  const showTwins = hideTwins(model, el);

  const place = () => {
    const now = document.activeElement;
    return now && root.contains(now) && now.dataset ? [now.dataset.kind, now.dataset.column, now.dataset.name] : null;
  };
  const back = (spot) => {
    if (!spot) return;
    for (const each of root.querySelectorAll("button")) {
      const { kind, column, name } = each.dataset;
      if (kind === spot[0] && column === spot[1] && name === spot[2]) { each.focus(); return; }
    }
    refresh.focus();
  };
  // A long path breaks between its parts, not within a word.
  const breakable = (cell) => {
    const parts = cell.textContent.split(/(?<=\.)/);
    if (!cell.children.length) cell.replaceChildren(...parts.flatMap((part, k) => (k ? [element("wbr"), part] : [part])));
  };
  const fill = () => {
    const spot = place();
    table.replaceChildren(...safe(model.get("table")));
    for (const cell of table.querySelectorAll("tbody td.lzl-wide")) breakable(cell);
    back(spot);
  };
  const say = () => {
    note.replaceChildren(...safe(model.get("note"))); note.hidden = !model.get("note");
    const sure = note.querySelector("[data-confirmed]");
    if (sure) sure.focus();
  };
  const name = () => { title.textContent = brief(model.get("title")); };
  const age = () => { stale.hidden = !model.get("stale"); };

  root.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-kind]");
    if (button) ask(requestOf(button));
  });
  root.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "?") { help.hidden = !help.hidden; e.preventDefault(); }
    if (e.key === "r") { ask({ kind: "refresh" }); e.preventDefault(); }
    if (e.key === "Escape" && !note.hidden) { ask({ kind: "keep" }); refresh.focus(); }
    const columns = [...table.querySelectorAll("th button")], at = columns.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (at >= 0 && step) { columns[(at + step + columns.length) % columns.length].focus(); e.preventDefault(); }
    e.stopPropagation();
  });

  const watched = { "change:table": fill, "change:note": say, "change:title": name, "change:stale": age };
  for (const [event, answer] of Object.entries(watched)) { model.on(event, answer); answer(); }
  const seen = new IntersectionObserver((entries) => send({ kind: "visible", visible: entries.some((each) => each.isIntersecting) }));
  seen.observe(root);
  return () => {
    seen.disconnect(); close();
    showTwins();
    for (const [event, answer] of Object.entries(watched)) model.off(event, answer);
  };
}

export default { render };
