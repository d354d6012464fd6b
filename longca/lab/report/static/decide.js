// The first picture: switches, the heat map of one setting, and the ranking of one of its masks.
if ($("#views")) {
  const { masks, names, methods, views, palest, default: usual } = parse("#views");
  const SHOWS = { percent: "% of best", rate: rate.name, ms: "ms" };
  const broken = (name) => name.split("_").flatMap((part, index) => (index ? ["_", element("wbr"), part] : [part]));
  const SWITCHES = {  // what can be switched: [label, text of a value, order of values]
    seqlen: ["Length", length, (a, b) => a - b],
    heads: ["Setting", String, (a, b) => a.localeCompare(b, "en", { numeric: true })],
    ranks: ["Ranks", (value) => (value === "alone" ? "alone" : value), (a, b) => (a === "alone" ? 0 : a) - (b === "alone" ? 0 : b)],
    direction: ["Direction", (value) => DIRECTION[value], (a, b) => b.localeCompare(a)],
  };
  const values = Object.fromEntries(Object.entries(SWITCHES).map(([name, [, , order]]) => [name, [...new Set(views.map((view) => view[name]))].sort(order)]));
  if (values.heads.every((value) => /^[0-9]+:[0-9]+ heads$/.test(value))) SWITCHES.heads = ["Heads", (value) => value.replace(" heads", ""), SWITCHES.heads[2]];
  const state = { ...usual, mask: masks.indexOf(usual.mask), show: "percent" };
  const fits = (view, wanted) => Object.keys(SWITCHES).every((name) => view[name] === wanted[name]);
  const current = () => views.find((view) => fits(view, state));
  const described = (view) => [`${length(view.seqlen)} tokens`,
    view.ranks === "alone" ? (values.ranks.length > 1 ? "kernels alone" : "") : `${view.ranks} ranks × ${length(view.seqlen / view.ranks)}`, view.heads, DIRECTION[view.direction]].filter(Boolean).join(" · ");

  // the nearest view in which this switch has that value: most other switches stay, and of lengths the nearest one is taken
  const choose = (name, value) => {
    const cost = (view) => Object.keys(SWITCHES).reduce((sum, other) => sum + (view[other] === state[other] ? 0 : other === "seqlen"
      ? 1 + Math.abs(Math.log2(view.seqlen / state.seqlen)) / 100 : { heads: 2, ranks: 3, direction: 4 }[other]), 0);
    const options = views.filter((view) => view[name] === value).sort((a, b) => cost(a) - cost(b));
    for (const other of Object.keys(SWITCHES)) state[other] = options[0][other];
    if (!options[0].masks.includes(state.mask)) state.mask = options[0].masks[0];
  };

  // ---- numbers of one entry
  const timed = (view) => view.entries.reduce((counts, [mask]) => counts.set(mask, (counts.get(mask) || 0) + 1), new Map());
  const reader = (view) => ((counts) => ([mask, name, tflops, low, high, ms, share, place, tied, margin, samples, cells, row]) => ({
    mask, method: methods[name], tflops, low, high, ms, share, place, tied: Boolean(tied), margin, samples, cells, record: records[row],
    alone: counts.get(mask) === 1 }))(timed(view));
  const shown = (entry) => (state.show === "percent" ? (entry.alone ? "only" : String(Math.floor(100 * entry.share + 1e-9)))
    : state.show === "rate" ? number(scaled(entry.tflops)) : number(entry.ms));
  const strength = (share) => Math.round(100 * (Math.max(share - palest, 0) / (1 - palest)) ** 1.5);
  const rateText = (entry) => `${number(scaled(entry.tflops))} ${rate.name} (${number(scaled(entry.low))}–${number(scaled(entry.high))})`;
  const told = (entry) => `${entry.method}, ${masks[entry.mask]}\n${rateText(entry)}, ${number(entry.ms)} ms\n${entry.alone ? "no other method ran this mask" : `${number(100 * entry.share)} % of the best`}`
    + `${entry.tied ? ", a tie in front" : ""}; n = ${entry.samples}${entry.cells > 1 ? ` over ${entry.cells} seeds` : ""}`;

  const drawMap = (view) => {
    const read = reader(view), entries = new Map(view.entries.map((entry) => [`${entry[0]} ${entry[1]}`, read(entry)]));
    const missing = new Map(view.missing.map(([mask, name, status, row]) => [`${mask} ${name}`, [status, records[row]]]));
    const top = element("tr", {}, element("td"), ...view.columns.map(([name]) => element("th", { scope: "col" },
      element("span", {}, element("i", { class: "swatch", style: `background: var(--${facts.looks[methods[name]]})` }), methods[name]))));
    const line = (mask) => {
      const row = element("tr", mask === state.mask ? { class: "chosen" } : {}, element("th", { scope: "row" },
        element("button", { type: "button", "data-mask": mask, "aria-pressed": String(mask === state.mask) }, picture(names[mask]), element("span", {}, ...broken(masks[mask])))));
      for (const [name] of view.columns) {
        const entry = entries.get(`${mask} ${name}`), lost = missing.get(`${mask} ${name}`);
        if (entry) {
          row.append(element("td", { class: `case${entry.alone ? " lone" : entry.place === 1 ? " best" : ""}${entry.tied ? " tied" : ""}`,
            style: `--s: ${strength(entry.share)}%`, "data-tip": told(entry), "data-mask": mask }, shown(entry)));
        } else if (lost) {
          row.append(element("td", { class: "lost", "data-tip": `${methods[name]}, ${masks[mask]}\n${lost[0]}${lost[1].reason ? `: ${lost[1].reason}` : ""}` }, facts.short[lost[0]]));
        } else row.append(element("td", { class: "lost" }));
      }
      return row;
    };
    const bottom = element("tr", {}, element("th", { scope: "row" }, "worst share"), ...view.columns.map(([, share, note, all, tip]) => (
      element("td", { class: `worst${all ? " all" : ""}`, "data-tip": tip },
        element("b", {}, share === null ? NONE : String(Math.floor(100 * share + 1e-9))), ...(note ? [element("small", {}, note)] : [])))));
    $("#map").classList.toggle("many", view.columns.length > 16);
    $("#map").style.setProperty("--long", Math.max(...view.columns.map(([name]) => methods[name].length)));
    $("#map thead").replaceChildren(top);
    $("#map tbody").replaceChildren(...view.masks.map(line));
    $("#map tfoot").replaceChildren(bottom);
    const what = { percent: "percent of the fastest method of each mask", rate: `${rate.name}${view.ranks === "alone" ? "" : " of each rank"}, median`, ms: "median milliseconds" };
    $("#map-setting").textContent = `${described(view)}: ${what[state.show]}`;
  };

  // ---- the ranking of one mask
  const drawRanking = (view) => {
    const ranking = view.entries.filter(([mask]) => mask === state.mask).map(reader(view)).sort((a, b) => a.place - b.place);
    $("#choose-setting").textContent = described(view);
    $("#verdict").textContent = view.verdicts[view.masks.indexOf(state.mask)];
    $("#ranking tbody").replaceChildren(...ranking.map((entry) => {
      const bar = entry.alone ? element("td", {}, NONE)
        : element("td", {}, element("span", { class: "share" }, element("i", { style: `width: ${(100 * entry.share).toFixed(1)}%` })), `${number(100 * entry.share)} %`);
      return element("tr", {}, element("td", { class: "num" }, entry.alone ? NONE : String(entry.place)), element("td", {}, method(entry.method)),
        element("td", { class: "num" }, element("a", { href: `#cell-${entry.record.anchor}` }, number(scaled(entry.tflops)))),
        element("td", { class: "num" }, `${number(scaled(entry.low))}–${number(scaled(entry.high))}`), element("td", { class: "num" }, number(entry.ms)), bar,
        element("td", {}, entry.margin), element("td", { class: "num" }, String(entry.samples)));
    }));
    const lost = view.missing.filter(([mask]) => mask === state.mask).map(([, name, status]) => `${methods[name]} (${status})`);
    $("#choose-missing").textContent = lost.length ? `Not ranked here: ${lost.join(", ")}.` : "";
    const select = $("#choose-mask");
    select.disabled = false;
    select.replaceChildren(...view.masks.map((mask) => element("option", { value: mask }, masks[mask])));
    select.value = String(state.mask);
  };

  // ---- switches
  const bar = $("#switches");
  const group = (name, label, options, text) => {
    const buttons = options.map((value) => element("button", { type: "button", "data-switch": name, "data-value": value }, text(value)));
    bar.append(element("div", { role: "group", "aria-label": label }, element("span", {}, label), ...buttons));
  };
  for (const [name, [label, text]] of Object.entries(SWITCHES)) if (values[name].length > 1) group(name, label, values[name], text);
  group("show", "Show", Object.keys(SHOWS), (value) => SHOWS[value]);
  const linkButton = element("button", { type: "button", class: "link" }, "Copy link");
  bar.append(linkButton);
  linkButton.addEventListener("click", () => { keep(); copied(linkButton, location.href); });
  bar.hidden = false;
  const redraw = () => {
    const view = current();
    for (const button of bar.querySelectorAll("[data-switch]")) {
      const { switch: name, value } = button.dataset;
      button.setAttribute("aria-pressed", String(String(state[name]) === value));
      const typed = name === "seqlen" ? Number(value) : value;
      const there = name === "show" || views.some((other) => fits(other, { ...state, [name]: typed }));
      button.classList.toggle("away", !there);  // it changes another switch, too
    }
    drawMap(view);
    drawRanking(view);
  };
  const keep = () => {
    const query = new URLSearchParams();
    for (const name of Object.keys(SWITCHES)) if (values[name].length > 1) query.set(name, state[name]);
    query.set("show", state.show);
    query.set("mask", masks[state.mask]);
    address(`#decide?${query}`);
  };
  bar.addEventListener("click", (event) => {
    const { switch: name, value } = event.target.dataset;
    if (!name) return;
    if (name === "show") state.show = value;
    else choose(name, name === "seqlen" ? Number(value) : value);
    keep();
    redraw();
  });
  $("#map").addEventListener("click", (event) => {
    const target = event.target.closest("[data-mask]");
    if (!target) return;
    const kept = target.matches("button");
    state.mask = Number(target.dataset.mask);
    keep();
    redraw();
    if (kept) $(`#map button[data-mask="${state.mask}"]`).focus();
    $("#verdict").scrollIntoView({ block: "nearest" });
  });
  $("#choose-mask").addEventListener("change", (event) => {
    state.mask = Number(event.target.value);
    keep();
    redraw();
  });
  routes.push(["decide?", (rest) => {
    const wrong = [];
    for (const [name, value] of new URLSearchParams(rest)) {
      const typed = name === "seqlen" ? Number(value) : value;
      if (name in SWITCHES && values[name].includes(typed)) state[name] = typed;
      else if (name === "show" && value in SHOWS) state.show = value;
      else if (name === "mask" && masks.includes(value)) state.mask = masks.indexOf(value);
      else if (name !== "theme") wrong.push(`${name}=${value}`);
    }
    const view = current();
    if (!view || !view.masks.includes(state.mask)) {
      wrong.push("this combination");
      choose("ranks", state.ranks);
    }
    redraw();
    $("#decide").scrollIntoView();
    if (wrong.length) notice(`The address asks for ${wrong.join(", ")}; this page does not have it and shows the nearest.`);
  }]);
  redraw();
}
