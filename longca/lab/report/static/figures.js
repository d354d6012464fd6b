// Live figures: tips on points, the way to their records, legends that hide and light up lines, and enlarged panels.
const { merged } = data;  // points of several cells, or of some that are not here
const mergedTexts = new Map(objects(merged.columns, merged.marks.length).map((texts, index) => [merged.marks[index], texts]));
const textsOf = (point) => mergedTexts.get(point.key) || records[point.rows[0]];
const told = (point) => {
  const texts = textsOf(point);
  return fill(texts.ms ? facts.tips.timed : facts.tips.other, texts);
};

const blanksOf = (figure) => [...figure?.querySelectorAll(".blanks li") ?? []].filter((entry) => isPicked(entry.dataset.method));
const blankPanel = (svg, panel) => {  // what a panel has no marks of, and why
  const index = String([...svg.querySelectorAll(".panel")].indexOf(panel));
  const here = blanksOf(svg.closest("figure")).filter((entry) => entry.dataset.panels.split(" ").includes(index));
  return here.length ? [facts.blanks.panel, ...here.map(({ dataset: { method, why } }) => fill(facts.blanks.method, { method, why }))].join("\n") : "";
};
const aboutKey = (key) => {  // what a method is, and where a figure has no marks of it
  const here = blanksOf(key.closest("figure")).filter((entry) => entry.dataset.method === key.dataset.method);
  const said = here.map(({ dataset: { why, panels } }) => fill(facts.blanks.count, { why, count: String(panels.split(" ").length) }));
  return [facts.about[key.dataset.method], ...(said.length ? [facts.blanks.key, ...said] : [])].filter(Boolean).join("\n");
};
const pointsOf = (svg) => {
  const points = [];
  for (const group of svg.querySelectorAll(".points[data-rows]")) {
    const marks = [...group.querySelectorAll("use")];
    facts.rows[group.dataset.rows].split(",").forEach((rows, index) => {
      const here = rows.split("/")[0];  // "3+7/50": two of the point's 50 cells are on the page
      if (marks[index] && rows) points.push({ mark: marks[index], group, panel: group.closest(".panel") ?? svg, key: rows, rows: here.split("+").map(Number), x: Number(marks[index].getAttribute("x")), y: Number(marks[index].getAttribute("y")) });
    });
  }
  return points;
};
const within = (event, panel) => new DOMPoint(event.clientX, event.clientY).matrixTransform(panel.getScreenCTM().inverse());  // panels move in narrow windows
const alive = (box) => {
  const svg = box.querySelector("svg[role=img]"), points = pointsOf(svg);
  if (!points.length) return;
  const panels = [...new Set(points.map((point) => point.panel))];
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Points of the figure: arrows go from one to the next, Enter opens its record, plus enlarges its panel");
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  for (const [name, value] of Object.entries({ r: 6, class: "ring", visibility: "hidden" })) ring.setAttribute(name, value);
  let at = null;
  const go = (point) => {
    at = point;
    ring.setAttribute("visibility", point ? "visible" : "hidden");
    for (const group of svg.querySelectorAll(".points.under")) group.classList.remove("under");
    if (!point) { hide(); return; }
    point.panel.append(ring);
    ring.setAttribute("cx", point.x);
    ring.setAttribute("cy", point.y);
    light(svg, point.group.dataset.method);
    show(told(point), ring.getBoundingClientRect());
  };
  const visible = (point) => !point.group.matches(".off, .unpicked");
  const nearest = (event) => {
    const reach = 12, places = new Map(panels.map((panel) => [panel, within(event, panel)]));
    let best = null, least = reach * reach;
    for (const point of points) {
      const { x, y } = places.get(point.panel);
      const away = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (away < least && visible(point)) [best, least] = [point, away];
    }
    return best;
  };
  const leave = () => { go(null); light(svg, null); };
  const open = (point) => {
    const record = records[point.rows[0]], home = homeOf(record);
    if (home === undefined) return;
    $("dialog[open]")?.close();
    location.href = `${home}#cell-${record.anchor}`;
  };
  box.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    svg.style.cursor = found ? (homeOf(records[found.rows[0]]) === undefined ? "" : "pointer") : event.target.closest(".panel") && box.matches(".drawing") ? "zoom-in" : "";
    if (found !== at) found ? go(found) : leave();
    const title = !found && event.target.closest(".title"), blank = title && blankPanel(svg, title.closest(".panel"));
    if (blank) show(blank, title.getBoundingClientRect());
    else if (!found) hide();
  });
  box.addEventListener("pointerleave", leave);
  box.addEventListener("click", (event) => {
    const found = nearest(event);
    if (found) open(found);
    else if (box.matches(".drawing")) enlarge(panelAt(svg, event), svg);
  });
  box.addEventListener("focusout", leave);
  box.addEventListener("keydown", (event) => {
    const shown = points.filter(visible);
    if (event.key === "Enter" && at) open(at);
    if (event.key === "+" && at?.panel.matches(".panel") && box.matches(".drawing")) enlarge(at.panel, svg);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !shown.length) return;
    event.preventDefault();
    if (!at) { go(shown[0]); return; }
    const place = shown.indexOf(at);
    let next = shown[(place + step + shown.length) % shown.length];
    if (event.key.endsWith("Up") || event.key.endsWith("Down")) {  // the next line's point that is nearest in x
      const groups = [...new Set(shown.map((point) => point.group))];
      const other = groups[(groups.indexOf(at.group) + step + groups.length) % groups.length];
      next = shown.filter((point) => point.group === other).sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x))[0];
    }
    go(next);
    ring.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(told(next), ring.getBoundingClientRect());
  });
};

