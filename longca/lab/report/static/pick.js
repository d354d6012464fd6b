// The methods to compare: one choice for all figures and tables. Only the address holds it: methods=band,fa3.
const comparable = facts.pick.methods;
let picked = new Set();  // empty: all
const has = (names, part) => names.some((name) => name === part || name.split("+").includes(part));
const isPicked = (name) => !picked.size || picked.has(name)  // a strategy or a kernel alone stands for all methods that it is part of
  || (comparable.includes(name) ? false : !has(comparable, name) || has([...picked], name));
const drawnByScript = [];  // functions that draw again what depends on the choice
const panel = $("#pick"), shownAs = $("#picked");
for (const name of comparable) {
  panel.querySelector("div").append(element("label", {}, element("input", { type: "checkbox", value: name }), method(name)));
}
panel.hidden = comparable.length < 2;

for (const table of document.querySelectorAll("table")) {  // cells of a column belong to the method of its heading
  const ends = [];  // [columns between the heading's end and the table's, columns, method]; rows may begin with fewer cells
  const headings = [...(table.tHead?.rows[0]?.cells ?? [])].reverse();
  let after = 0;
  for (const { colSpan, dataset } of headings) {
    if (dataset.method) ends.push([after, colSpan, dataset.method]);
    after += colSpan;
  }
  if (ends.length) for (const row of [...table.rows].slice(1)) {
    const cells = [...row.cells].reverse();
    for (const [start, count, name] of ends) for (const cell of cells.slice(start, start + count)) cell.dataset.method = name;
  }
}
// ---- cells with a tip: Tab comes to one of a table, arrows go on to the others
const WITH_TIP = "td[data-tip], td[data-why]";
const reach = (table) => [...table.querySelectorAll(WITH_TIP)].filter((cell) => !cell.matches(".unpicked, .unpicked *"))
  .forEach((cell, index) => { cell.tabIndex = index ? -1 : 0; });
document.addEventListener("keydown", (event) => {
  const cell = event.target, step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!cell.matches?.(WITH_TIP)) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();  // Space would scroll the page
    cell.click();
  }
  if (!step) return;
  const rows = [...cell.closest("table").rows].filter((row) => row.querySelector(WITH_TIP) && !row.matches(".unpicked"));
  let row = rows.indexOf(cell.parentElement), column = cell.cellIndex;
  event.preventDefault();
  do {
    row += step[0];
    column += step[1];
    const next = rows[row]?.cells[column];
    if (!next) return;
    if (!next.matches(WITH_TIP) || next.matches(".unpicked")) continue;
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    return;
  } while (true);
});
const apply = () => {
  document.documentElement.classList.toggle("picking", picked.size > 0);
  for (const part of document.querySelectorAll("[data-method]")) {
    part.classList.toggle("unpicked", !isPicked(part.dataset.method));
    if (part.matches(".points.faint")) part.classList.toggle("lit", picked.size > 0 && picked.has(part.dataset.method));
  }
  for (const grey of document.querySelectorAll(".keys .grey")) grey.open = picked.size > 0;
  for (const figure of document.querySelectorAll("figure")) {  // one that has none of the chosen methods says so
    const groups = [...figure.querySelectorAll(".points[data-method]")];
    figure.querySelector(".none-picked")?.remove();
    if (!groups.length || groups.some((group) => isPicked(group.dataset.method))) continue;
    figure.querySelector(".drawing")?.before(element("p", { class: "empty none-picked" }, facts.pick.none));
  }
  for (const box of panel.querySelectorAll("input")) box.checked = picked.has(box.value);
  panel.querySelector("summary b").textContent = picked.size ? fill(facts.pick.count, { count: String(picked.size), all: String(comparable.length) }) : "";
  shownAs.hidden = !picked.size;
  const chips = [...picked].map((name) => element("button", { type: "button", "data-drop": name, "aria-label": fill(facts.pick.drop, { method: name }) }, method(name), " ×"));
  shownAs.replaceChildren(...chips, element("button", { type: "button", class: "link", "data-all": "" }, facts.pick.all), element("span", { class: "sub" }, facts.pick.note));
  for (const draw of drawnByScript) draw();
  for (const table of document.querySelectorAll("table")) reach(table);
};
const pick = (names) => {
  picked = new Set(comparable.filter((name) => names.includes(name)));
  address(`#${place}`, true);
  apply();
};
panel.addEventListener("change", () => pick([...panel.querySelectorAll("input:checked")].map((box) => box.value)));
panel.querySelector("button").addEventListener("click", () => pick([]));
shownAs.addEventListener("click", ({ target }) => {
  const chip = target.closest("[data-drop]");
  if (chip) pick([...picked].filter((name) => name !== chip.dataset.drop));
  else if (target.closest("[data-all]")) pick([]);
  else return;
  (shownAs.querySelector("button") && !shownAs.hidden ? shownAs.querySelector("button") : panel.querySelector("summary")).focus();
});
const asked = (parts) => {  // the choice of an address; returns what this page does not have
  const names = parts.flatMap((part) => decoded(part).slice("methods=".length).split(",")).filter(Boolean);
  const wanted = comparable.filter((name) => names.includes(name));
  const differs = wanted.length !== picked.size || wanted.some((name) => !picked.has(name));
  picked = new Set(wanted);
  if (differs) apply();
  return names.filter((name) => !comparable.includes(name));
};
const ofChoice = () => (picked.size ? `methods=${[...picked].map(encodeURIComponent).join(",")}` : "");
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll(".filter[open]")) if (!open.contains(event.target)) open.open = false;
});
document.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && document.querySelector(".filter[open]");
  if (!open) return;
  if (open.contains(document.activeElement)) open.querySelector("summary").focus();
  open.open = false;
});
