// A timeline that zooms, drawn from the data that its picture carries: nothing is asked of a kernel.

const CHARACTER = 6; // width of a label's
const CLOSEST_IN = 1e5;
const WIDE = 3; // pixels from which a span is drawn by itself; narrower ones share columns of half of that
const MOST_DRAWN = 4000; // spans of a row that are gone through for a drawing
const MOST_LIT = 400; // narrow spans that a search draws by themselves
const DARK = new Set(["#5d6878"]); // labels on these are white
const HELP_TEXT = "drag or ← → pan · Ctrl+wheel or + − zoom · 0 all · ↑ ↓ row · Shift+← → span · Enter goes to it · Shift+drag or m m measures · / searches";

function drawn(name, attributes, parent) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function time(ns) {
  ns = Math.round(ns);
  for (const [unit, size] of [["h", 36e11], ["min", 6e10]])
    if (ns >= size) return `${Math.floor(ns / size)} ${unit}${ns % size ? ` ${time(ns % size)}` : ""}`;
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (ns >= size) return `${Number((ns / size).toPrecision(4))} ${unit}`;
  return ns > 0 ? `${ns} ns` : "0";
}

// The rows of a picture with their spans in order, and its marks; the static drawing makes way.
async function spansOf(svg) {
  const packed = new Blob([Uint8Array.from(atob(svg.dataset.spans), (letter) => letter.charCodeAt(0))]);
  const data = JSON.parse(await new Response(packed.stream().pipeThrough(new DecompressionStream("deflate"))).text());
  delete svg.dataset.spans;
  for (const each of svg.querySelectorAll(".t, .a, .k[data-tick]")) each.remove();
  const groups = [...svg.querySelectorAll("g[data-row]")];
  const rows = data.rows.map((row, number) => {
    const el = groups[number], name = el.dataset.row;
    el.replaceChildren();
    const spans = row.x.map((x, k) => {
      const title = data.titles[row.title[k]], h = row.h[k];
      const label = h < 10 || name === "memory" || title.startsWith("trace:") ? "" : title.split(name === "cells" ? ":" : " · ")[0];
      return { row: number, x, w: row.w[k], y: row.y[k], h, fill: row.fill[k], title, label };
    });
    return { el, name, spans, ends: endsOf(spans), levels: levelsOf(spans, name.startsWith("memory") ? "h" : "w") };
  });
  const kinds = {}, breaks = [];
  for (const el of svg.querySelectorAll("path[data-x]")) {
    if (el.dataset.kind) { kinds[el.dataset.kind] = el; el.remove(); } else breaks.push(el);
  }
  const marks = data.marks.map(([x, kind, title]) => ({ row: -1, x, w: 0, kind, title }));
  marks.sort((a, b) => a.x - b.x);
  return { rows, marks, kinds, breaks };
}

// The latest end of all spans up to each.
function endsOf(spans) {
  let end = -Infinity;
  return Float64Array.from(spans, (each) => (end = Math.max(end, each.x + each.w)));
}

// The same spans coarser and coarser, for a picture in which so many would share a column: in each column
// one of those narrower than it stands for all, the longest or the highest, as wide as all together.
function levelsOf(spans, by) {
  const levels = [{ grain: 0, spans, ends: endsOf(spans) }];
  for (let grain = WIDE / 2 / CLOSEST_IN; grain <= WIDE / 2; grain *= 2) {
    const finer = levels.at(-1).spans, coarser = [];
    if (finer.length < MOST_DRAWN) break;
    let last = null, column = -1;
    for (const each of finer) {
      if (each.w > grain) { coarser.push(each); continue; }
      const its = Math.floor((each.x + each.w / 2) / grain), span = each.span || each;
      if (!last || its !== column) {
        column = its; last = { ...each, span, sum: each.sum || each.w, x: its * grain, w: grain };
        coarser.push(last);
      } else {
        last.sum += each.sum || each.w;
        if (span[by] > last.span[by]) Object.assign(last, { span, y: span.y, h: span.h, fill: span.fill });
      }
    }
    if (coarser.length < finer.length / 2) levels.push({ grain, spans: coarser, ends: endsOf(coarser) });
  }
  return levels;
}

