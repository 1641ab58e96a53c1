// In a page of ours that runs scripts the static timelines zoom; without, they stay as they are.

for (const picture of document.querySelectorAll(".lazyviz-timeline-static img")) {
  const bytes = Uint8Array.from(atob(picture.src.split(",")[1]), (letter) => letter.charCodeAt(0));
  const [svg] = safe(new TextDecoder().decode(bytes), "image/svg+xml");
  if (!svg.dataset.spans) continue; // it has its drawing alone
  const host = element("div", "lzt-box");
  picture.parentElement.replaceWith(host);
  zoomable(svg, host);
}
