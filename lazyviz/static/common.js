// What the pages of all widgets share; lazyviz.widgets.assets puts it in front of each.

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// The kernel escapes all text; what could run or load something is dropped here once more.
function safe(markup, type = "text/html") {
  const parsed = new DOMParser().parseFromString(markup, type);
  const bad = "script,foreignObject,iframe,object,embed,link,base,meta,form" + (type === "text/html" ? ",style" : "");
  for (const each of parsed.querySelectorAll(bad)) each.remove();
  for (const each of parsed.querySelectorAll("*")) {
    for (const { name, value } of [...each.attributes]) {
      const elsewhere = /^(href|src|srcset|action|formaction|xlink:href)$/i.test(name) && !/^(data:image\/png|#)/.test(value);
      const loads = name === "style" && /url\(|image\(|@/i.test(value);
      if (/^on/i.test(name) || elsewhere || loads) each.removeAttribute(name);
    }
  }
  return type === "text/html" ? [...parsed.body.childNodes] : [document.importNode(parsed.documentElement, true)];
}