// ---- lines that light up: a grey one takes its own colour
const light = (svg, name) => {
  for (const group of svg.querySelectorAll(".points")) group.classList.toggle("under", group.dataset.method === name);
};
const legend = (box) => {  // entries that hide their lines, and light them up
  const drawings = [...box.querySelectorAll("svg[role=img]")];
  for (const key of box.querySelectorAll("button.key")) {
    const name = key.dataset.method;
    key.addEventListener("click", () => {
      const on = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(on));
      for (const svg of drawings) for (const group of svg.querySelectorAll(".points")) if (group.dataset.method === name) group.classList.toggle("off", !on);
    });
    for (const [event, lit] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) key.addEventListener(event, () => { for (const svg of drawings) light(svg, lit ? name : null); });
  }
};
for (const figure of document.querySelectorAll("figure")) {
  for (const box of figure.querySelectorAll(".drawing")) alive(box);
  legend(figure);
}

// ---- one panel, enlarged
const frame = (panel) => panel.getBBox();
const panelAt = (svg, event) => [...svg.querySelectorAll(".panel")].find((panel) => {
  const box = frame(panel), { x, y } = within(event, panel);
  return x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
});
const enlarge = (panel, svg) => {
  if (!panel) return;
  const dialog = $("#large"), copy = svg.cloneNode(true);
  const index = [...svg.querySelectorAll(".panel")].indexOf(panel);
  [...copy.querySelectorAll(".panel")].forEach((other, place) => { if (place !== index) other.remove(); });
  copy.querySelectorAll(".ring, .title").forEach((part) => part.remove());
  const room = element("div", { tabindex: "0" }), shown = new Set([...copy.querySelectorAll(".points")].map((group) => group.dataset.method));
  const keys = svg.closest("figure").querySelector(".keys")?.cloneNode(true);
  for (const key of keys?.querySelectorAll("button") || []) if (!shown.has(key.dataset.method)) key.remove();
  room.append(...(keys ? [keys] : []), copy);
  dialog.querySelector("h3").textContent = panel.dataset.panel;
  dialog.querySelector("div").replaceWith(room);
  dialog.showModal();
  let size = 1;  // so that letters and marks do not grow with the panel; nor do they, in a small window, beyond their room
  for (let round = 0; round < 2; round++) {  // letters are part of the frame
    room.style.setProperty("--k", size);
    const box = frame(copy.querySelector(".panel"));
    copy.setAttribute("viewBox", `${box.x - 4} ${box.y - 4} ${box.width + 12} ${box.height + 6}`);
    copy.style.minWidth = `${box.width}px`;
    size = Math.min(1.35 / copy.getScreenCTM().a, 1);
  }
  room.style.setProperty("--k", size);
  for (const mark of copy.querySelectorAll("use")) {
    const [x, y] = ["x", "y"].map((name) => Number(mark.getAttribute(name)));
    mark.setAttribute("transform", `translate(${x * (1 - size)} ${y * (1 - size)}) scale(${size})`);
  }
  alive(room);
  legend(room);
};
$("#large").addEventListener("click", (event) => { if (event.target === $("#large")) $("#large").close(); });
$("#large").addEventListener("close", hide);
