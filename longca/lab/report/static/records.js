// The table of records: filters, paging, order, and one record in full.
const COLUMNS = facts.columns, FILTERS = Object.fromEntries(facts.filters.map((filter) => [filter.name, filter.column]));
const shownIn = {  // what more than a text stands in a column of this kind
  cell: (record) => element("button", { type: "button", class: "open", "aria-expanded": "false" }, record.cell_id.slice(0, 8)),
  method: (record) => methodLink(record.method),
  mask: (record) => element("span", {}, picture(record.mask), record.mask_label),
  status: (record) => element("span", { class: "status" }, icon(record.status), record.status),
};
const keyOf = (column) => (record) => (column.order ? record[column.order] : fill(column.text, record));
const PAGE = 25;
let sort = { column: -1, down: false }, first = 0, chosen = records;

const form = $("#filters"), head = $("#table thead tr"), body = $("#table tbody");
const choices = facts.filters.filter((filter) => filter.is_choice), names = choices.map((filter) => filter.name);
const checked = (name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value);
for (const { name, label, options } of choices) {  // a list of boxes for each column that has several values
  const list = element("div", {}, ...options.map((option) => element("label", {}, element("input", { type: "checkbox", name, value: option }),
    name === "method" ? method(option) : option)));
  const filter = element("details", { class: "filter", "data-filter": name }, element("summary", {}, label, element("b")), list);
  $("#boxes").append(filter);
}
const words = () => form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
COLUMNS.forEach((column, index) => {
  const button = element("button", { type: "button" }, column.title);
  button.addEventListener("click", () => {
    const down = column.high === true;
    sort = sort.column === index ? (sort.down === down ? { column: index, down: !down } : { column: -1, down: false }) : { column: index, down };
    first = 0;
    store();
    draw();
  });
  head.append(element("th", { scope: "col", class: column.number ? "num" : "" }, button));
});

const compare = (a, b) => {
  const empty = (value) => value === null || value === "";
  if (empty(a) || empty(b)) return empty(a) - empty(b) || 0;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return sort.down ? -order : order;
};
const draw = () => {
  chosen = records.filter((record) => isPicked(record.method));
  for (const name of names) {
    const wanted = checked(name), shown = form.querySelector(`[data-filter="${name}"] b`);
    shown.textContent = wanted.length > 1 ? ` ${wanted.length}` : wanted.length ? ` ${wanted[0]}` : "";
    if (wanted.length) chosen = chosen.filter((r) => wanted.includes(r[FILTERS[name]]));
  }
  if (words().length) {
    chosen = chosen.filter((r) => {
      const text = facts.searched.map((name) => r[name] ?? "").join(" ").toLowerCase();
      return words().every((word) => text.includes(word));
    });
  }
  const key = sort.column >= 0 && keyOf(COLUMNS[sort.column]);
  if (key) chosen = [...chosen].sort((a, b) => compare(key(a), key(b)));
  [...head.children].forEach((cell, index) => {
    if (index === sort.column) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  body.replaceChildren(...chosen.slice(first, first + PAGE).map(line));
  const many = (count) => count.toLocaleString("en-US");
  $("#count").textContent = fill(facts.counted, { chosen: many(chosen.length), here: many(records.length), all: facts.all > records.length ? many(facts.all) : "" });
  $("#paging").hidden = chosen.length <= PAGE;
  $("#place").textContent = `${many(first + 1)}–${many(Math.min(first + PAGE, chosen.length))} of ${many(chosen.length)}`;
  $("#before").disabled = first === 0;
  $("#after").disabled = first + PAGE >= chosen.length;
};
for (const [id, step] of [["#before", -PAGE], ["#after", PAGE]]) {
  $(id).addEventListener("click", () => {
    first = Math.max(0, first + step);
    draw();
  });
}
const line = (record) => {
  const row = element("tr", { class: "row", id: `cell-${record.anchor}` });
  const timed = COLUMNS.filter((column) => column.timed);
  for (const column of COLUMNS) {
    if (record.status !== "ok" && column.timed) {  // one cell with the reason in place of the numbers that are not there
      if (column === timed[0]) row.append(element("td", { class: "why", colspan: timed.length }, record.reason));
      continue;
    }
    const content = shownIn[column.kind]?.(record) ?? (fill(column.text, record) || facts.none);
    row.append(element("td", { class: column.number ? "num" : "" }, content));
  }
  row.addEventListener("click", (event) => {
    if (event.target.closest("a") || String(getSelection())) return;
    toggle(row, record);
  });
  return row;
};

// ---- one record in full
const toggle = (row, record, open = row.nextElementSibling?.className !== "opened") => {
  if (row.nextElementSibling?.className === "opened") row.nextElementSibling.remove();
  row.querySelector(".open").setAttribute("aria-expanded", String(open));
  if (!open) return;
  const cell = element("td", { class: "details", colspan: COLUMNS.length });
  const groups = element("div", { class: "groups" });
  for (const [title, entries] of facts.details) {
    const dl = element("dl");
    for (const [name, template] of entries) {
      const text = fill(template, record);
      if (text) dl.append(element("dt", {}, name), element("dd", {}, text));
    }
    if (dl.children.length) groups.append(element("div", {}, element("h4", {}, title), dl));
  }
  if (record.samples?.length) groups.append(sparkline(record));
  cell.append(groups);
  if (record.log) cell.append(element("pre", {}, record.log));
  const command = fill(facts.command, record);
  if (command) {
    const copy = element("button", { type: "button" }, "Copy");
    copy.addEventListener("click", () => copied(copy, command));
    cell.append(element("p", { class: "repeat" }, record.again, element("code", {}, command), " ", copy));
  }
  const link = element("a", { href: `#cell-${record.anchor}` }, "Link to this record");
  cell.append(element("p", { class: "caption", style: "padding: 0 16px" }, link));
  row.after(element("tr", { class: "opened" }, cell));
};
const sparkline = (record) => {
  const { samples } = record;
  const low = Math.min(...samples), high = Math.max(...samples), width = 300, height = 46;
  const at = samples.map((value, index) => [4 + index * (width - 8) / (samples.length - 1), height - 5 - (height - 10) * (value - low) / (high - low || 1)]);
  const box = element("div", {}, element("h4", {}, fill(facts.sampled, record)));
  box.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="Samples in order"><polyline fill="none" stroke="currentColor" `
    + `stroke-width="1.2" points="${at.map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ")}"/>`
    + at.map(([x, y]) => `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="2" fill="currentColor"/>`).join("") + "</svg>");
  return box;
};


