// Files of each figure: SVG and PNG as the page shows it now, and CSV of its points where no file of the data lies beside the page.
const save = (name, address) => element("a", { download: name, href: address }).click();
const drawn = (name, values, ...parts) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
  made.append(...parts);
  return made;
};
const legendOf = (svg) => {  // the keys above a drawing that are seen, in rows above it: { parts, height }
  const box = svg.viewBox.baseVal, keys = svg.closest("figure, .exhibit").querySelectorAll(".keys .key:not([aria-pressed='false'])");
  const shown = [...keys].filter((key) => key.checkVisibility()).map((key) => ({ key, width: 26 + 5.7 * key.textContent.trim().length }));
  const rows = [];
  let end = Infinity;
  for (const { key, width } of shown) {
    if (end + width > box.width) {
      rows.push([]);
      end = 8;
    }
    rows.at(-1).push({ key, x: end });
    end += width;
  }
  const height = rows.length * 16;
  const parts = rows.flatMap((row, number) => row.map(({ key, x }) => drawn("g", {
    transform: `translate(${box.x + x + 8} ${box.y - height + 16 * number + 8})`, style: `color: ${key.style.getPropertyValue("--own") || "var(--muted)"}`, fill: "none",
  }, ...[...key.querySelector(".mark").children].map((part) => part.cloneNode(true)), drawn("text", { x: 12, y: 3, "font-size": 9, fill: "var(--ink)" }, key.textContent.trim()))));
  return { parts, height };
};
const standalone = (svg) => {  // a drawing without the page: colours as values, masks as its own symbols
  const copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  copy.setAttribute("font-family", "system-ui, sans-serif");
  copy.querySelectorAll(".ring, .points.off, .points.unpicked").forEach((part) => part.remove());
  for (const { selectorText, style } of document.querySelector("#drawn")?.sheet.cssRules ?? []) {
    for (const part of copy.querySelectorAll(selectorText)) part.style.cssText = style.cssText + part.style.cssText;
  }
  for (const group of copy.querySelectorAll(".points.lit")) {  // in its own colour, which is not that of the root
    const own = group.style.getPropertyValue("--own");
    for (const part of group.querySelectorAll("[style]")) part.style.cssText = part.style.cssText.replaceAll("var(--faint)", own);
  }
  for (const text of copy.querySelectorAll("text[style*='--own']")) text.style.fill = text.style.getPropertyValue("--own");
  for (const id of new Set([...copy.querySelectorAll("use[href^='#m-']")].map((use) => use.getAttribute("href")))) {
    copy.prepend(document.querySelector(id).cloneNode(true));
  }
  const keys = legendOf(svg), height = box.height + keys.height;
  copy.setAttribute("height", height);
  copy.setAttribute("viewBox", `${box.x} ${box.y - keys.height} ${box.width} ${height}`);
  copy.append(...keys.parts);
  copy.prepend(drawn("rect", { x: box.x, y: box.y - keys.height, width: box.width, height, fill: "var(--ground)" }));
  const root = getComputedStyle(document.documentElement), pixel = element("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const probe = document.body.appendChild(element("i"));
  const text = new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => {
    probe.style.color = root.getPropertyValue(name);
    pixel.fillStyle = getComputedStyle(probe).color;  // of any notation; other programs know few of them
    pixel.fillRect(0, 0, 1, 1);
    const [red, green, blue] = pixel.getImageData(0, 0, 1, 1).data;
    return `rgb(${red}, ${green}, ${blue})`;
  });
  probe.remove();
  return text;
};
const addressOf = (svg) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
const savePng = (name, svg) => {
  const image = new Image(), scale = 2;
  image.addEventListener("load", () => {
    const canvas = element("canvas", { width: image.naturalWidth * scale, height: image.naturalHeight * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    save(name, canvas.toDataURL("image/png"));
  });
  image.src = addressOf(svg);
};
const saveCsv = (name, svg) => {
  const columns = { panel: "panel", method: "method", mask: "mask_label", length: "seqlen", heads: "heads", direction: "direction_word",
    status: "status", [facts.unit]: "rate", ms: "ms", samples: "n", cells: "cells" };
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = pointsOf(svg).filter((point) => isPicked(point.group.dataset.method)).map((point) => {
    const texts = { ...textsOf(point), panel: point.panel?.dataset.panel ?? "", cells: point.rows.map((row) => records[row].cell_id).join(" ") };
    return Object.values(columns).map((column) => quoted((texts[column] ?? "").replaceAll(/(?<=\d),(?=\d{3})/g, ""))).join(",");
  });
  save(name, `data:text/csv;charset=utf-8,${encodeURIComponent([Object.keys(columns).join(","), ...lines, ""].join("\n"))}`);
};
for (const place of document.querySelectorAll("[data-figure]")) {
  const name = place.dataset.figure, svg = place.closest("figure, .exhibit").querySelector("svg[role=img]");
  if (!svg) continue;
  const offers = [["SVG", () => save(`${name}.svg`, addressOf(svg))], ["PNG", () => savePng(`${name}.png`, svg)]];
  if (!place.querySelector("a[href$='.csv']") && svg.querySelector("[data-rows]")) offers.push(["CSV", () => saveCsv(`${name}.csv`, svg)]);
  for (const [label, act] of offers) {
    if ([...place.querySelectorAll("a")].some((link) => link.textContent === label)) continue;
    const button = element("button", { type: "button", "aria-label": `${label} of this figure` }, label);
    button.addEventListener("click", act);
    place.append(" ", button);
  }
}
