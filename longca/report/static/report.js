// The page's behaviour: theme, tips, the table of records with its filters, and the state of all this in the address.
"use strict";
(() => {
  const $ = (selector) => document.querySelector(selector);
  const parse = (id) => JSON.parse($(id).textContent);
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  // ---- numbers, as the page writes them everywhere
  const NONE = "–";
  const number = (value, digits = 3) => {
    if (value === null || value === "") return NONE;
    if (typeof value !== "number") return String(value);
    if (value === 0) return "0";
    const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(digits)))));  // 9.96 with two digits is 10, not 10.0
    if (exponent < -4) return value.toExponential(Math.max(digits - 2, 0));
    const decimals = Math.max(digits - 1 - exponent, 0);
    return Number(value.toPrecision(digits)).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  };
  const percent = (share, digits = 2) => (typeof share === "number" ? `${number(100 * share, digits)} %` : number(share));
  const bytes = (count) => {
    if (typeof count !== "number") return NONE;
    const power = count >= 1 ? Math.min(Math.floor(Math.log2(count) / 10), 5) : 0;
    return `${number(count / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
  };
  const length = (tokens) => {
    for (const [size, suffix] of [[1048576, "M"], [1024, "K"]]) if (tokens >= size && tokens % size === 0) return tokens / size + suffix;
    return String(tokens);
  };

  // ---- the records
  const packed = parse("#data"), rate = parse("#rate"), colours = parse("#colours");
  const unpack = (pack) => {
    if (pack.values) return (row) => pack.values[row];
    return pack.names ? (row) => pack.names[pack.at[row]] : () => pack.every;
  };
  const columns = Object.entries(packed).map(([name, pack]) => [name, unpack(pack)]);
  const records = Array.from({ length: parse("#rate").count }, (_, row) => Object.fromEntries(columns.map(([name, value]) => [name, value(row)])));
  for (const record of records) record.cell_id = record.anchor.slice(0, 16);
  const several = (name) => new Set(records.map((record) => record[name])).size > 1;
  const GRAVITY = ["ok", "unsupported", "unavailable", "oom", "timeout", "error", "incorrect"];
  const icon = (status) => {
    const made = element("span", { class: `chip s-${status}` });
    made.innerHTML = `<svg class="icon" aria-hidden="true"><use href="#i-${encodeURIComponent(status)}"/></svg>`;
    return made;
  };
  const method = (name) => element("span", { class: "method" },
    element("i", { class: "swatch", style: `background: var(--series-${colours[name] % 10})` }), name);
  const COLUMNS = [
    { title: "Cell", key: (r) => r.anchor, show: (r) => element("button", { type: "button", class: "open", "aria-expanded": "false" }, r.cell_id.slice(0, 8)) },
    { title: "Method", key: (r) => r.method, show: (r) => method(r.method) },
    { title: "Ranks", key: (r) => r.world, num: true, when: several("world") },
    { title: "Mask", key: (r) => r.mask_label },
    { title: "Length", key: (r) => r.seqlen, show: (r) => length(r.seqlen), num: true },
    { title: "Heads", key: (r) => r.heads, when: several("heads") },
    { title: "D", key: (r) => r.head_dim, num: true, when: several("head_dim") },
    { title: "Type", key: (r) => r.dtype, when: several("dtype") },
    { title: "Device", key: (r) => r.device, when: several("device") },
    { title: "Seed", key: (r) => r.seed, num: true, when: several("seed") },
    { title: "Dir.", key: (r) => r.direction },
    { title: "Status", key: (r) => GRAVITY.indexOf(r.status), show: (r) => element("span", { class: "status" }, icon(r.status), r.status) },
    { title: rate.name, key: (r) => r.tflops_per_device, show: (r) => number(scaled(r.tflops_per_device)), num: true, high: true, timed: true },
    { title: "% ceiling", key: (r) => r.ceiling_percent, show: (r) => number(r.ceiling_percent, 2), num: true, high: true, timed: true, when: records.some((record) => record.ceiling_percent !== null) },
    { title: "Median ms", key: (r) => r.time_ms_median, num: true, timed: true },
    { title: "IQR", key: (r) => r.noise, show: (r) => percent(r.noise), num: true, timed: true },
    { title: "n", key: (r) => r.num_samples, num: true, timed: true },
    { title: "Memory", key: (r) => r.peak_bytes, show: (r) => bytes(r.peak_bytes), num: true, timed: true },
    { title: "Error/budget", key: (r) => r.budget_ratio, show: (r) => percent(r.budget_ratio), num: true, high: true },
  ].filter((column) => column.when !== false);
  const scaled = (value) => (value === null ? null : value * rate.factor);
  const FILTERS = {
    kind: (r) => r.kind, method: (r) => r.method, mask: (r) => r.mask_label, seqlen: (r) => length(r.seqlen), direction: (r) => r.direction,
    status: (r) => r.status,
  };
  const PAGE = 150;
  let sort = { column: -1, down: false }, shown = PAGE, chosen = records;

  const form = $("#filters"), head = $("#table thead tr"), body = $("#table tbody");
  for (const [name, value] of Object.entries(FILTERS)) {
    const options = [...new Map(records.map((r) => [value(r), name === "seqlen" ? r.seqlen : value(r)]))];
    if (name === "seqlen") options.sort((a, b) => a[1] - b[1]);
    form.elements[name].append(...options.map(([option]) => element("option", { value: option }, option)));
  }
  COLUMNS.forEach((column, index) => {
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const first = column.high === true;
      sort = sort.column === index ? (sort.down === first ? { column: index, down: !first } : { column: -1, down: false }) : { column: index, down: first };
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
    const wanted = Object.entries(FILTERS).filter(([name]) => form.elements[name].value);
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    chosen = records.filter((r) => wanted.every(([name, value]) => value(r) === form.elements[name].value));
    if (words.length) {
      chosen = chosen.filter((r) => {
        const text = Object.values(r).filter((value) => typeof value === "string").join(" ").toLowerCase();
        return words.every((word) => text.includes(word));
      });
    }
    if (sort.column >= 0) chosen = [...chosen].sort((a, b) => compare(COLUMNS[sort.column].key(a), COLUMNS[sort.column].key(b)));
    [...head.children].forEach((cell, index) => {
      if (index === sort.column) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    body.replaceChildren(...chosen.slice(0, shown).map(line));
    $("#count").textContent = `${chosen.length.toLocaleString("en-US")} of ${records.length.toLocaleString("en-US")} records. `
      + "Follow a cell for its samples, clocks, machine and code.";
    $("#more").hidden = chosen.length <= shown;
    $("#more").textContent = `Show all ${chosen.length.toLocaleString("en-US")}`;
  };
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
        samples: record.warmup === null ? record.num_samples : `${record.num_samples} after ${record.warmup} warm-up${record.warmup === 1 ? "" : "s"}, ${record.timer}, ended by ${record.stopped}` }),
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
    const link = element("a", { href: `#cell-${record.anchor}` }, "Link to this record");
    cell.append(element("p", { class: "caption", style: "padding: 0 16px" }, link));
    row.after(element("tr", { class: "opened" }, cell));
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

  // ---- the address: #records?method=…&sort=…, #cell-…, #theme=dark
  const store = () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if (sort.column >= 0) query.set("sort", (sort.down ? "-" : "") + COLUMNS[sort.column].title);
    const text = query.toString();
    history.replaceState(null, "", text ? `#records?${text}` : "#records");
  };
  const restore = () => {
    const hash = location.hash.slice(1);
    if (hash.startsWith("cell-")) {
      const record = records.find((r) => r.anchor === decodeURIComponent(hash.slice(5)));
      if (!record) return;
      if (!chosen.includes(record)) {
        form.reset();
        draw();
      }
      if (chosen.indexOf(record) >= shown) {
        shown = chosen.indexOf(record) + PAGE;
        draw();
      }
      const row = document.getElementById(hash);
      toggle(row, record, true);
      row.scrollIntoView({ block: "center" });
      row.querySelector(".open").focus({ preventScroll: true });
    } else if (hash.startsWith("records?")) {
      const query = new URLSearchParams(hash.slice(8));
      for (const field of form.elements) if (field.name) field.value = query.get(field.name) || "";
      const title = query.get("sort") || "";
      sort = { column: COLUMNS.findIndex((column) => column.title === title.replace(/^-/, "")), down: title.startsWith("-") };
      draw();
      $("#records").scrollIntoView();
    }
  };
  form.addEventListener("input", () => { shown = PAGE; store(); draw(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { sort = { column: -1, down: false }; shown = PAGE; store(); draw(); }));
  $("#more").addEventListener("click", () => { shown = Infinity; draw(); });
  $("#copy").addEventListener("click", async (event) => {
    const button = event.target;
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy it from the address bar";
    }
    setTimeout(() => { button.textContent = "Copy link"; }, 2000);
  });
  addEventListener("hashchange", restore);

  // ---- theme and tips
  $("#theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("longca-theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
  });
  const tip = $("#tip");
  const point = (event) => {
    const target = event.target.closest?.("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const box = target.getBoundingClientRect(), own = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
    tip.style.top = `${box.bottom + own.height + 12 < innerHeight ? box.bottom + 6 : box.top - own.height - 6}px`;
  };
  document.addEventListener("mouseover", point);
  document.addEventListener("focusin", point);
  document.addEventListener("focusout", () => { tip.hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  draw();
  restore();
})();
