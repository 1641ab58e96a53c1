// The page of lazyviz.widgets.WaitView: counts the seconds of a wait and can end it.

const PHASES = ["lower", "compile", "execute"];

function span(ms) {
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  return s < 3600 ? `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

function render({ model, el }) {
  const root = element("div", "lzw-wait"), head = element("div", "lzw-head");
  const what = element("b", "lzw-what"), time = element("span", "lzw-time"), stop = element("button", "lzw-stop", "Cancel");
  const bar = element("div", "lzw-bar"), fill = element("div", "lzw-fill");
  const foot = element("div", "lzw-foot"), phases = element("span", "lzw-phases"), where = element("span", "lzw-where");
  const spoken = element("span", "lzw-spoken");
  stop.type = "button"; stop.title = "interrupt the cell, as Ctrl-C does; tensors stay usable";
  bar.setAttribute("role", "progressbar"); bar.setAttribute("aria-label", "progress of the wait");
  spoken.setAttribute("role", "status");
  bar.append(fill); head.append(what, time, stop); foot.append(phases, where); root.append(head, bar, foot, spoken); el.append(root);
  let began = performance.now() - model.get("elapsed_ms");

  const tick = () => {
    const elapsed = Math.max(performance.now() - began, 0), expected = model.get("expected_ms");
    const beyond = expected > 0 && elapsed > expected;
    time.textContent = `${span(elapsed)} · expected: ${model.get("expected")}${beyond ? ", longer than that by now" : ""}`;
    root.classList.toggle("lzw-unknown", !(expected > 0));
    if (expected > 0) {
      const share = Math.min(elapsed / expected, 0.97);
      fill.style.width = `${(100 * share).toFixed(1)}%`; bar.setAttribute("aria-valuenow", Math.round(100 * share));
    } else { fill.style.width = ""; bar.removeAttribute("aria-valuenow"); }
  };
  const show = () => {
    began = performance.now() - model.get("elapsed_ms");
    what.textContent = brief(model.get("what")); where.textContent = brief(model.get("where"));
    phases.replaceChildren();
    const current = PHASES.indexOf(model.get("phase"));
    for (const [i, name] of (current < 0 ? [model.get("phase")] : PHASES).entries()) {
      const one = element("span", i === current ? "lzw-now" : i < current ? "lzw-done" : "", name);
      if (i === current) one.setAttribute("aria-current", "step");
      if (i) phases.append(" → ");
      phases.append(one);
    }
    const said = `${model.get("what")}, expected: ${model.get("expected")}`;
    if (spoken.textContent !== said) spoken.textContent = said;
    tick();
  };
  const ended = () => { root.hidden = !model.get("active"); stop.disabled = false; stop.textContent = "Cancel"; };
  stop.addEventListener("click", () => {
    stop.disabled = true; stop.textContent = "stopping";
    // The kernel's main thread waits, so the front end's own interrupt is the way.
    const kernel = model.widget_manager && model.widget_manager.kernel;
    if (kernel && typeof kernel.interrupt === "function") kernel.interrupt();
    else model.send({ kind: "cancel", wait: model.get("number") });
  });
  const watched = { "change:elapsed_ms": show, "change:phase": show, "change:what": show, "change:active": ended, "change:number": ended };
  for (const [event, answer] of Object.entries(watched)) model.on(event, answer);
  show(); ended();
  const timer = setInterval(tick, 250);
  return () => { clearInterval(timer); for (const [event, answer] of Object.entries(watched)) model.off(event, answer); };
}

export default { render };
