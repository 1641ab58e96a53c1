// What the pages of all widgets share; lazyviz.widgets.page puts it in front of each.

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A browser takes a minute to break a line of a hundred thousand letters.
const MOST_LETTERS = 2000;
const brief = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}…` : text);

const HARMFUL = new Set("script style foreignobject iframe object embed link base meta form template".split(" "));
const DRAWN = new Set("svg g path rect text title style".split(" ")); // what our drawings are made of

// The kernel escapes all text; what could run or load something is dropped here once more.
function safe(markup, type = "text/html") {
  const parsed = new DOMParser().parseFromString(markup, type);
  const isHtml = type === "text/html";
  for (const each of parsed.querySelectorAll("*")) {
    const name = each.localName.toLowerCase();
    for (const child of each.childNodes) if (child.nodeType === 3 && !each.closest("pre,style")) child.data = brief(child.data);
    if (isHtml ? HARMFUL.has(name) : !DRAWN.has(name)) { each.remove(); continue; }
    const own = isHtml && name === "img" ? /^data:image\/(png|svg\+xml)[;,]/ : /^(data:image\/png|#)/; // an image runs and loads nothing
    for (const { name, value } of [...each.attributes]) {
      const elsewhere = /^(href|src|srcset|action|formaction|xlink:href)$/i.test(name) && !own.test(value);
      const loads = name === "style" && /url\(|image\(|@/i.test(value);
      if (/^on/i.test(name) || elsewhere || loads) each.removeAttribute(name);
    }
  }
  return isHtml ? [...parsed.body.childNodes] : [parsed.documentElement].filter(Boolean).map((each) => document.importNode(each, true));
}

// The value under the pointer of a heat map, whose numbers stand beside its pixels.
function tellValue(e) {
  const map = e.target.closest?.("img[data-numbers]");
  if (!map) return;
  const bytes = Uint8Array.from(atob(map.dataset.numbers), (c) => c.charCodeAt(0));
  const numbers = new DataView(bytes.buffer), columns = Number(map.dataset.columns), rows = bytes.length / 4 / columns;
  const at = map.getBoundingClientRect(), part = (x, start, size, count) => Math.max(0, Math.min(count - 1, Math.floor((x - start) / size * count)));
  const row = part(e.clientY, at.top, at.height, rows), column = part(e.clientX, at.left, at.width, columns);
  const value = numbers.getFloat32(4 * (row * columns + column), true);
  const about = map.dataset.exact === "1" ? "" : "about here: ";
  map.title = `${about}[${row}, ${column}] ${String(Number(value.toPrecision(4))).replace("inity", "")}`;
}

// A front end's own keys stay out of a view, where `r` would make a raw cell of the view's. Of some keys it asks what has the
// focus alone, not what is around that.
function keepKeys(root) {
  const keep = (target) => { target.dataset.lmSuppressShortcuts = "true"; };
  keep(root); root.addEventListener("focusin", (e) => keep(e.target));
}

function pushButton(text, label, data = {}) {
  const made = element("button", "", text); made.type = "button"; made.title = label; made.setAttribute("aria-label", label);
  Object.assign(made.dataset, data); return made;
}

// What a button, or a paragraph of fields, asks for in its `data-` attributes: numbers, words, and what is agreed to.
function requestOf({ dataset }) {
  const request = { kind: dataset.kind };
  for (const key of ["box", "node", "output", "hops", "level", "call"]) if (dataset[key] !== undefined) request[key] = Number(dataset[key]);
  for (const key of ["form", "name", "column"]) if (dataset[key] !== undefined) request[key] = dataset[key];
  if (dataset.go === "true") request.go = true;
  if (dataset.confirmed) request.confirmed = true;
  return request;
}

// The keys of a view, each with what it does, and the button that shows them.
function keyHelp(className, keys) {
  const help = element("div", className), question = pushButton("?", "keys");
  for (const [key, does] of keys) {
    const one = element("span", "", ` ${does}`), cap = element("kbd", "", key); one.prepend(cap); help.append(one, " ");
    one.style = "white-space: nowrap; margin-right: 8px";
    cap.style = "font: inherit; border: 1px solid var(--lz-line); border-radius: 3px; padding: 0 4px; background: none; box-shadow: none; color: var(--lz-ink)";
  }
  help.hidden = true; question.addEventListener("click", () => { help.hidden = !help.hidden; });
  return [question, help];
}

// The static copy above a widget is for pages without a kernel; returned is what shows it again.
function hideTwins(model, el) {
  let twins = [];
  requestAnimationFrame(() => {
    const cell = el.closest(".jp-Cell, .cell") || el.parentElement, name = model.get("twin");
    twins = cell && name ? [...cell.getElementsByClassName(name)] : [];
    for (const twin of twins) twin.style.display = "none";
  });
  return () => { for (const twin of twins) twin.style.display = ""; };
}

const PATIENCE_MS = 4000;
const SILENCE = "No answer yet. The kernel may be at work; if it was restarted, run the cell again.";

// What a page asks of the kernel, and what it says when an answer stays away. It greets until the
// answer is the right one: from then on a click is answered while a cell runs, too; see explorer.py.
function channel(model, root, say) {
  let open = 0, timer = 0, greetings = 0;
  const heard = (message) => {
    if (message.kind === "ready") root.dataset.concurrent = message.concurrent;
    if (message.kind !== "done" || open === 0) return;
    open -= 1;
    if (open === 0) { clearTimeout(timer); timer = 0; say(""); }
  };
  const send = (request) => { try { model.send(request); } catch { say(SILENCE); } };
  const ask = (request) => { open += 1; timer = timer || setTimeout(() => say(SILENCE), PATIENCE_MS); send(request); };
  const greet = () => { if (root.dataset.concurrent !== "true" && greetings++ < 12) { send({ kind: "hello" }); setTimeout(greet, 500); } };
  model.on("msg:custom", heard);
  greet();
  return { ask, send, close: () => { clearTimeout(timer); model.off("msg:custom", heard); } };
}
