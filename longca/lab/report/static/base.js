// Parts of the page's script that the others use: elements, numbers, the records, and the address.
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
const packed = parse("#data"), facts = parse("#facts"), rate = facts.rate;
const unpack = (pack) => {
  if (pack.values) return (row) => pack.values[row];
  return pack.names ? (row) => pack.names[pack.at[row]] : () => pack.every;
};
const columns = Object.entries(packed).map(([name, pack]) => [name, unpack(pack)]);
const records = Array.from({ length: facts.count }, (_, row) => Object.fromEntries(columns.map(([name, value]) => [name, value(row)])));
for (const record of records) record.cell_id = record.anchor.slice(0, 16);
const scaled = (value) => (value === null ? null : value * rate.factor);
const icon = (status) => {
  const made = element("span", { class: `chip s-${status}` });
  made.innerHTML = `<svg class="icon" aria-hidden="true"><use href="#i-${encodeURIComponent(status)}"/></svg>`;
  return made;
};
const method = (name) => element("span", { class: "method" },
  element("i", { class: "swatch", style: `background: var(--${facts.looks[name]})` }), name);
const picture = (mask) => {
  const made = element("span");
  if (facts.pictures.includes(mask)) made.innerHTML = `<svg class="pic" aria-hidden="true"><use href="#m-${encodeURIComponent(mask)}"/></svg>`;
  return made.firstChild || "";
};
const DIRECTION = { fwd: "forward", bwd: "backward" };

// ---- the address: #decide?…, #records?…, #cell-…; each part of the page has a function that shows what the address says
const routes = [];  // [start of the fragment, function of the rest]
const notice = (text) => {
  $("#notice").textContent = text;
  $("#notice").hidden = !text;
};
const address = (text) => {
  notice("");
  history.replaceState(null, "", text);
};
const follow = () => {
  const hash = decodeURIComponent(location.hash.slice(1));
  notice("");
  if (!hash || hash.startsWith("theme=")) return;
  const found = routes.find(([start]) => hash.startsWith(start));
  if (found) found[1](location.hash.slice(1 + found[0].length));
  else if (!document.getElementById(hash)) {
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
