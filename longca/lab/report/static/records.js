// The table of records: filters, paging, order, and one record in full.
const several = (name) => new Set(records.map((record) => record[name])).size > 1;
const GRAVITY = ["ok", "unsupported", "unavailable", "oom", "timeout", "error", "implausible", "incorrect"];
const COLUMNS = [
  { title: "Cell", key: (r) => r.anchor, show: (r) => element("button", { type: "button", class: "open", "aria-expanded": "false" }, r.cell_id.slice(0, 8)) },
  { title: "Method", key: (r) => r.method, show: (r) => method(r.method) },
  { title: "Ranks", key: (r) => r.world, num: true, when: several("world") },
  { title: "Mask", key: (r) => r.mask_label, show: (r) => element("span", {}, picture(r.mask), r.mask_label) },
  { title: "Length", key: (r) => r.seqlen, show: (r) => length(r.seqlen), num: true },
  { title: "Heads", key: (r) => r.heads, when: several("heads") },
  { title: "D", key: (r) => r.head_dim, num: true, when: several("head_dim") },
  { title: "Type", key: (r) => r.dtype, when: several("dtype") },
  { title: "Device", key: (r) => r.device, when: several("device") },
  { title: "Seed", key: (r) => r.seed, num: true, when: several("seed") },
  { title: "Dir.", key: (r) => r.direction },
  { title: "Status", key: (r) => GRAVITY.indexOf(r.status), show: (r) => element("span", { class: "status" }, icon(r.status), r.status) },
  { title: rate.name, key: (r) => r.tflops_per_device, show: (r) => number(scaled(r.tflops_per_device)), num: true, high: true, timed: true },
  { title: "Median ms", key: (r) => r.time_ms_median, num: true, timed: true },
  { title: "% ceiling", key: (r) => r.ceiling_percent, show: (r) => number(r.ceiling_percent, 2), num: true, high: true, timed: true, when: records.some((record) => record.ceiling_percent !== null) },
  { title: "IQR", key: (r) => r.noise, show: (r) => `${percent(r.noise)}${{ rising: " ↗", falling: " ↘" }[r.drift] ?? ""}`, num: true, timed: true },
  { title: "n", key: (r) => r.num_samples, num: true, timed: true },
  { title: "Memory", key: (r) => r.peak_bytes, show: (r) => bytes(r.peak_bytes), num: true, timed: true },
  { title: "Error/budget", key: (r) => r.budget_ratio, show: (r) => percent(r.budget_ratio), num: true, high: true },
].filter((column) => column.when !== false);
const FILTERS = {  // name → [label, value of a record, value to order by]
  kind: ["Kind", (r) => r.kind], method: ["Method", (r) => r.method], mask: ["Mask", (r) => r.mask_label],
  seqlen: ["Length", (r) => length(r.seqlen), (r) => r.seqlen], heads: ["Heads", (r) => r.heads], world: ["Ranks", (r) => String(r.world), (r) => r.world],
  direction: ["Direction", (r) => r.direction], seed: ["Seed", (r) => String(r.seed), (r) => r.seed],
  status: ["Status", (r) => r.status, (r) => GRAVITY.indexOf(r.status)],
};
const PAGE = 25;
let sort = { column: -1, down: false }, first = 0, chosen = records;

const form = $("#filters"), head = $("#table thead tr"), body = $("#table tbody");
const names = Object.keys(FILTERS).filter((name) => new Set(records.map(FILTERS[name][1])).size > 1);
const checked = (name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value);
for (const name of names) {  // a list of boxes for each column that has several values
  const [label, value, order = value] = FILTERS[name];
  const options = [...new Map(records.map((r) => [value(r), order(r)]))];
  options.sort(([, a], [, b]) => (typeof a === "number" ? a - b : 0));
  const list = element("div", {}, ...options.map(([option]) => element("label", {}, element("input", { type: "checkbox", name, value: option }),
    name === "method" ? method(option) : option)));
  const filter = element("details", { class: "filter", "data-filter": name }, element("summary", {}, label, element("b")), list);
  $("#boxes").append(filter);
}
const words = () => form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
document.addEventListener("click", (event) => {
  for (const open of form.querySelectorAll("details[open]")) if (!open.contains(event.target)) open.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const open of form.querySelectorAll("details[open]")) open.open = false;
});
COLUMNS.forEach((column, index) => {
  const button = element("button", { type: "button" }, column.title);
  button.addEventListener("click", () => {
    const down = column.high === true;
    sort = sort.column === index ? (sort.down === down ? { column: index, down: !down } : { column: -1, down: false }) : { column: index, down };
    first = 0;
    store();
    draw();
  });
  head.append(element("th", { scope: "col", class: column.num ? "num" : "" }, button));
});

