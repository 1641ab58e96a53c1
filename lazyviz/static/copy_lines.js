// The page of lazyviz.widgets.copy_lines: one for a session, shown nowhere. It wakes the buttons in
// static strips that copy the lines beside them; without it they stay hidden. Heat maps of results tell the value under the
// pointer. To a strip that is unfolded it
// adds a button that profiles the next step, whichever cell runs it.

const WORDS = { ready: "Copy these lines", done: "Copied: paste them into a cell", failed: "Select the lines and copy them" };
const STYLE = ".lzb-copy, .lzb-capture { display: inline-block !important; font: 12px var(--jp-ui-font-family, system-ui, sans-serif);"
  + " color: var(--jp-content-font-color1, #1f2733); background: var(--jp-layout-color1, #fff); cursor: pointer;"
  + " border: 1px solid var(--jp-border-color1, #8a94a3); border-radius: 4px; padding: 2px 10px; }"
  + " .lzb-copy::after { content: attr(aria-label); }"
  + " .lzb-capture { display: block !important; margin: 6px 0; } .lzb-capture:disabled { cursor: default; opacity: .7; }"
  + " .lzb-copy:focus-visible, .lzb-capture:focus-visible { outline: 2px solid var(--jp-brand-color1, #3a66b0); outline-offset: 1px; }";

// A page that is not on localhost or https has no clipboard of its own.
function copyOldWay(words) {
  const area = element("textarea");
  area.value = words; area.style.position = "fixed"; area.style.opacity = "0";
  document.body.append(area); area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

async function copied(words) {
  try { await navigator.clipboard.writeText(words); return true; } catch { return copyOldWay(words); }
}

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
  const style = element("style", "", STYLE), spoken = element("div");
  spoken.setAttribute("role", "status"); spoken.style.cssText = "position:fixed;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)";
  document.head.append(style); document.body.append(spoken);
  const press = async (event) => {
    const button = event.target.closest?.(".lzb-copy");
    const lines = button?.closest("details")?.querySelector("pre");
    if (!lines) return;
    event.preventDefault(); event.stopPropagation();
    const words = await copied(lines.textContent) ? WORDS.done : WORDS.failed;
    button.setAttribute("aria-label", words); spoken.textContent = words;
    button.focus();
    setTimeout(() => button.setAttribute("aria-label", WORDS.ready), 4000);
  };
  const key = (event) => { // Enter and Space are the button's, not the notebook's
    if ((event.key === "Enter" || event.key === " ") && event.target.closest?.(".lzb-copy")) press(event);
  };
  const end = captures(model);
  document.addEventListener("click", press, true);
  document.addEventListener("keydown", key, true);
  document.addEventListener("pointermove", tellValue);
  return () => {
    document.removeEventListener("click", press, true); document.removeEventListener("keydown", key, true);
    document.removeEventListener("pointermove", tellValue);
    style.remove(); spoken.remove(); end();
  };
}

export default { initialize, render() {} };