// The first of some ordered numbers that is no less than another.
function firstFrom(numbers, least) {
  let low = 0, high = numbers.length;
  while (low < high) { const middle = (low + high) >> 1; if (numbers[middle] < least) low = middle + 1; else high = middle; }
  return low;
}

// The spans of a row that lie at least in part between two moments.
function* between({ spans, ends }, from, to) {
  for (let k = firstFrom(ends, from); k < spans.length && spans[k].x <= to; k += 1)
    if (spans[k].x + spans[k].w >= from) yield spans[k];
}

// What lies between two moments: for how long, when the device worked, its gaps, what else happened.
function measured(start, end, rows, nsAt) {
  const duration = nsAt(end) - nsAt(start);
  let busy = 0, gaps = 0, longest = 0, ops = 0, till = start;
  const counts = new Map(), device = [];
  for (const row of rows.slice(1)) {
    const isDevice = /^(now: )?device/.test(row.name);
    for (const each of between(row, start, end)) {
      if (each.x >= end || each.x + each.w <= start) continue;
      counts.set(row.name, (counts.get(row.name) || 0) + 1);
      if (!isDevice) continue;
      device.push(each);
      const found = each.title.match(/, ([\d,]+) ops?\b/);
      if (found) ops += Number(found[1].replaceAll(",", ""));
    }
  }
  const gap = (a, b) => { const ns = nsAt(b) - nsAt(a); if (ns > 0) { gaps += 1; longest = Math.max(longest, ns); } };
  for (const { x, w } of device.sort((a, b) => a.x - b.x)) {
    const from = Math.max(x, till), to = Math.min(x + w, end);
    if (x > till) gap(till, x);
    if (to > from) busy += nsAt(to) - nsAt(from);
    till = Math.max(till, to);
  }
  if (till < end) gap(till, end);
  const share = duration > 0 ? Math.round(100 * busy / duration) : 0;
  const parts = [`${time(duration)}: the device works ${time(busy)} (${share} %)`, gaps ? `${gaps} ${gaps === 1 ? "gap" : "gaps"}, the longest ${time(longest)}` : "no gap"];
  if (ops) parts.push(`${ops.toLocaleString("en")} ops`);
  for (const name of ["steps", "compiles", "transfers"]) if (counts.get(name)) parts.push(`${counts.get(name)} in ${name}`);
  return parts.join(" · ");
}

