// Parts of the page's script that the others use: elements, numbers, the records, and the address.
const $ = (selector) => document.querySelector(selector);
const parse = (id) => JSON.parse($(id).textContent);
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// ---- texts: all are made before; templates are filled with those of one record
const fill = (template, texts) => {  // "" if a text outside of brackets is missing; a part in brackets is left out alone
  let at = 0;
  const part = (nested) => {
    let made = "", whole = true;
    while (at < template.length) {
      const sign = template[at++];
      if (sign === "]" && nested) break;
      if (sign === "[") made += part(true);
      else if (sign === "{") {
        const end = template.indexOf("}", at), text = texts[template.slice(at, end)] ?? "";
        at = end + 1;
        made += text;
        whole &&= text !== "";
      } else made += sign;
    }
    return whole ? made : "";
  };
  return part(false);
};


// ---- the records
const facts = parse("#facts");
const unpack = (pack) => {
  const values = pack.values || pack.text?.split("|");
  if (values) return (row) => values[row];
  return pack.names ? (row) => pack.names[pack.at[row]] : () => pack.every;
};
const objects = (packed, count) => {  // [{column: value}] of packed columns
  const columns = Object.entries(packed).map(([name, pack]) => [name, unpack(pack)]);
  return Array.from({ length: count }, (_, row) => Object.fromEntries(columns.map(([name, value]) => [name, value(row)])));
};
const records = objects(parse("#data"), facts.count);
for (const record of records) record.cell_id = record.anchor.split("-")[0];
const icon = (status) => {
  const made = element("span", { class: `chip s-${status}` });
  made.innerHTML = `<svg class="icon" aria-hidden="true"><use href="#i-${encodeURIComponent(status)}"/></svg>`;
  return made;
};
const method = (name) => element("span", { class: "method", "data-about": name },
  element("i", { class: "swatch", style: `background: var(--${facts.looks[name]})` }), name);
const picture = (mask) => {
  const made = element("span");
  if (facts.pictures.includes(mask)) made.innerHTML = `<svg class="pic" aria-hidden="true"><use href="#m-${encodeURIComponent(mask)}"/></svg>`;
  return made.firstChild || "";
};

// ---- the address: #decide?…, #records?…, #cell-…; each part of the page has a function that shows what the address says
const routes = [];  // [start of the fragment, function of the rest]
const notice = (text) => {
  $("#notice").textContent = text;
  $("#notice").hidden = !text;
};
const starts = [];  // functions that show what a page without an address shows
const address = (text, isStep = false) => {  // a step can be taken back with the browser's Back
  notice("");
  if (isStep && location.hash !== text) history.pushState(null, "", text);
  else history.replaceState(null, "", text);
};
const follow = () => {
  const hash = decodeURIComponent(location.hash.slice(1));
  notice("");
  if (!hash) for (const start of starts) start();
  if (!hash || hash.startsWith("theme=")) return;
  const found = routes.find(([start]) => hash.startsWith(start)), target = document.getElementById(hash);
  if (found) found[1](location.hash.slice(1 + found[0].length));
  else if (target) {  // what is folded is opened
    const folded = [target.querySelector(":scope > details")];
    for (let at = target; at; at = at.parentElement) if (at.matches("details")) folded.push(at);
    for (const part of folded) if (part) part.open = true;
    if (folded.some(Boolean)) target.scrollIntoView();
  } else {
    notice(`The address asks for '#${hash}', which this page does not have.`);
    scrollTo(0, 0);
  }
};

// ---- tips
const hide = () => { $("#tip").hidden = true; };
const show = (text, box) => {
  const tip = $("#tip");
  tip.textContent = text;
  tip.hidden = false;
  ($("dialog[open]") || document.body).append(tip);
  const own = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
  tip.style.top = `${box.bottom + own.height + 12 < innerHeight ? box.bottom + 6 : box.top - own.height - 6}px`;
};
