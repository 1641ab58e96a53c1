// The page of lazyviz.widgets.StripPage: one for a session, shown nowhere. Heat maps of results tell the value under the
// pointer. To a strip that is unfolded it adds a button that profiles the next step, whichever cell runs it.

const STYLE = ".lzb-capture { display: block; margin: 6px 0; font: 12px var(--jp-ui-font-family, system-ui, sans-serif);"
  + " color: var(--jp-content-font-color1, #1f2733); background: var(--jp-layout-color1, #fff); cursor: pointer;"
  + " border: 1px solid var(--jp-border-color1, #8a94a3); border-radius: 4px; padding: 2px 10px; }"
  + " .lzb-capture:disabled { cursor: default; opacity: .7; }"
  + " .lzb-capture:focus-visible { outline: 2px solid var(--jp-brand-color1, #3a66b0); outline-offset: 1px; }";
const CAPTURE = { ready: "Profile the next step", busy: "Waits for a step: run a cell", none: "No step came. Try again" };

function captures(model) {
  let asked = null;
  const say = (button, words) => { button.textContent = words; button.disabled = words === CAPTURE.busy; };
  const opened = (event) => {
    const strip = event.target.open && event.target.closest?.(".lazyviz-strip");
    if (!strip || event.target.parentElement !== strip || strip.querySelector(".lzb-capture")) return;
    const button = element("button", "lzb-capture", CAPTURE.ready);
    button.type = "button"; button.title = "Where the time of the next step goes: lines that wait, the device by line";
    button.addEventListener("click", () => {
      if (asked) return;
      asked = button; say(button, CAPTURE.busy);
      try { model.send({ kind: "capture" }); } catch { asked = null; say(button, CAPTURE.none); }
    });
    event.target.append(button);
  };
  const heard = (message) => {
    if (message.kind !== "captured" || !asked) return;
    const strip = asked.closest(".lazyviz-strip"), shown = element("div", "lzb-profile");
    say(asked, message.steps ? CAPTURE.ready : CAPTURE.none); asked = null;
    if (!strip || !message.html) return;
    strip.querySelector(".lzb-profile")?.remove();
    shown.setAttribute("role", "region"); shown.setAttribute("aria-label", "profile of a step");
    shown.append(...safe(message.html)); strip.append(shown);
  };
  document.addEventListener("toggle", opened, true);
  model.on("msg:custom", heard);
  return () => { document.removeEventListener("toggle", opened, true); model.off("msg:custom", heard); };
}

function initialize({ model }) {
  const style = element("style", "", STYLE), end = captures(model);
  document.head.append(style);
  document.addEventListener("pointermove", tellValue);
  return () => { document.removeEventListener("pointermove", tellValue); style.remove(); end(); };
}

export default { initialize, render() {} };
