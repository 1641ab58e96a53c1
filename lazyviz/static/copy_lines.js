// The page of lazyviz.widgets.copy_lines: one for a session, shown nowhere. It wakes the buttons in
// static strips that copy the lines beside them; without it they stay hidden.

const WORDS = { ready: "Copy these lines", done: "Copied: paste them into a cell", failed: "Select the lines and copy them" };
const STYLE = ".lzb-copy { display: inline-block !important; font: 12px var(--jp-ui-font-family, system-ui, sans-serif);"
  + " color: var(--jp-content-font-color1, #1f2733); background: var(--jp-layout-color1, #fff); cursor: pointer;"
  + " border: 1px solid var(--jp-border-color1, #8a94a3); border-radius: 4px; padding: 2px 10px; }"
  + " .lzb-copy::after { content: attr(aria-label); }"
  + " .lzb-copy:focus-visible { outline: 2px solid var(--jp-brand-color1, #3a66b0); outline-offset: 1px; }";

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

function initialize() {
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
  document.addEventListener("click", press, true);
  document.addEventListener("keydown", key, true);
  return () => {
    document.removeEventListener("click", press, true); document.removeEventListener("keydown", key, true);
    style.remove(); spoken.remove();
  };
}

export default { initialize, render() {} };
