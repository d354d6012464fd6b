// Parts of the page's script that the others use: elements, numbers, the records, and the address.
const $ = (selector) => document.querySelector(selector);
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


// ---- the page's data, which are compressed
const NO_DATA = "This browser cannot read the page's data: it has figures and tables, but no switches, tips and lists of records.";
const read = async (holder) => {
  const bytes = Uint8Array.from(atob(holder.textContent), (sign) => sign.charCodeAt(0));
  return [holder.id, await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json()];
};
if (!globalThis.DecompressionStream) {
  $("#notice").textContent = NO_DATA;
  $("#notice").hidden = false;
}
const data = Object.fromEntries(await Promise.all([...document.querySelectorAll("script[type='application/zlib']")].map(read)));

// ---- the records
const { facts } = data;
const unpack = (pack) => {
  const values = pack.values || pack.text?.split("|");
  if (values) return (row) => values[row];
  if (pack.digits) return (row) => pack.names[pack.digits.indexOf(pack.at[row])];
  return pack.names ? (row) => pack.names[pack.at[row]] : () => pack.every;
};
const objects = (packed, count) => {  // [{column: value}] of packed columns
  const columns = Object.entries(packed).map(([name, pack]) => [name, unpack(pack)]);
  return Array.from({ length: count }, (_, row) => Object.fromEntries(columns.map(([name, value]) => [name, value(row)])));
};
const records = objects(data.data, facts.count);
for (const record of records) record.cell_id = record.anchor.split("-")[0];
const icon = (status) => {
  const made = element("span", { class: `chip s-${status}` });
  made.innerHTML = `<svg class="icon" aria-hidden="true"><use href="#i-${encodeURIComponent(status)}"/></svg>`;
  return made;
};
const method = (name) => element("span", { class: "method", "data-about": name },
  element("i", { class: "swatch", style: `background: var(--${facts.looks[name]})` }), name);
const methodLink = (name) => {  // with the way to what it is
  if (!facts.anchors?.[name]) return method(name);
  const made = element("a", { class: "method", href: `#${facts.anchors[name]}`, "data-about": name });
  made.append(...method(name).childNodes);
  return made;
};
const picture = (mask) => {
  const made = element("span");
  if (facts.pictures.includes(mask)) made.innerHTML = `<svg class="pic" aria-hidden="true"><use href="#m-${encodeURIComponent(mask)}"/></svg>`;
  return made.firstChild || "";
};

const homeOf = (record) => (facts.homes ? record.home || undefined : "");  // the address of the page that shows the record in full

// ---- the address: #decide?…, #records?…, #cell-…; each part of the page has a function that shows what the address says.
// The theme and the methods to compare may stand in any.
const routes = [];  // [start of the fragment, function of the rest]
const notice = (text) => {
  $("#notice").textContent = text;
  $("#notice").hidden = !text;
};
const starts = [];  // functions that show what a page without an address shows
let place = "";  // what the address says, without the choice of methods
const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {  // no address that this page has made
    return text;
  }
};
const withChoice = (text) => {
  const choice = ofChoice();
  return choice ? `${text}${text === "#" ? "" : text.includes("?") ? "&" : "?"}${choice}` : text;
};
const address = (text, isStep = false) => {  // a step can be taken back with the browser's Back
  notice("");
  place = text.replace(/^#/, "");
  const whole = withChoice(text);
  if (isStep && (location.hash || "#") !== whole) history.pushState(null, "", whole);
  else history.replaceState(null, "", whole);
};
const follow = (again = false) => {
  const parts = location.hash.slice(1).split(/[?&]/);
  const unknown = asked(parts.filter((part) => part.startsWith("methods=")));
  const [first = "", ...rest] = parts.filter((part) => !/^(methods|theme)=/.test(part));
  const was = place, hash = decoded(first);
  place = rest.length ? `${first}?${rest.join("&")}` : first;
  if (!again && place === was) return;  // only the choice of methods has changed
  notice(unknown.length ? fill(facts.notices.nearest, { asked: unknown.join(", ") }) : "");
  if (!place) {
    for (const start of starts) start();
    return;
  }
  const found = routes.find(([start]) => place.startsWith(start)), target = document.getElementById(hash);
  if (found) found[1](place.slice(found[0].length));
  else if (target) {  // what is folded is opened
    const folded = [target.querySelector(":scope > details")];
    for (let at = target; at; at = at.parentElement) if (at.matches("details")) folded.push(at);
    for (const part of folded) if (part) part.open = true;
    target.scrollIntoView();
  } else {
    notice(fill(facts.notices.nothing, { asked: hash }));
    scrollTo(0, 0);
  }
};

const copied = async (button, text) => {
  const was = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = facts.notices.copied;
  } catch {
    button.textContent = facts.notices.not_copied;
  }
  setTimeout(() => { button.textContent = was; }, 2000);
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
