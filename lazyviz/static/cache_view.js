// The page of lazyviz.widgets.cache_view: sorts the kernel's table and asks for evictions.

const HELP = [
  ["Tab", "next button"], ["Enter", "press it: sort by a column, twice to evict"], ["← →", "next column"], ["r", "make the table anew"], ["?", "this help"],
];

function render({ model, el }) {
  const root = element("div", "lzx-cache"), bar = element("div", "lzx-bar"), host = element("div", "lzx-host");
  const note = element("span", "lzx-note"), waiting = element("span", "lzx-waiting"), refresh = element("button", "", "Refresh"), title = element("span", "lzx-title", "Executables");
  const [question, help] = keyHelp("lzx-help", HELP);
  root.setAttribute("role", "region"); root.setAttribute("aria-label", "executables");
  refresh.type = "button"; refresh.title = "make the table anew (r)"; note.setAttribute("role", "status"); waiting.setAttribute("role", "status");
  bar.append(title, note, waiting, refresh, question); root.append(bar, help, host); el.append(root);
  const twins = [...document.getElementsByClassName(model.get("twin") || "lzx-none")];
  for (const twin of twins) twin.style.display = "none";
  const { ask, close } = channel(model, root, (text) => { waiting.textContent = text; });
  let column = -1, upwards = false, armed = null;

  const sort = () => {
    const body = host.querySelector("tbody");
    if (!body || column < 0) return;
    const value = (row) => row.cells[column] ? row.cells[column].dataset.v ?? "" : "";
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b), numbers = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
      return (numbers ? Number(x) - Number(y) : x.localeCompare(y)) * (upwards ? 1 : -1);
    });
    body.replaceChildren(...rows);
    [...host.querySelectorAll("th")].forEach((th, i) => {
      if (i === column) th.setAttribute("aria-sort", upwards ? "ascending" : "descending"); else th.removeAttribute("aria-sort");
    });
  };
  const draw = () => { armed = null; host.replaceChildren(...safe(model.get("table"))); sort(); };
  const say = () => { note.textContent = brief(model.get("note")); };
  root.addEventListener("click", (e) => {
    const button = e.target.closest("button");
    if (!button) return;
    if (button === refresh) ask({ kind: "refresh" });
    else if (button.dataset.sort !== undefined) {
      const next = Number(button.dataset.sort);
      upwards = next === column ? !upwards : button.dataset.first === "up";
      column = next; sort();
    } else if (button.dataset.key) {
      // A second click confirms: compiling again may take minutes.
      if (armed !== button) {
        if (armed) armed.textContent = "evict";
        armed = button; button.textContent = "really?";
      } else { button.disabled = true; ask({ kind: "evict", key: button.dataset.key }); }
    }
  });
  root.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const columns = [...host.querySelectorAll("th button")], at = columns.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (e.key === "?") help.hidden = !help.hidden;
    else if (e.key === "r") ask({ kind: "refresh" });
    else if (at >= 0 && step) columns[(at + step + columns.length) % columns.length].focus();
    else return;
    e.preventDefault(); e.stopPropagation();
  });
  keepKeys(root);
  const watched = { "change:table": draw, "change:note": say };
  for (const [event, answer] of Object.entries(watched)) model.on(event, answer);
  draw(); say();
  return () => { close(); for (const twin of twins) twin.style.display = ""; for (const [event, answer] of Object.entries(watched)) model.off(event, answer); };
}

export default { render };
