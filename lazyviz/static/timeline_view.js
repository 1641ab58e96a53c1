// The page of lazyviz.widgets.timeline_view.

function render({ model, el }) {
  const root = element("div", "lzt-box");
  keepKeys(root);
  el.append(root);
  const [svg] = safe(model.get("svg"), "image/svg+xml");
  for (const each of svg.querySelectorAll("style")) each.remove(); // the widget's own follows the theme
  zoomable(svg, root);
  const show = hideTwins(model, el);
  return show;
}

export default { render };
