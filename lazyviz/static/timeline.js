// A timeline that zooms, made of the static picture's own shapes: nothing is asked of a kernel.

const CHARACTER = 6; // width of a label's
const CLOSEST_IN = 3000;
const DARK = new Set(["#5d6878"]); // labels on these are white
const HELP_TEXT = "drag or ← → pan · Ctrl+wheel or + − zoom · 0 all · ↑ ↓ row · Shift+← → span · Enter goes to it · Shift+drag or m m measures · / searches";

function drawn(name, attributes, parent) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function time(ns) {
  for (const [unit, size] of [["min", 6e10], ["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (ns >= size) return `${Number((ns / size).toPrecision(4))} ${unit}`;
  return ns > 0 ? `${Math.round(ns)} ns` : "0";
}

// The shapes of a picture with what is known of each; static labels and ticks make way.
function shapesOf(svg) {
  for (const each of svg.querySelectorAll(".t, .a, .k[data-tick]")) each.remove();
  const rows = [...svg.querySelectorAll("g[data-row]")];
  const shapes = rows.flatMap((row, number) => [...row.querySelectorAll("rect")].map((el) => {
    const title = el.querySelector("title").textContent, [x, y, w, h] = ["x", "y", "width", "height"].map((a) => Number(el.getAttribute(a)));
    const label = title.split(row.dataset.row === "cells" ? ":" : " · ")[0];
    el.querySelector("title").remove();
    return { el, row: number, x, y, w, h, title, label: h < 10 || title.startsWith("trace:") ? "" : label, text: null };
  }));
  const marks = [...svg.querySelectorAll("[data-x]")].map((el) => {
    const title = el.querySelector("title").textContent;
    el.querySelector("title").remove();
    return { el, row: -1, x: Number(el.dataset.x), w: 0, title };
  });
  return { rows, shapes, marks };
}

// What lies between two moments: for how long, when the device worked, its gaps, what else happened.
function measured(start, end, shapes, rows, nsAt) {
  const inside = shapes.filter((each) => each.row > 0 && each.x < end && each.x + each.w > start);
  const duration = nsAt(end) - nsAt(start);
  let busy = 0, gaps = 0, longest = 0, ops = 0, till = start;
  const names = rows.map((row) => row.dataset.row), counts = new Map();
  const device = inside.filter((each) => /^(now: )?device/.test(names[each.row]) && each.h > 5).sort((a, b) => a.x - b.x);
  const gap = (a, b) => { const ns = nsAt(b) - nsAt(a); if (ns > 0) { gaps += 1; longest = Math.max(longest, ns); } };
  for (const { x, w } of device) {
    const from = Math.max(x, till), to = Math.min(x + w, end);
    if (x > till) gap(till, x);
    if (to > from) busy += nsAt(to) - nsAt(from);
    till = Math.max(till, to);
  }
  if (till < end) gap(till, end);
  for (const each of inside) {
    const many = / short spans?: /.test(each.title) ? Number(each.title.split(" ")[0].replaceAll(",", "")) : 1;
    counts.set(names[each.row], (counts.get(names[each.row]) || 0) + many);
    const found = /^(now: )?device/.test(names[each.row]) && each.title.match(/, ([\d,]+) ops?\b/);
    if (found) ops += Number(found[1].replaceAll(",", ""));
  }
  const share = duration > 0 ? Math.round(100 * busy / duration) : 0;
  const parts = [`${time(duration)}: the device works ${time(busy)} (${share} %)`, gaps ? `${gaps} ${gaps === 1 ? "gap" : "gaps"}, the longest ${time(longest)}` : "no gap"];
  if (ops) parts.push(`${ops.toLocaleString("en")} ops`);
  for (const name of ["steps", "compiles", "transfers"]) if (counts.get(name)) parts.push(`${counts.get(name)} in ${name}`);
  return parts.join(" · ");
}

function zoomable(svg, host) {
  const left = Number(svg.dataset.left), width = svg.viewBox.baseVal.width, room = width - left;
  const cells = svg.dataset.cells.split(";").map((each) => each.split(",").map(Number));
  const { rows, shapes, marks } = shapesOf(svg);
  const every = [...shapes, ...marks], byElement = new Map(every.map((each) => [each.el, each]));
  const grid = drawn("g", { class: "lzt-grid" }, svg), floor = Number(svg.dataset.floor);
  svg.prepend(grid);
  let from = left, to = width, chosen = null, row = 0, drag = null, asked = false;

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
  function draw() {
    for (const each of shapes) {
      const start = Math.max(at(each.x), left), end = Math.min(at(each.x + each.w), width), wide = end - start;
      const seen = end >= left && start <= width && wide >= 0;
      each.el.style.display = seen ? "" : "none";
      if (seen) { each.el.setAttribute("x", start.toFixed(2)); each.el.setAttribute("width", Math.max(wide, 0.8).toFixed(2)); }
      const letters = seen && each.label ? Math.floor((wide - 6) / CHARACTER) : 0;
      if (letters < 3) { if (each.text) { each.text.remove(); each.text = null; } continue; }
      each.text = each.text || drawn("text", { class: DARK.has(each.el.getAttribute("fill")) ? "t i" : "t", y: each.y + 12.5 }, each.el.parentNode);
      each.text.setAttribute("x", (start + 3).toFixed(1));
      each.text.textContent = each.label.length > letters ? `${each.label.slice(0, letters - 1)}…` : each.label;
    }
    for (const each of marks) {
      const place = at(each.x);
      each.el.style.display = place < left || place > width ? "none" : "";
      each.el.setAttribute("transform", `translate(${(place - each.x).toFixed(2)} 0)`);
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
    tell.textContent = picked ? measured(picked[0], picked[1], shapes, rows, nsAt) : "";
    redraw();
  }
  // With the keyboard: the middle of the chosen span, or of what is seen, is one end.
  function markHere() {
    const here = chosen ? [chosen.x, chosen.x + chosen.w] : [(from + to) / 2, (from + to) / 2];
    if (mark === null) { mark = here; tell.textContent = "measures from here: choose the other end, then m"; return; }
    pick(Math.min(mark[0], here[0]), Math.max(mark[1], here[1])); mark = null;
  }
  let hits = [], hit = -1;
  function search(words) {
    for (const each of hits) each.el.classList.remove("lzt-hit");
    const sought = words.trim().toLowerCase();
    hits = sought ? every.filter((each) => each.title.toLowerCase().includes(sought)).sort((a, b) => a.x - b.x) : [];
    hit = -1;
    for (const each of hits) each.el.classList.add("lzt-hit");
    found.textContent = sought ? `${hits.length} found` : "";
  }
  function next(step) {
    if (!hits.length) return;
    hit = (hit + step + hits.length) % hits.length;
    choose(hits[hit]);
    found.textContent = `${hit + 1} of ${hits.length}`;
  }
  const zoom = (factor, x = (from + to) / 2) => show(x - (x - from) * factor, x + (to - x) * factor);
  const pan = (share) => { const d = (to - from) * share; show(Math.max(from + d, left) === left ? left : from + d, Math.max(from + d, left) === left ? left + to - from : to + d); };
  const all = () => show(left, width);
  function choose(each) {
    if (chosen) chosen.el.classList.remove("lzt-on");
    chosen = each;
    tell.textContent = each ? each.title : "";
    if (!each) return;
    each.el.classList.add("lzt-on");
    if (each.row >= 0) row = each.row;
    if (each.x + each.w < from || each.x > to) show(each.x + each.w / 2 - (to - from) / 2, each.x + each.w / 2 + (to - from) / 2);
  }
  const inRow = () => shapes.filter((each) => each.row === row).sort((a, b) => a.x - b.x);
  function along(step) {
    const found = inRow();
    if (!found.length) return;
    const now = found.indexOf(chosen), middle = (from + to) / 2;
    const near = found.findIndex((each) => each.x + each.w >= (step > 0 ? from : middle));
    choose(found[now < 0 ? Math.max(near, 0) : Math.min(Math.max(now + step, 0), found.length - 1)]);
  }
  function across(step) {
    for (let next = row + step; next >= 0 && next < rows.length; next += step) {
      row = next;
      const found = inRow(), middle = chosen ? chosen.x + chosen.w / 2 : (from + to) / 2;
      if (!found.length) continue;
      const far = (each) => Math.abs(Math.min(Math.max(middle, each.x), each.x + each.w) - middle);
      choose(found.reduce((best, each) => (far(each) < far(best) ? each : best)));
      return;
    }
  }
  const into = (each) => { if (each) show(each.x - Math.max(each.w, 1e-3) * 0.15, each.x + Math.max(each.w, 1e-3) * 1.15); };
  const placeOf = (e) => { const r = svg.getBoundingClientRect(); return from + ((e.clientX - r.left) * width / r.width - left) * (to - from) / room; };
  // What a pointer is at, or nearly: a span narrower than a pixel could not be hit.
  function under(e) {
    const r = svg.getBoundingClientRect(), px = width / r.width, x = (e.clientX - r.left) * px, y = (e.clientY - r.top) * px;
    const far = (each) => Math.max(at(each.x) - x, x - at(each.x + each.w), 0);
    const near = shapes.filter((each) => y >= each.y - 1 && y <= each.y + each.h + 1 && far(each) < 4);
    return byElement.get(e.target) || near.reduce((best, each) => (best && far(best) <= far(each) ? best : each), null);
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
  const box = element("input", "lzt-search"), found = element("span", "lzt-found");
  box.type = "search"; box.placeholder = "search"; box.setAttribute("aria-label", "search the timeline");
  found.setAttribute("role", "status");
  box.addEventListener("input", () => search(box.value));
  box.addEventListener("keydown", (e) => {
    e.stopPropagation();
    if (e.key === "Enter") { e.preventDefault(); next(e.shiftKey ? -1 : 1); }
    if (e.key === "Escape") { box.value = ""; search(""); svg.focus(); }
  });
  bar.append(box, found);
  svg.removeAttribute("height"); svg.setAttribute("width", "100%");
  svg.setAttribute("tabindex", "0"); svg.setAttribute("role", "application");
  svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. ${HELP_TEXT}`);
  bar.append(keys); host.classList.add("lzt-view"); host.append(bar, svg, tell);
  draw();
}
