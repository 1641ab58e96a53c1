// The page of lazyviz.widgets.graph_view. It draws what the kernel sends and sends back what was
// asked for; it decides nothing about graphs or values.

const HELP = [
  ["Tab", "next op"], ["Enter", "show its value"], ["arrows", "pan"], ["+ −", "zoom"], ["0", "whole drawing"],
  ["o", "open a folded box, a call or a fusion"], ["u", "fold again what was opened last"], ["f", "what is near"], ["1 … 9", "hops that count as near"],
  ["Backspace", "back"], ["/", "search"], ["?", "this help"],
];
const SELECTS = [["form", "show", "form"], ["fold", "fold", "by"], ["overlay", "colour", "name"]];
const SMALLEST = 0.8; // of a drawing's own size, at first
const DOUBLE_MS = 300; // in which a second click makes a double one
const HOPS = [1, 2, 3, 4, 5, 6, 7, 8, 9];

function panAndZoom(host, chart) {
  let svg = null, own = [0, 0, 1, 1], whole = [...own], box = [...own], drag = null, moved = false, eye = null;
  let size = [0, 0]; // of the host when it was last drawn to
  let placed = false, steered = false; // seen on a page that has a size; moved by the reader since
  const set = () => {
    if (!svg) return;
    svg.setAttribute("viewBox", box.join(" "));
    ["x", "y", "width", "height"].forEach((name, i) => eye.setAttribute(name, box[i]));
    chart.hidden = box[2] >= whole[2] * 0.99 && box[3] >= whole[3] * 0.99; // sizes are rounded
  };
  // A small map of the whole drawing, where only a part of it is seen.
  const survey = () => {
    const made = (name) => document.createElementNS(svg.namespaceURI, name), map = made("svg");
    const scale = Math.min(120 / whole[2], 110 / whole[3]);
    map.setAttribute("viewBox", whole.join(" ")); map.setAttribute("width", whole[2] * scale); map.setAttribute("height", whole[3] * scale);
    for (const each of svg.querySelectorAll("[data-b]")) {
      const { x, y, width, height } = each.getBBox(), dot = made("rect");
      for (const [name, value] of Object.entries({ x, y, width, height })) dot.setAttribute(name, value);
      map.append(dot);
    }
    eye = made("rect"); eye.setAttribute("class", "eye"); map.append(eye); chart.replaceChildren(map);
  };
  const steer = (e) => {
    if (!e.buttons) return;
    const map = chart.firstChild, p = new DOMPoint(e.clientX, e.clientY).matrixTransform(map.getScreenCTM().inverse());
    box[0] = p.x - box[2] / 2; box[1] = p.y - box[3] / 2; steered = true; set();
  };
  for (const turn of ["pointerdown", "pointermove"]) chart.addEventListener(turn, steer);
  const unit = () => { const r = svg.getBoundingClientRect(); return Math.max(box[2] / r.width, box[3] / r.height) || 1; };
  const zoom = (factor, x, y) => {
    const f = Math.min(Math.max(factor, whole[2] / box[2] / 60), (whole[2] / box[2]) * 4);
    box = [x - (x - box[0]) * f, y - (y - box[1]) * f, box[2] * f, box[3] * f]; steered = true; set();
  };
  const place = (e) => { const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse()); return [p.x, p.y]; };
  host.addEventListener("wheel", (e) => {
    if (!svg || !(e.ctrlKey || e.metaKey || host.matches(":focus-within"))) return;
    e.preventDefault(); zoom(Math.exp(e.deltaY * 0.0015), ...place(e));
  }, { passive: false });
  host.addEventListener("pointerdown", (e) => { drag = [e.clientX, e.clientY, ...box]; moved = false; });
  host.addEventListener("pointermove", (e) => {
    if (!drag || !svg) return;
    const dx = e.clientX - drag[0], dy = e.clientY - drag[1];
    if (!moved && Math.hypot(dx, dy) < 4) return;
    if (!moved) { moved = true; host.setPointerCapture(e.pointerId); }
    const k = unit(); steered = true; box = [drag[2] - dx * k, drag[3] - dy * k, box[2], box[3]]; set();
  });
  for (const end of ["pointerup", "pointercancel"]) host.addEventListener(end, () => { drag = null; });
  host.addEventListener("click", (e) => { if (moved) { e.stopPropagation(); moved = false; } }, true);
  const centre = () => [box[0] + box[2] / 2, box[1] + box[3] / 2];
  // Small drawings keep their size: a box as wide as the page is hard to read.
  const surround = (r) => {
    const w = Math.max(own[2], r.width || 600), h = Math.max(own[3], r.height || 440);
    whole = [own[0] - (w - own[2]) / 2, own[1] - (h - own[3]) / 2, w, h]; size = [r.width, r.height];
  };
  // No empty paper beside the drawing.
  const inside = () => { for (const i of [0, 1]) if (box[i + 2] <= whole[i + 2]) box[i] = Math.min(Math.max(box[i], whole[i]), whole[i] + whole[i + 2] - box[i + 2]); };
  // A wider page shows more of what the reader has chosen, not larger letters.
  const widen = () => {
    const r = host.getBoundingClientRect(), k = Math.max(box[2] / size[0], box[3] / size[1]);
    if (r.width === size[0] && r.height === size[1]) return;
    surround(r); survey();
    box = [box[0] + (box[2] - r.width * k) / 2, box[1], r.width * k, r.height * k]; inside(); set();
  };
  const fit = () => {
    const r = host.getBoundingClientRect();
    surround(r);
    const [, , w, h] = whole;
    box = [...whole]; placed = r.width > 0; steered = false;
    // Large ones begin at the top, or at what they are about, as large as they must be to be read; 0 shows all. What is seen has
    // the page's own proportions, or empty paper would come with it.
    const wide = (r.width || 600) / SMALLEST, high = (r.height || 440) / SMALLEST;
    survey();
    if (w > wide || h > high) {
      const bounds = (which) => [...svg.querySelectorAll(which)].map((each) => each.getBBox());
      const first = bounds("[data-first]"), top = first.length ? Math.min(...first.map((b) => b.y)) - 40 : whole[1];
      const seen = (first.length ? first : bounds("[data-b]")).filter((b) => b.y < top + high / 2); // its first rows
      const middles = seen.map((b) => b.x + b.width / 2).sort((a, b) => a - b);
      const x = middles.length && w > wide ? middles[middles.length >> 1] : whole[0] + w / 2;
      box = [x - wide / 2, h > high ? top : whole[1] + (h - high) / 2, wide, high];
      const lead = first.find((b) => b.y <= top + 40); // it is whole
      if (lead && w > wide) box[0] = Math.min(Math.max(box[0], lead.x + lead.width + 10 - wide), lead.x - 10);
      inside();
    }
    set();
  };
  // A page may draw before it is laid out, or in a tab that is not seen: nothing has a size then.
  const sized = new ResizeObserver(() => { if (svg && host.clientWidth) (placed && steered ? widen : fit)(); });
  sized.observe(host);
  return {
    stop() { sized.disconnect(); },
    show(drawn) {
      svg = drawn; own = svg.getAttribute("viewBox").split(" ").map(Number);
      svg.removeAttribute("width"); svg.removeAttribute("height");
      fit();
    },
    // Bring a box into view without changing the zoom; nothing moves if it is there already.
    reveal(target) {
      if (!svg) return;
      const r = target.getBoundingClientRect(), h = host.getBoundingClientRect();
      if (!h.width || r.left >= h.left && r.right <= h.right && r.top >= h.top && r.bottom <= h.bottom) return;
      const k = unit();
      box[0] += (r.left + r.width / 2 - h.left - h.width / 2) * k;
      box[1] += (r.top + r.height / 2 - h.top - h.height / 2) * k;
      steered = true; inside(); set();
    },
    // Bring several boxes into view, legibly from the first on where not all fit; nothing moves if they are there already.
    frame(targets) {
      const h = host.getBoundingClientRect(), rects = targets.map((each) => each.getBoundingClientRect());
      if (!svg || !h.width || !rects.length || rects.every((r) => r.left >= h.left && r.right <= h.right && r.top >= h.top && r.bottom <= h.bottom)) return;
      const b = targets.map((each) => each.getBBox()), x = Math.min(...b.map((r) => r.x)) - 10, y = Math.min(...b.map((r) => r.y)) - 10;
      const w = Math.max(...b.map((r) => r.x + r.width)) + 10 - x, high = Math.max(...b.map((r) => r.y + r.height)) + 10 - y;
      const k = Math.min(Math.max(1, w / h.width, high / h.height), 1 / SMALLEST);
      const at = (from, span, seen, middle) => span <= seen ? from + (span - seen) / 2 : Math.min(Math.max(middle - seen / 2, from), from + span - seen);
      box = [at(x, w, h.width * k, b[0].x + b[0].width / 2), at(y, high, h.height * k, b[0].y + b[0].height / 2), h.width * k, h.height * k];
      steered = true; inside(); set();
    },
    key(key) {
      const d = svg ? unit() * 60 : 0;
      const moves = { ArrowLeft: [-d, 0], ArrowRight: [d, 0], ArrowUp: [0, -d], ArrowDown: [0, d] };
      if (moves[key]) { box[0] += moves[key][0]; box[1] += moves[key][1]; steered = true; set(); }
      else if (key === "+" || key === "=") zoom(0.8, ...centre());
      else if (key === "-" || key === "−") zoom(1.25, ...centre());
      else if (key === "0") { box = [...whole]; steered = true; set(); }
      else return false;
      return true;
    },
  };
}