const compare = (a, b) => {
  const empty = (value) => value === null || value === "";
  if (empty(a) || empty(b)) return empty(a) - empty(b) || 0;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return sort.down ? -order : order;
};
const draw = () => {
  chosen = records;
  for (const name of names) {
    const wanted = checked(name), shown = form.querySelector(`[data-filter="${name}"] b`);
    shown.textContent = wanted.length > 1 ? ` ${wanted.length}` : wanted.length ? ` ${wanted[0]}` : "";
    if (wanted.length) chosen = chosen.filter((r) => wanted.includes(FILTERS[name][1](r)));
  }
  if (words().length) {
    chosen = chosen.filter((r) => {
      const text = Object.values(r).filter((value) => typeof value === "string").join(" ").toLowerCase();
      return words().every((word) => text.includes(word));
    });
  }
  if (sort.column >= 0) chosen = [...chosen].sort((a, b) => compare(COLUMNS[sort.column].key(a), COLUMNS[sort.column].key(b)));
  [...head.children].forEach((cell, index) => {
    if (index === sort.column) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  body.replaceChildren(...chosen.slice(first, first + PAGE).map(line));
  const many = (count) => count.toLocaleString("en-US");
  $("#count").textContent = `${many(chosen.length)} of ${many(records.length)} records${facts.all > records.length ? ` here, ${many(facts.all)} in all` : ""}. Open a cell for its samples, clocks, machine, code and command.`;
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
    const value = column.key(record);
    const content = column.show ? column.show(record) : Number.isInteger(value) ? String(value) : number(value, 4);
    row.append(element("td", { class: column.num ? "num" : "" }, content));
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
  const list = (title, facts) => {
    const entries = Object.entries(facts).filter(([, value]) => value && value !== NONE);
    if (!entries.length) return null;
    const dl = element("dl");
    for (const [name, value] of entries) dl.append(element("dt", {}, name), element("dd", {}, value));
    return element("div", {}, element("h4", {}, title), dl);
  };
  const speed = (value) => (value === null ? NONE : `${number(scaled(value))} ${rate.name}`);
  groups.append(...[
    list("Cell", { id: record.cell_id, mask: record.mask_label, parameters: record.mask_params, drawn: record.drawn, corpus: record.corpus,
      heads: `${record.heads}, D ${record.head_dim}, ${record.dtype}`, density: number(record.density), FLOP: number(record.flops, 4),
      "nominal FLOP": number(record.nominal_flops, 4),
      "mask digest": record.mask_digest }),
    list("Time", record.num_samples === null ? {} : { median: `${number(record.time_ms_median, 4)} ms`, quartiles: record.time_ms_q1 && `${number(record.time_ms_q1, 4)}–${number(record.time_ms_q3, 4)} ms`,
      "per device": speed(record.tflops_per_device) + (record.tflops_per_device_low
        ? ` (${number(scaled(record.tflops_per_device_low))}–${number(scaled(record.tflops_per_device_high))})` : ""),
      "of the ceiling": record.ceiling_percent !== null && `${number(record.ceiling_percent)} % of a matrix product's ${speed(record.ceiling_tflops)}`,
      "of the maker's peak": record.peak_percent !== null && `${number(record.peak_percent)} %`,
      "by nominal FLOP": record.nominal_tflops !== null && speed(record.nominal_tflops),
      copied: record.gb_per_s !== null && `${number(record.gb_per_s)} GB/s`,
      "made to last": record.nominal_ms !== null && `${number(record.nominal_ms)} ms`,
      "on the host": record.enqueue_ms !== null && `${number(record.enqueue_ms, 4)} ms a call`,
      "mean over ranks": record.world > 1 ? `${number(record.time_ms_mean_ranks, 4)} ms` : "",
      "95 % interval": record.time_ms_low && `${number(record.time_ms_low, 5)}–${number(record.time_ms_high, 5)} ms, ±${number(record.precision_percent, 2)} %`,
      drift: { rising: "the samples get slower", falling: "the samples get faster", none: "none", unknown: "unknown: fewer than ten samples" }[record.drift]
        + (["rising", "falling"].includes(record.drift) && record.drift_percent !== null ? `, by ${number(Math.abs(record.drift_percent), 2)} %` : ""),
      cycles: record.mega_cycles_median && `${number(record.mega_cycles_median, 4)} million`,
      rests: record.duty && `busy for at most ${number(100 * record.duty)} % of the time`,
      samples: record.warmup === null ? record.num_samples : `${record.num_samples} after ${record.warmup} warm-up${record.warmup === 1 ? "" : "s"}${warmed(record)}, ${record.timer}, ended by ${record.stopped}` }),
    list("Result", { status: record.status, reason: record.reason, notes: record.notes, "compared with": record.error_reference && `${record.error_reference}, ${record.error_scope}`,
      "worst tensor": record.error_tensor && `${record.error_tensor}: ${number(record.error)} of ${number(record.error_budget)} allowed` }),
    list("Memory and costs", { "peak of a call": bytes(record.peak_bytes), "absolute peak": bytes(record.absolute_peak_bytes), counted: record.memory_source, costs: record.costs }),
    list("Ranks", record.world === 1 || record.num_samples === null ? {} : { "slowest rank": record.slowest_rank !== null && `rank ${record.slowest_rank}, ${number(record.straggler_percent)} % above the median rank`,
      "of the kernel alone": record.single_percent !== null && `${number(record.single_percent)} % of ${speed(record.single_tflops)}`,
      "moved by a rank": record.moved_bytes !== null && `${bytes(record.moved_bytes)}${record.formula_bytes === null ? "" : `; by the formula ${bytes(record.formula_bytes)}`}`,
      "above its shards": bytes(record.above_shards_bytes), permuting: record.permute_ms !== null && `${number(record.permute_ms)} ms`, machines: record.num_nodes }),
    list("State of the GPU", { "SM clock": record.sm_clock_mhz_median && `${number(record.sm_clock_mhz_median, 4)} MHz`, "held back by": record.clock_event_reasons,
      power: record.power_w_median && `${number(record.power_w_median)} W`, temperature: record.temperature_c_max && `${number(record.temperature_c_max)} °C` }),
    list("Where and when", { device: record.device, host: record.hostname, torch: record.torch, CUDA: record.cuda, commit: record.git_sha?.slice(0, 12),
      method: record.method_version, run: record.run_id, started: record.started_at, took: record.seconds && `${number(record.seconds)} s` }),
  ].filter(Boolean));
  if (record.samples_ms?.length > 1) groups.append(sparkline(record.samples_ms));
  cell.append(groups);
  if (record.log) cell.append(element("pre", {}, record.log));
  const command = repeat(record);
  if (command) {
    const copy = element("button", { type: "button" }, "Copy");
    copy.addEventListener("click", () => copied(copy, command));
    const alike = ["study", "method", "mask", "seqlen", "world", "direction", "seed"];
    const others = records.filter((r) => alike.every((name) => r[name] === record[name])).length - 1;
    const again = others ? `Measure it again, with ${others} other${others > 1 ? "s" : ""} that differ in heads or parameters: ` : "Measure it again: ";
    cell.append(element("p", { class: "repeat" }, again, element("code", {}, command), " ", copy));
  }
  const link = element("a", { href: `#cell-${record.anchor}` }, "Link to this record");
  cell.append(element("p", { class: "caption", style: "padding: 0 16px" }, link));
  row.after(element("tr", { class: "opened" }, cell));
};
const warmed = (record) => {  // how long a record's warm-up calls took, and if they made the device steady
  if (record.warm_seconds === null) return "";
  const verdict = { true: ", steady", false: ", not steady yet" }[record.steady] ?? "";
  return ` in ${number(record.warm_seconds, 2)} s${verdict}`;
};
const repeat = (record) => {  // the command that measures this cell again
  if (!record.study) return "";
  const [strategy, kernel] = record.method.includes("+") ? record.method.split("+") : ["", record.method];
  const parts = ["longca run", record.study, "-k", kernel, "-c", strategy || "'!*'", "-m", record.mask, "-s", length(record.seqlen)];
  if (strategy) parts.push("-w", record.world);
  parts.push("-d", record.direction, "--seed", record.seed, "--force");
  return parts.join(" ");
};
const sparkline = (samples) => {
  const low = Math.min(...samples), high = Math.max(...samples), width = 300, height = 46;
  const at = samples.map((value, index) => [4 + index * (width - 8) / (samples.length - 1), height - 5 - (height - 10) * (value - low) / (high - low || 1)]);
  const box = element("div", {}, element("h4", {}, `Samples in the order measured: ${number(low, 4)} to ${number(high, 4)} ms`));
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
    notice(`There is no record '${decodeURIComponent(rest)}' on this page: the link is of other records, or it is incomplete.`);
    scrollTo(0, 0);
    return;
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
    else if (!(name in FILTERS) || !records.some((r) => FILTERS[name][1](r) === value)) unknown.push(`${name}=${value}`);
  }
  draw();
  $("#records").scrollIntoView();
  if (unknown.length) notice(`The address asks for records with ${unknown.join(", ")}; there are none on this page.`);
}]);
const clear = () => {
  for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = false;
  form.elements.q.value = "";
  sort = { column: -1, down: false };
  first = 0;
};
const copied = async (button, text) => {
  const was = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it by hand";
  }
  setTimeout(() => { button.textContent = was; }, 2000);
};
form.addEventListener("input", () => { first = 0; store(); draw(); });
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => { event.preventDefault(); clear(); store(); draw(); });
$("#copy").addEventListener("click", (event) => copied(event.target, location.href));
draw();
