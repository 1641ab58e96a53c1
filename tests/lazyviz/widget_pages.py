"""The pages of our widgets in a browser without a server, and what the browser says of them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from lazyviz.render import html
from tests.lazyviz.labs import FLAGS

THEMES = ("light", "dark")
PARTS = {"timeline_view": ("timeline",)}  # as the widget puts its page together
_THEME_FILES = "share/jupyter/lab/themes/@jupyterlab/theme-{}-extension/index.css"

# A model as anywidget hands it to a page: `tell` changes traits, `say` sends a message.
_MOUNT = """
async ([source, state]) => {
  const page = (await import(source)).default, heard = {};
  const call = (event, value) => (heard[event] ?? []).forEach((f) => f(value));
  window.sent = [];
  window.model = {
    get: (name) => state[name],
    on: (event, f) => { (heard[event] ??= []).push(f); },
    off: () => {},
    send: (message) => { window.sent.push(message); },
    tell: (changes) => {
      Object.assign(state, changes);
      Object.keys(changes).forEach((name) => call(`change:${name}`));
    },
    say: (message) => call("msg:custom", message),
  };
  page.render({ model: window.model, el: document.getElementById("root") });
  // Some pages draw in the next frame: it is over when the one after it begins.
  await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
}
"""

# Texts and the contrast that they have, with every opacity in between; smallest first.
_CONTRASTS = """
() => {
  const parse = (text) => {
    const m = text.match(/rgba?\\(([^)]+)\\)/);
    if (!m) return null;
    const [r, g, b, a] = m[1].split(/[, /]+/).map(Number);
    return [r, g, b, a === undefined ? 1 : a];
  };
  const over = (top, below, share) => [0, 1, 2].map((i) => top[i] * share + below[i] * (1 - share));
  const light = (c) => {
    const p = c.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * p[0] + 0.7152 * p[1] + 0.0722 * p[2];
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const fade = (element) => {
    let share = 1;
    for (let e = element; e && e.nodeType === 1; e = e.parentElement) share *= Number(getComputedStyle(e).opacity);
    return share;
  };
  const ground = (element) => {
    const layers = [];
    for (let e = element; e && e.nodeType === 1; e = e.parentElement) {
      if (e.tagName === "g") {
        // A row of a timeline has many: that which lies behind the text's middle counts.
        const t = element.getBoundingClientRect(), x = t.x + t.width / 2, y = t.y + t.height / 2;
        const holds = (r) => r.left <= x && x <= r.right && r.top <= y && y <= r.bottom;
        const rects = [...e.children].filter((c) => c.tagName === "rect" && !c.classList.contains("u") && holds(c.getBoundingClientRect()));
        const rect = rects[rects.length - 1], fill = rect && parse(getComputedStyle(rect).fill);
        if (fill) layers.push([fill, fill[3] * fade(rect) * Number(getComputedStyle(rect).fillOpacity)]);
        continue;
      }
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c && c[3] > 0) layers.push([c, c[3]]);
    }
    return layers.reverse().reduce((below, [top, share]) => over(top, below, share), [255, 255, 255]);
  };
  const found = [];
  const walk = document.createTreeWalker(document.getElementById("root"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), element = walk.currentNode.parentElement;
    if (!text || ["STYLE", "style", "title", "OPTION"].includes(element.tagName)) continue;
    const r = element.getBoundingClientRect();
    if (!r.width || !r.height || element.disabled) continue;
    const style = getComputedStyle(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const paper = ground(element);
    found.push([ratio(over(ink, paper, ink[3] * fade(element)), paper), text.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
"""

_TAB_STOPS = """
() => [...document.querySelectorAll("#root button, #root input, #root select, #root summary, #root [tabindex='0']")]
  .filter((e) => !e.disabled && e.checkVisibility() && e.getBoundingClientRect().width > 0).length
"""

# What has the focus: a number of its own, and whether the reader sees that it has it.
_FOCUS = """
() => {
  const e = document.activeElement;
  if (!document.getElementById("root").contains(e)) return null;
  window.stops ??= new Map();
  if (!window.stops.has(e)) window.stops.set(e, window.stops.size);
  const style = getComputedStyle(e), rect = e.tagName === "g" ? e.querySelector(":scope > rect:last-of-type") : null;
  const rects = e.tagName === "g" ? [...e.children].filter((c) => c.tagName === "rect") : [];
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const ringed = rects.some((each) => parseFloat(getComputedStyle(each).strokeWidth) >= 3);
  return [window.stops.get(e), outlined || ringed, (e.getAttribute("aria-label") ?? e.textContent ?? e.tagName).slice(0, 40)];
}
"""

_MOVING = """
() => [...document.querySelectorAll("#root, #root *")].filter((e) => {
  const s = getComputedStyle(e);
  return s.animationName !== "none" || s.transitionDuration.split(",").some((d) => parseFloat(d) > 0);
}).map((e) => e.className.baseVal ?? e.className)
"""


@contextlib.contextmanager
def browsing_pages(executable):
    """Yield a tab; `tab.asked` lists what it fetched, and dialogs that it opened."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.asked = []
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.on("dialog", lambda dialog: (tab.asked.append("dialog"), dialog.dismiss()))
        tab.on("pageerror", lambda error: tab.asked.append(f"error: {error}"))
        yield tab
        browser.close()


def mount(tab, name, state, theme="light"):
    """Show a widget's page alone, in JupyterLab's colours."""
    tab.emulate_media(color_scheme=theme)
    is_light = str(theme == "light").lower()
    tab.set_content(
        f"<!DOCTYPE html><style>{theme_variables(theme)}{html.static(f'{name}.css')}"
        "body{margin:0;background:var(--jp-layout-color0)}</style>"
        f"<body data-jp-theme-light={is_light}><div id=root></div></body>"
    )
    named = f"{html.script(name, *PARTS.get(name, ()))}\n//# sourceURL={name}.js"
    source = b64encode(named.encode()).decode()
    tab.evaluate(_MOUNT, [f"data:text/javascript;base64,{source}", state])


def theme_variables(theme):
    """Return JupyterLab's colours as CSS, from where it is installed."""
    path = Path(sys.prefix) / _THEME_FILES.format(theme)
    if not path.exists():
        pytest.skip("JupyterLab is not installed")
    return "".join(re.findall(r":root\s*\{[^}]*\}", path.read_text("utf-8")))


def tell(tab, **changes):
    """Change traits, as the kernel does."""
    tab.evaluate("changes => window.model.tell(changes)", changes)


def contrasts(tab):
    """Return the contrast of each text that is seen, smallest first."""
    return tab.evaluate(_CONTRASTS)


def unnamed(tab):
    """Return what a screen reader would have no name for, by role."""
    session = tab.context.new_cdp_session(tab)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    wanted = {
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "spinbutton",
        "image",
        "img",
    }
    wanted |= {"application", "region", "progressbar", "checkbox", "DisclosureTriangle"}
    return [
        json.dumps(node.get("properties", ""))[:80] + node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in wanted
        and not node.get("name", {}).get("value", "").strip()
    ]


def walked(tab):
    """Walk through the page with Tab; return how many stops it has, and what was seen at each."""
    count = tab.evaluate(_TAB_STOPS)
    tab.evaluate("() => { document.activeElement.blur(); window.stops = new Map(); }")
    seen = {}
    for _ in range(count + 3):
        tab.keyboard.press("Tab")
        found = tab.evaluate(_FOCUS)
        if found is not None:
            seen[found[0]] = found[1:]
    return count, list(seen.values())


def moving(tab):
    """Return what moves for a reader who asked for less motion."""
    tab.emulate_media(reduced_motion="reduce")
    return tab.evaluate(_MOVING)
