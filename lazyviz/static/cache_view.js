// The page of lazyviz.widgets.cache_view: sorts the kernel's table and asks for evictions.

function render({ model, el }) {
  const root = element("div", "lzx-cache"), bar = element("div", "lzx-bar"), host = element("div", "lzx-host");
  const note = element("span", "lzx-note"), refresh = element("button", "", "refresh");
  refresh.type = "button"; note.setAttribute("role", "status");
  bar.append(refresh, note); root.append(bar, host); el.append(root);
  const twins = [...document.getElementsByClassName(model.get("twin") || "lzx-none")];
  for (const twin of twins) twin.style.display = "none";
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
  const say = () => { note.textContent = model.get("note"); };
  root.addEventListener("click", (e) => {
    const button = e.target.closest("button");
    if (!button) return;
    if (button === refresh) model.send({ kind: "refresh" });
    else if (button.dataset.sort !== undefined) {
      const next = Number(button.dataset.sort);
      upwards = next === column ? !upwards : button.dataset.first === "up";
      column = next; sort();
    } else if (button.dataset.key) {
      // A second click confirms: compiling again may take minutes.
      if (armed !== button) {
        if (armed) armed.textContent = "evict";
        armed = button; button.textContent = "really?";
      } else { button.disabled = true; model.send({ kind: "evict", key: button.dataset.key }); }
    }
  });
  root.dataset.lmSuppressShortcuts = "true";
  const received = (message) => { if (message.kind === "ready") root.dataset.concurrent = message.concurrent; };
  const watched = { "change:table": draw, "change:note": say, "msg:custom": received };
  for (const [event, answer] of Object.entries(watched)) model.on(event, answer);
  draw(); say();
  // From the right answer on a click is answered while a cell runs, too; see explorer.py.
  let greetings = 0;
  const greet = () => { if (root.dataset.concurrent !== "true" && greetings++ < 12) { model.send({ kind: "hello" }); setTimeout(greet, 500); } };
  greet();
  return () => { for (const twin of twins) twin.style.display = ""; for (const [event, answer] of Object.entries(watched)) model.off(event, answer); };
}

export default { render };