// ---- the address of the table and of one record
const store = () => {
  const query = new URLSearchParams(names.flatMap((name) => checked(name).map((value) => [name, value])));
  if (form.elements.q.value) query.set("q", form.elements.q.value);
  if (sort.column >= 0) query.set("sort", (sort.down ? "-" : "") + COLUMNS[sort.column].title);
  const text = query.toString();
  address(text ? `#records?${text}` : "#records");
};
routes.push(["cell-", (rest) => {
  const record = records.find((r) => r.anchor === decodeURIComponent(rest));
  if (!record) {
    notice(fill(facts.notices.record, { asked: decodeURIComponent(rest) }));
    scrollTo(0, 0);
    return;
  }
  if (!isPicked(record.method)) {
    picked = new Set();
    address(`#${place}`);
    apply();
  }
  if (!chosen.includes(record)) {
    clear();
    draw();
  }
  first = Math.floor(chosen.indexOf(record) / PAGE) * PAGE;
  draw();
  const row = document.getElementById(`cell-${record.anchor}`);
  toggle(row, record, true);
  row.scrollIntoView({ block: "center" });
  row.querySelector(".open").focus({ preventScroll: true });
}]);
routes.push(["records?", (rest) => {
  const query = new URLSearchParams(rest), unknown = [];
  clear();
  for (const [name, value] of query) {
    const box = [...form.querySelectorAll("input[type=checkbox]")].find((one) => one.name === name && one.value === value);
    if (box) box.checked = true;
    else if (name === "q") form.elements.q.value = value;
    else if (name === "sort") sort = { column: COLUMNS.findIndex((column) => column.title === value.replace(/^-/, "")), down: value.startsWith("-") };
    else if (!(name in FILTERS) || !records.some((r) => r[FILTERS[name]] === value)) unknown.push(`${name}=${value}`);
  }
  draw();
  $("#records").scrollIntoView();
  if (unknown.length) notice(fill(facts.notices.records, { asked: unknown.join(", ") }));
}]);
const clear = () => {
  for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = false;
  form.elements.q.value = "";
  sort = { column: -1, down: false };
  first = 0;
};
form.addEventListener("input", () => { first = 0; store(); draw(); });
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => { event.preventDefault(); clear(); store(); draw(); });
$("#copy").addEventListener("click", (event) => copied(event.target, location.href));
drawnByScript.push(() => { first = 0; draw(); });
draw();
