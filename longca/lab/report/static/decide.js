// The first picture: switches, the heat map of one setting, and the ranking of one of its masks.
if (data.views) {
  const { masks, names, methods, views, switches, shows, states, reasons, lost_tip: lostTip, not_asked: notAsked, sentences, foot_tip: footTip, caption, copy_link: copyLink, show_label: showLabel, default: usual } = data.views;
  const broken = (name) => name.split("_").flatMap((part, index) => (index ? ["_", element("wbr"), part] : [part]));
  const SWITCHES = Object.fromEntries(switches.map((entry) => [entry.name, entry]));
  const initial = () => ({ ...usual, mask: masks.indexOf(usual.mask), show: shows[0][0] });
  let state = initial();
  const fits = (view, wanted) => Object.keys(SWITCHES).every((name) => view[name] === wanted[name]);
  const current = () => views.find((view) => fits(view, state));

  // the nearest view in which this switch has that value: most other switches stay, and of lengths the nearest one is taken
  const choose = (name, value) => {
    const cost = (view) => switches.reduce((sum, other) => sum + (view[other.name] === state[other.name] ? 0 : other.name === "seqlen"
      ? other.cost + Math.abs(Math.log2(view.seqlen / state.seqlen)) / 100 : other.cost), 0);
    const options = views.filter((view) => view[name] === value).sort((a, b) => cost(a) - cost(b));
    for (const other of Object.keys(SWITCHES)) state[other] = options[0][other];
    if (!options[0].masks.includes(state.mask)) state.mask = options[0].masks[0];
  };

  const entriesOf = (view) => objects(view.entries, view.count).map((entry) => ({
    ...entry, at: entry.mask, mask: masks[entry.mask], method: methods[entry.method], record: records[entry.row], ...states[entry.state] }));
  const linkTo = (record, text) => (homeOf(record) === undefined ? text : element("a", { href: `${homeOf(record)}#cell-${record.anchor}` }, text));
  const SHOWN = { percent: "text", rate: "rate", ms: "ms" };

  const drawMap = (view, all) => {
    const entries = new Map(all.map((entry) => [`${entry.at} ${entry.method}`, entry]));
    const missing = new Map(view.missing.map(([mask, name, reason]) => [`${mask} ${methods[name]}`, reasons[reason]]));
    const columns = view.columns.filter(([name]) => isPicked(methods[name]));
    const top = element("tr", {}, element("td"), ...columns.map(([name]) => element("th", { scope: "col" },
      element("a", { href: `#${facts.anchors[methods[name]]}`, "data-about": methods[name] },
        element("i", { class: "swatch", style: `background: var(--${facts.looks[methods[name]]})` }), methods[name]))));
    const line = (mask) => {
      const row = element("tr", mask === state.mask ? { class: "chosen" } : {}, element("th", { scope: "row" },
        element("button", { type: "button", "data-mask": mask, "aria-pressed": String(mask === state.mask) }, picture(names[mask]), element("span", {}, ...broken(masks[mask])))));
      for (const [index] of columns) {
        const key = `${mask} ${methods[index]}`, entry = entries.get(key);
        if (entry) {
          row.append(element("td", { class: entry.frame, style: `--s: ${entry.strength}%`, "data-tip": fill(entry.tip, entry), "data-mask": mask }, entry[SHOWN[state.show]]));
        } else {
          const [short, why] = missing.get(key) || ["", notAsked];
          row.append(element("td", { class: "lost", "data-tip": fill(lostTip, { method: methods[index], mask: masks[mask], why }) }, short));
        }
      }
      return row;
    };
    const bottom = element("tr", {}, element("th", { scope: "row" }, "worst share"), ...columns.map(([name, share, note, all, ran, least]) => (
      element("td", { class: `worst${all ? " all" : ""}`, "data-tip": fill(footTip, { method: methods[name], ran: sentences[ran], least: sentences[least] }) }, element("b", {}, share), ...(note ? [element("small", {}, note)] : [])))));
    $("#map").classList.toggle("many", columns.length > 16);
    $("#map").style.setProperty("--long", Math.max(0, ...columns.map(([name]) => methods[name].length)));
    $("#map thead").replaceChildren(top);
    $("#map tbody").replaceChildren(...view.masks.map(line));
    $("#map tfoot").replaceChildren(bottom);
    reach($("#map"));
    $("#map-setting").textContent = fill(caption, { setting: view.setting, meaning: sentences[view.meanings[shows.findIndex(([name]) => name === state.show)]] });
  };

  // ---- the ranking of one mask
  const drawRanking = (view, all) => {
    const place = view.masks.indexOf(state.mask);
    $("#choose-setting").textContent = view.setting;
    $("#verdict").textContent = view.verdicts[place];
    $("#ranking tbody").replaceChildren(...all.filter((entry) => entry.at === state.mask && isPicked(entry.method)).map((entry) => {
      const bar = entry.percent ? element("td", {}, element("span", { class: "share" }, element("i", { style: `width: ${entry.percent}%` })), `${entry.percent} %`)
        : element("td", {}, facts.none);
      return element("tr", {}, element("td", { class: "num" }, entry.rank), element("td", {}, methodLink(entry.method)),
        element("td", { class: "num" }, linkTo(entry.record, entry.rate)),
        element("td", { class: "num" }, `${entry.low}–${entry.high}`), element("td", { class: "num" }, entry.ms), bar,
        element("td", {}, entry.margin), element("td", { class: "num" }, entry.n));
    }));
    $("#choose-missing").textContent = sentences[view.not_ranked[place]];
    const select = $("#choose-mask");
    select.disabled = false;
    select.replaceChildren(...view.masks.map((mask) => element("option", { value: mask }, masks[mask])));
    select.value = String(state.mask);
  };

  // ---- switches
  const bar = $("#switches");
  const group = (name, label, options) => {
    const buttons = options.map(([value, text]) => element("button", { type: "button", "data-switch": name, "data-value": value }, text));
    bar.append(element("div", { role: "group", "aria-label": label }, element("span", {}, label), ...buttons));
  };
  for (const { name, label, options } of switches) if (options.length > 1) group(name, label, options);
  group("show", showLabel, shows);
  const linkButton = element("button", { type: "button", class: "link" }, copyLink);
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
    const entries = entriesOf(view);
    drawMap(view, entries);
    drawRanking(view, entries);
  };
  const keep = () => {
    const query = new URLSearchParams();
    for (const { name, options } of switches) if (options.length > 1) query.set(name, state[name]);
    query.set("show", state.show);
    query.set("mask", masks[state.mask]);
    address(`#decide?${query}`, true);
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
    const kept = target.contains(document.activeElement) && [target.closest("tr").rowIndex, target.closest("td, th").cellIndex];
    state.mask = Number(target.dataset.mask);
    keep();
    redraw();
    if (kept) {
      const again = $("#map").rows[kept[0]].cells[kept[1]];
      (again.querySelector("button") || again).focus();
    }
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
      if (SWITCHES[name]?.options.some(([option]) => option === typed)) state[name] = typed;
      else if (name === "show" && value in SHOWN) state.show = value;
      else if (name === "mask" && masks.includes(value)) state.mask = masks.indexOf(value);
      else wrong.push(`${name}=${value}`);
    }
    const view = current();
    if (!view || !view.masks.includes(state.mask)) {
      wrong.push(facts.notices.combination);
      choose("ranks", state.ranks);
    }
    redraw();
    const folded = $("#decide > details");
    if (folded) folded.open = true;
    $("#decide").scrollIntoView();
    if (wrong.length) notice(fill(facts.notices.nearest, { asked: wrong.join(", ") }));
  }]);
  drawnByScript.push(redraw);
  starts.push(() => {
    state = initial();
    redraw();
  });
  redraw();
}