async function zoomable(svg, host) {
  const left = Number(svg.dataset.left), width = svg.viewBox.baseVal.width, room = width - left;
  const cells = svg.dataset.cells.split(";").map((each) => each.split(",").map(Number));
  const { rows, marks, kinds, breaks } = await spansOf(svg);
  const every = [...rows.flatMap((each) => each.spans), ...marks].sort((a, b) => a.x - b.x);
  const places = marks.map((each) => each.x), markOf = new Map(), marked = drawn("g", {}, svg);
  const grid = drawn("g", { class: "lzt-grid" }, svg), floor = Number(svg.dataset.floor);
  svg.prepend(grid);
  let from = left, to = width, chosen = null, row = 0, drag = null, asked = false, found = [], hits = new Set();

  let picked = null, mark = null;
  const shade = drawn("rect", { class: "lzt-pick", y: 14, height: floor - 14, width: 0 }, svg);
  const bar = element("div", "lzt-bar"), tell = element("div", "lzt-tell"), keys = element("span", "lzt-keys", HELP_TEXT);
  tell.setAttribute("role", "status");
  const at = (x) => left + (x - from) * room / (to - from);
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } };

  function ticks() {
    grid.replaceChildren();
    for (const [x, w, ns] of cells) {
      const wide = at(x + w) - at(x);
      if (wide < 60 || at(x + w) < left || at(x) > width) continue;
      let step = 1;
      while (wide * step / ns < 80) step = String(step)[0] === "2" ? step * 5 / 2 : step * 2;
      const first = Math.max(0, Math.ceil((left - at(x)) / wide * ns / step)), last = Math.min(wide - 46, width - 34 - at(x)) / wide * ns;
      for (let n = first; n * step <= last; n += 1) {
        const place = at(x) + wide * n * step / ns;
        drawn("path", { class: "a", d: `M${place.toFixed(1)} 18V${floor}` }, grid);
        drawn("text", { class: "k", x: (place + 2).toFixed(1), y: 10 }, grid).textContent = time(n * step);
      }
    }
  }
  // Wide spans are drawn each; of the others that fall into a column, the longest (of memory, the highest).
  function drawRow(row) {
    row.el.replaceChildren();
    const by = row.name.startsWith("memory") ? "h" : "w", scale = room / (to - from), columns = new Map(), paths = new Map();
    const level = row.levels.findLast((each) => each.grain * scale <= WIDE / 2);
    for (const each of between(level, from, to)) {
      const start = Math.max(at(each.x), left), end = Math.min(at(each.x + each.w), width);
      if (end - start >= WIDE) { drawSpan(each, row.el); continue; }
      const column = Math.floor((start + end) / WIDE), before = columns.get(column);
      if (!before) { columns.set(column, each); continue; }
      const most = (before.span || before)[by] < (each.span || each)[by] ? each : before;
      columns.set(column, { ...most, span: most.span || most, sum: (before.sum || before.w) + (each.sum || each.w) });
    }
    for (const [column, each] of columns) {
      if (!each.span && columns.size < MOST_LIT) { drawSpan(each, row.el); continue; }
      const wide = by === "h" ? WIDE / 2 : Math.min((each.sum || each.w) * scale, WIDE / 2).toFixed(2);
      const d = `M${column * WIDE / 2} ${each.y}h${wide}v${each.h}h-${wide}z`;
      paths.set(each.fill, (paths.get(each.fill) || "") + d);
    }
    for (const [fill, d] of paths) drawn("path", { d, fill }, row.el);
  }
  // What is chosen or found is drawn once more where it is too narrow to have been drawn by itself.
  function drawLit() {
    let many = 0;
    for (const each of chosen ? [chosen, ...found] : found) {
      const isSeen = each.row >= 0 && each.x <= to && each.x + each.w >= from && at(each.x + each.w) - at(each.x) < WIDE;
      if (isSeen && (many += 1) <= MOST_LIT) drawSpan(each, rows[each.row].el);
    }
  }
  function drawSpan(each, parent) {
    const start = Math.max(at(each.x), left), end = Math.min(at(each.x + each.w), width);
    const name = [each === chosen ? "lzt-on" : "", hits.has(each) ? "lzt-hit" : ""].join(" ").trim();
    drawn("rect", { x: start.toFixed(2), y: each.y, width: Math.max(end - start, 0.8).toFixed(2), height: each.h, fill: each.fill, ...(name && { class: name }) }, parent);
    const letters = each.label ? Math.floor((end - start - 6) / CHARACTER) : 0;
    if (letters < 3) return;
    const text = drawn("text", { class: DARK.has(each.fill) ? "t i" : "t", x: (start + 3).toFixed(1), y: each.y + 12.5 }, parent);
    text.textContent = each.label.length > letters ? `${each.label.slice(0, letters - 1)}…` : each.label;
  }
  function drawMarks() {
    marked.replaceChildren(); markOf.clear();
    const last = {};
    for (let k = firstFrom(places, from); k < marks.length && marks[k].x <= to; k += 1) {
      const each = marks[k], place = at(each.x), isLit = each === chosen || hits.has(each);
      if (!isLit && place - (last[each.kind] ?? -WIDE) < 2 * WIDE) continue;
      last[each.kind] = place;
      const el = kinds[each.kind].cloneNode();
      el.setAttribute("transform", `translate(${(place - el.dataset.x).toFixed(2)} 0)`);
      el.classList.toggle("lzt-on", each === chosen); el.classList.toggle("lzt-hit", hits.has(each));
      marked.append(el); markOf.set(el, each);
    }
  }
  function draw() {
    for (const row of rows) drawRow(row);
    drawLit();
    drawMarks();
    for (const el of breaks) {
      const place = at(Number(el.dataset.x));
      el.style.display = place < left || place > width ? "none" : "";
      el.setAttribute("transform", `translate(${(place - el.dataset.x).toFixed(2)} 0)`);
    }
    if (picked) {
      const a = Math.min(Math.max(at(picked[0]), left), width), b = Math.min(Math.max(at(picked[1]), left), width);
      shade.setAttribute("x", a.toFixed(2)); shade.setAttribute("width", Math.max(b - a, 0.8).toFixed(2));
    }
    shade.style.display = picked ? "" : "none";
    ticks();
    svg.dataset.zoom = (room / (to - from)).toFixed(2);
  }
  function show(a, b) {
    const span = Math.min(Math.max(b - a, room / CLOSEST_IN), room), middle = (a + b) / 2;
    from = Math.min(Math.max(middle - span / 2, left), width - span); to = from + span;
    redraw();
  }
  // A moment in nanoseconds since the first cell; what lies between cells takes no time.
  function nsAt(x) {
    let before = 0;
    for (const [start, wide, ns] of cells) {
      if (x <= start) return before;
      if (x < start + wide) return before + (x - start) / wide * ns;
      before += ns;
    }
    return before;
  }
  function pick(a, b) {
    picked = a === null ? null : [Math.max(Math.min(a, b), left), Math.min(Math.max(a, b), width)];
    tell.textContent = picked ? measured(picked[0], picked[1], rows, nsAt) : "";
    redraw();
  }
  // With the keyboard: the middle of the chosen span, or of what is seen, is one end.
  function markHere() {
    const here = chosen ? [chosen.x, chosen.x + chosen.w] : [(from + to) / 2, (from + to) / 2];
    if (mark === null) { mark = here; tell.textContent = "measures from here: choose the other end, then m"; return; }
    pick(Math.min(mark[0], here[0]), Math.max(mark[1], here[1])); mark = null;
  }
  let hit = -1;
  function search(words) {
    const sought = words.trim().toLowerCase();
    found = sought ? every.filter((each) => each.title.toLowerCase().includes(sought)) : [];
    hits = new Set(found); hit = -1;
    count.textContent = sought ? `${found.length} found` : "";
    draw();
  }
  function next(step) {
    if (!found.length) return;
    hit = (hit + step + found.length) % found.length;
    choose(found[hit]);
    count.textContent = `${hit + 1} of ${found.length}`;
  }
  const zoom = (factor, x = (from + to) / 2) => show(x - (x - from) * factor, x + (to - x) * factor);
  const pan = (share) => { const d = (to - from) * share; show(Math.max(from + d, left) === left ? left : from + d, Math.max(from + d, left) === left ? left + to - from : to + d); };
  const all = () => show(left, width);
  function choose(each) {
    chosen = each;
    tell.textContent = each ? each.title : "";
    if (each && each.row >= 0) row = each.row;
    if (each && (each.x + each.w < from || each.x > to)) show(each.x + each.w / 2 - (to - from) / 2, each.x + each.w / 2 + (to - from) / 2);
    redraw();
  }
  function along(step) {
    const { spans, ends } = rows[row];
    if (!spans.length) return;
    const now = spans.indexOf(chosen), near = Math.min(firstFrom(ends, step > 0 ? from : (from + to) / 2), spans.length - 1);
    choose(spans[now < 0 ? near : Math.min(Math.max(now + step, 0), spans.length - 1)]);
  }
  function across(step) {
    for (let next = row + step; next >= 0 && next < rows.length; next += step) {
      row = next;
      const { spans } = rows[row], middle = chosen ? chosen.x + chosen.w / 2 : (from + to) / 2;
      if (!spans.length) continue;
      const far = (each) => Math.abs(Math.min(Math.max(middle, each.x), each.x + each.w) - middle);
      choose(spans.reduce((best, each) => (far(each) < far(best) ? each : best)));
      return;
    }
  }
  const into = (each) => { if (each) show(each.x - Math.max(each.w, 1e-3) * 0.15, each.x + Math.max(each.w, 1e-3) * 1.15); };
  const placeOf = (e) => { const r = svg.getBoundingClientRect(); return from + ((e.clientX - r.left) * width / r.width - left) * (to - from) / room; };
  // What a pointer is at, or nearly: a span narrower than a pixel could not be hit.
  function under(e) {
    const r = svg.getBoundingClientRect(), px = width / r.width, x = (e.clientX - r.left) * px, y = (e.clientY - r.top) * px;
    const far = (each) => Math.max(at(each.x) - x, x - at(each.x + each.w), 0);
    if (markOf.has(e.target)) return markOf.get(e.target);
    const reach = 4 * (to - from) / room, here = from + (x - left) * (to - from) / room;
    let best = null;
    for (const row of rows)
      for (const each of between(row, here - reach, here + reach))
        if (y >= each.y - 1 && y <= each.y + each.h + 1 && far(each) < 4 && !(best && far(best) < far(each))) best = each;
    return best;
  }

  const actions = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "−": () => zoom(1 / 0.6), 0: all, Escape: () => { choose(null); mark = null; pick(null); all(); }, m: markHere, "/": () => box.focus(), Enter: () => into(chosen), ArrowUp: () => across(-1), ArrowDown: () => across(1) };
  svg.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (side && e.shiftKey) along(side); else if (side) pan(side * 0.2); else if (actions[e.key]) actions[e.key](); else return;
    e.preventDefault(); e.stopPropagation();
  });
  svg.addEventListener("wheel", (e) => {
    if (!(e.ctrlKey || e.metaKey)) return;
    e.preventDefault(); zoom(Math.exp(e.deltaY * 0.002), placeOf(e));
  }, { passive: false });
  svg.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, from, to, moved: false, at: e.shiftKey ? placeOf(e) : null }; });
  svg.addEventListener("pointermove", (e) => {
    if (!drag) { const each = under(e); if (each && !picked) tell.textContent = each.title; return; }
    const d = (drag.x - e.clientX) * width / svg.getBoundingClientRect().width * (drag.to - drag.from) / room;
    if (!drag.moved && Math.abs(drag.x - e.clientX) < 4) return;
    if (!drag.moved) { drag.moved = true; svg.setPointerCapture(e.pointerId); }
    if (drag.at !== null) pick(drag.at, placeOf(e)); else show(drag.from + d, drag.to + d);
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, (e) => { if (drag && !drag.moved) choose(under(e)); drag = null; });
  svg.addEventListener("pointerleave", () => { if (!drag && !picked) tell.textContent = chosen ? chosen.title : ""; });
  svg.addEventListener("dblclick", (e) => into(under(e)));

  for (const [text, label, act] of [["−", "zoom out", () => zoom(1 / 0.6)], ["+", "zoom in", () => zoom(0.6)], ["all", "show all", all]]) {
    const button = element("button", "", text);
    button.type = "button"; button.title = label; button.setAttribute("aria-label", label);
    button.addEventListener("click", act); bar.append(button);
  }
  const box = element("input", "lzt-search"), count = element("span", "lzt-found");
  box.type = "search"; box.placeholder = "search"; box.setAttribute("aria-label", "search the timeline");
  count.setAttribute("role", "status");
  box.addEventListener("input", () => search(box.value));
  box.addEventListener("keydown", (e) => {
    e.stopPropagation();
    if (e.key === "Enter") { e.preventDefault(); next(e.shiftKey ? -1 : 1); }
    if (e.key === "Escape") { box.value = ""; search(""); svg.focus(); }
  });
  bar.append(box, count);
  svg.removeAttribute("height"); svg.setAttribute("width", "100%");
  svg.setAttribute("tabindex", "0"); svg.setAttribute("role", "application");
  svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. ${HELP_TEXT}`);
  bar.append(keys); host.classList.add("lzt-view"); host.append(bar, svg, tell);
  draw();
}