function render({ model, el }) {
  const root = element("div", "lzg"), bar = element("div", "lzg-bar"), row = element("div", "lzg-row");
  const title = element("span", "lzg-title"), crumbs = element("nav", "lzg-crumbs"), waiting = element("div", "lzg-waiting");
  const search = element("input"), [question, help] = keyHelp("lzg-help", HELP), choices = element("span", "lzg-choices");
  const selects = {}, hops = element("select");
  const labelled = (text, control) => { const label = element("label", "", `${text} `); label.append(control); return label; };
  for (const [name, text, key] of SELECTS) {
    selects[name] = element("select");
    selects[name].addEventListener("change", () => ask({ kind: name, [key]: selects[name].value }));
    choices.append(labelled(text, selects[name]));
  }
  for (const count of HOPS) { const one = element("option", "", String(count)); one.value = count; hops.append(one); }
  hops.value = 2;
  choices.append(labelled("hops", hops));
  const stage = element("div", "lzg-stage"), drawing = element("div", "lzg-drawing"), host = element("div", "lzg-host"), legend = element("div", "lzg-legend"), panel = element("section", "lzg-panel");
  const zooms = element("span", "lzg-zoom"), chart = element("div", "lzg-map"), head = element("div", "lzg-head"), tools = element("div", "lzg-tools");
  chart.setAttribute("aria-hidden", "true"); chart.title = "the whole drawing: drag to move";
  for (const [key, text, label] of [["+", "+", "zoom in"], ["-", "−", "zoom out"], ["0", "⤢", "whole drawing"]]) {
    const one = pushButton(text, label); one.addEventListener("click", () => view.key(key)); zooms.append(one);
  }
  for (const name of ["svg", "dot"]) zooms.append(pushButton(`.${name}`, `save this drawing as .${name}`, { kind: "save", name }));
  search.type = "search"; search.placeholder = "search op, type, name, line …"; search.setAttribute("aria-label", "search the graph");
  crumbs.setAttribute("aria-label", "drawings");
  host.tabIndex = 0; host.setAttribute("role", "application");
  host.setAttribute("aria-label", "graph: arrows pan, plus and minus zoom, zero shows all, Tab walks the ops, Enter shows a value");
  panel.setAttribute("aria-live", "polite"); panel.setAttribute("aria-label", "details");
  waiting.hidden = true; waiting.setAttribute("role", "status");
  head.append(title, question); tools.append(choices, zooms, search);
  bar.append(head, tools, crumbs); row.append(stage, panel); drawing.append(host, chart); stage.append(drawing, legend); root.append(bar, help, waiting, row); el.append(root);
  keepKeys(root);
  const showTwins = hideTwins(model, el);
  const view = panAndZoom(host, chart);
  let later = 0, latest = null; // what is asked unless the reader does something else at once, and what was asked last
  const { ask: send, close } = channel(model, root, (text) => { waiting.textContent = text; waiting.hidden = !text; });
  const ask = (request) => { clearTimeout(later); latest = request; send(request); };
  const boxes = () => host.querySelectorAll("[data-b]");
  const mark = (name, numbers) => { for (const each of boxes()) each.classList.toggle(name, numbers.includes(Number(each.dataset.b))); };
  const numbered = (number) => host.querySelector(`[data-b="${Number(number)}"]`);
  // The chosen op stays chosen and in sight while the same part is coloured or folded in another way.
  const where = () => JSON.stringify([model.get("title"), model.get("crumbs")]);
  let chosen = null;
  const choose = (number) => {
    const node = numbered(number)?.dataset.n; chosen = node === undefined ? null : [where(), node];
    mark("sel", [number]);
    mark("mate", (numbered(number)?.dataset.u ?? "").split(" ").filter(Boolean).map(Number));
  };
  const rechoose = () => {
    const box = chosen && chosen[0] === where() && host.querySelector(`[data-n="${Number(chosen[1])}"]`);
    if (box) { choose(Number(box.dataset.b)); view.reveal(box); }
  };
  const control = () => {
    const all = model.get("controls") ?? {};
    for (const [name] of SELECTS) {
      const options = all[name] ?? [];
      selects[name].replaceChildren(...options.map(([value, text]) => { const one = element("option", "", text); one.value = value; return one; }));
      selects[name].value = all.chosen?.[name] ?? "";
      selects[name].parentElement.hidden = options.length < 2;
    }
  };

  // The keyboard stays in the drawing while it is drawn anew, and goes to the box that is told of then.
  let held = false;
  const draw = () => { const [drawn] = safe(model.get("svg"), "image/svg+xml"); held = host.contains(document.activeElement); host.replaceChildren(); if (held) host.focus({ preventScroll: true }); if (drawn?.hasAttribute("viewBox")) { host.append(drawn); view.show(drawn); rechoose(); } };
  const explain = () => { const drawn = model.get("legend"); legend.replaceChildren(...(drawn ? safe(drawn, "image/svg+xml") : [])); };
  const fill = () => {
    const html = model.get("panel");
    panel.replaceChildren(...safe(html, "text/html"));
    for (const listing of panel.querySelectorAll("details > pre")) {
      const copy = element("button", "", "copy"); copy.type = "button";
      copy.addEventListener("click", () => navigator.clipboard?.writeText(listing.textContent));
      listing.before(copy);
    }
  };
  const walk = () => {
    const names = model.get("crumbs"); crumbs.replaceChildren();
    if (names.length < 2) return;
    names.forEach((name, level) => {
      if (level) crumbs.append(" › ");
      if (level === names.length - 1) { crumbs.append(element("b", "", brief(name))); return; }
      const button = element("button", "", brief(name)); button.type = "button"; button.dataset.kind = "back"; button.dataset.level = level;
      crumbs.append(button);
    });
  };
  const save = (file) => {
    const link = element("a"); link.download = file.name; link.href = URL.createObjectURL(new Blob([file.text]));
    link.click(); URL.revokeObjectURL(link.href);
  };
  const name = () => { title.textContent = brief(model.get("title")); };
  const received = (message) => {
    if (message.kind === "panel" && message.box !== null) { choose(message.box); const shown = numbered(message.box); if (shown) { if (message.seen) view.frame(message.seen.map(numbered).filter(Boolean)); else view.reveal(shown); if (held) shown.focus({ preventScroll: true }); } held = false; }
    if (message.then && latest?.brief) later = setTimeout(() => ask(message.then), DOUBLE_MS);
    if (message.kind === "state") control();
    if (message.kind === "file") save(message);
    if (message.kind === "found") mark("hit", message.boxes);
  };
  root.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-kind]"), request = button && requestOf(button);
    if (request?.kind === "focus") request.hops = Number(hops.value);
    if (request) { e.preventDefault(); ask(request); return; }
    const box = e.target.closest(".lzg-host [data-b]");
    // The first of two clicks asks for little, the second for nothing: they open the box.
    if (box && e.detail !== 2) { choose(Number(box.dataset.b)); ask({ kind: "select", box: Number(box.dataset.b), brief: box.classList.contains("g") }); }
  });
  panel.addEventListener("pointermove", tellValue);
  // Another part of a tensor: the fields stand in a paragraph that says what they ask for.
  panel.addEventListener("change", (e) => {
    const place = e.target.closest("[data-kind]");
    if (!place || e.target.dataset.axis === undefined) return;
    const at = [];
    for (const each of place.querySelectorAll("input[data-axis]")) at[Number(each.dataset.axis)] = Math.max(0, Math.trunc(Number(each.value)) || 0);
    ask({ ...requestOf(place), at: Array.from(at, (start) => start ?? 0) });
  });
  panel.addEventListener("keydown", (e) => { if (e.target.matches("input")) e.stopPropagation(); });
  host.addEventListener("dblclick", (e) => {
    const box = e.target.closest("[data-b]");
    if (box && (box.classList.contains("g") || selects.form.value !== "ir")) ask({ kind: "open", box: Number(box.dataset.b) });
  });
  host.addEventListener("focusin", (e) => { const box = e.target.closest("[data-b]"); if (box && box.matches(":focus-visible")) view.reveal(box); });
  const back = () => { const level = model.get("crumbs").length - 2; if (level >= 0) ask({ kind: "back", level }); };
  host.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const box = e.target.closest("[data-b]"), number = box && Number(box.dataset.b);
    if ((e.key === "Enter" || e.key === " ") && box) ask({ kind: "select", box: number });
    else if (e.key === "o" && box) ask({ kind: "open", box: number });
    else if (e.key === "u" && selects.fold.options.length) ask({ kind: "close" });
    else if (e.key === "f" && box && box.dataset.n) ask({ kind: "focus", node: Number(box.dataset.n), hops: Number(hops.value) });
    else if (/^[1-9]$/.test(e.key)) hops.value = e.key;
    else if (e.key === "Backspace" || e.key === "Escape") back();
    else if (e.key === "/") search.focus();
    else if (e.key === "?") help.hidden = !help.hidden;
    else if (!view.key(e.key)) return;
    e.preventDefault(); e.stopPropagation();
  });
  search.addEventListener("keydown", (e) => {
    e.stopPropagation();
    if (e.key === "Enter") ask({ kind: "search", text: search.value });
    if (e.key === "Escape") { search.value = ""; mark("hit", []); host.focus(); }
  });

  const watched = { "change:svg": draw, "change:legend": explain, "change:panel": fill, "change:crumbs": walk, "change:title": name, "change:controls": control, "msg:custom": received };
  for (const [event, answer] of Object.entries(watched)) { model.on(event, answer); if (event !== "msg:custom") answer(); }
  return () => { clearTimeout(later); close(); view.stop(); showTwins(); for (const [event, answer] of Object.entries(watched)) model.off(event, answer); };
}

export default { render };
