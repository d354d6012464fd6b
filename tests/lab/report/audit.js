// Complaints about the page as it lies in this window: { kind: [text, …] }. Opens what is folded.
// An expression for Runtime.evaluate.
(() => {
  const SLACK = 1.5;  // px by which browsers round
  const LEAST_CONTRAST = 4.5;  // of text: WCAG 2.2, AA
  const complaints = {};
  const complain = (kind, node, text) => {
    const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
    const path = [];
    for (let at = element; at && at !== document.body && path.length < 4; at = at.parentElement) {
      const classes = [...at.classList].map((name) => `.${name}`);
      path.unshift(at.id ? `#${at.id}` : at.tagName.toLowerCase() + classes.join(""));
      if (at.id) break;
    }
    const words = (node.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
    (complaints[kind] ||= new Set()).add(`${path.join(" > ")} "${words}" ${text}`);
  };

  // ---- what is cut off, or makes the page wider than the window
  const scrolls = (value) => value === "auto" || value === "scroll";
  const clips = (value) => value === "hidden" || value === "clip";
  const styles = new Map();
  const style = (element) => {
    if (!styles.has(element)) styles.set(element, getComputedStyle(element));
    return styles.get(element);
  };
  const boxes = new Map();
  const inner = (element) => {  // without borders, in the window
    if (!boxes.has(element)) {
      const box = element.getBoundingClientRect();
      const left = box.left + (element.clientLeft || 0), top = box.top + (element.clientTop || 0);
      const right = left + (element.clientWidth || box.width), bottom = top + (element.clientHeight || box.height);
      boxes.set(element, { left, top, right, bottom });
    }
    return boxes.get(element);
  };
  const container = (element) => {  // whose overflow decides: for what is positioned not always the parent
    const { position } = style(element);
    if (position === "fixed") return null;
    let parent = element.parentElement;
    const passed = () => parent && style(parent).position === "static" && style(parent).transform === "none";
    if (position === "absolute") while (passed()) parent = parent.parentElement;
    return parent;
  };
  const width = document.documentElement.clientWidth;
  const forScreenReaders = (element) => {
    for (let at = element; at; at = at.parentElement) {
      if (style(at).clipPath === "inset(50%)") return true;
      if (at.className === "skip" && at !== document.activeElement) return true;
    }
    return false;
  };
  const cut = (box, element) => {  // why not all of the box can be seen, or nothing
    let { left, right, top, bottom } = box;
    for (let at = element; at && !at.matches("html, body"); at = container(at)) {
      const own = style(at), room = inner(at);
      if (["inline", "contents"].includes(own.display) || (at.ownerSVGElement && at.tagName !== "svg")) continue;
      for (const [overflow, low, high, from, to, scrolled] of [
        [own.overflowX, left, right, room.left, room.right, at.scrollLeft],
        [own.overflowY, top, bottom, room.top, room.bottom, at.scrollTop]]) {
        const missing = Math.round(Math.max(from - low, high - to)), before = Math.round(from - scrolled - low);
        if (clips(overflow) && (low < from - SLACK || high > to + SLACK)) return `is cut by ${missing} px`;
        if (scrolls(overflow) && before > SLACK) return `begins ${before} px before what can be scrolled to`;
      }
      if (clips(own.overflowX) || scrolls(own.overflowX)) [left, right] = [room.left, room.right];
      if (clips(own.overflowY) || scrolls(own.overflowY)) [top, bottom] = [room.top, room.bottom];
    }
    if (left + scrollX < -SLACK) return `begins ${Math.round(-left - scrollX)} px left of the page`;
    if (right > width + SLACK) return `ends ${Math.round(right - width)} px right of the window`;
    return "";
  };

  // ---- contrast
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colours = new Map();
  const colour = (text) => {  // [red, green, blue, alpha], of any notation
    if (!colours.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = "#000";
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
      colours.set(text, [red, green, blue, alpha / 255]);
    }
    return colours.get(text);
  };
  const over = (front, alpha, back) => back.map((value, channel) => front[channel] * alpha + value * (1 - alpha));
  const luminance = (rgb) => {
    const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = rgb.map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {  // the colour that lies behind an element of HTML
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const layer = colour(style(at).backgroundColor);
      if (layer[3] > 0) layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((back, layer) => over(layer, layer[3], back), [255, 255, 255]);
  };
  const behindDrawn = (text, box) => {  // text of a drawing: shapes that were painted before it lie behind it
    const svg = text.ownerSVGElement;
    const point = new DOMPoint(box.left + box.width / 2, box.top + box.height / 2);
    let back = behind(svg);
    for (const shape of svg.querySelectorAll("rect, path, circle, polygon, ellipse")) {
      const isBefore = shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (!isBefore || style(shape).fill === "none" || !shape.getClientRects().length) continue;
      const matrix = shape.getScreenCTM();
      if (!matrix || !shape.isPointInFill(point.matrixTransform(matrix.inverse()))) continue;
      const fill = colour(style(shape).fill);
      back = over(fill, fill[3] * style(shape).fillOpacity * style(shape).opacity, back);
    }
    const own = style(text);
    return own.paintOrder.startsWith("stroke") && own.stroke !== "none" ? colour(own.stroke).slice(0, 3) : back;
  };
  const faint = (element, box) => {
    const drawn = Boolean(element.ownerSVGElement), own = style(element);
    const ink = colour(drawn ? own.fill : own.color);
    const back = drawn ? behindDrawn(element, box) : behind(element);
    let alpha = ink[3] * (drawn ? Number(own.fillOpacity) : 1);
    for (let at = element; at; at = at.parentElement) alpha *= Number(style(at).opacity);
    if (alpha === 0) return "";  // appears when it is pointed at
    const ratio = contrast(over(ink, alpha, back), back);
    return ratio < LEAST_CONTRAST - 0.005 ? `has a contrast of ${ratio.toFixed(2)}` : "";
  };

  const UNSEEN = "script, style, title, desc, symbol, defs, noscript";
  const seen = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest(UNSEEN)
    && !forScreenReaders(element);
  // fields of the heat map and rows of records have buttons for the same
  const WITH_KEYS = "a[href], button, summary, label, input, select, [tabindex], [data-mask], tr.row";
  const readable = (root) => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (walker.nextNode()) {
      const node = walker.currentNode, element = node.parentElement;
      if (!node.data.trim() || !seen(element)) continue;
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect();
      if (!box.width) continue;
      const reason = cut(box, element);
      if (reason) complain("cut", node, reason);
      const isTall = box.height > 8 * parseFloat(style(element).fontSize);
      if (element.closest("td") && box.width < 120 && isTall) {
        complain("narrow", node, `is ${Math.round(box.width)} px wide and ${Math.round(box.height)} px high`);
      }
      const pale = element.disabled ? "" : faint(element, box);
      if (pale) complain("contrast", node, pale);
    }
  };
  const reachable = (root) => {
    const wide = new Set();
    for (const element of root.querySelectorAll("*")) {
      if (element.ownerSVGElement || !seen(element)) continue;
      const box = element.getBoundingClientRect(), own = style(element);
      const inside = wide.has(element.parentElement);
      const reason = box.width && box.height && !inside ? cut(box, container(element)) : "";
      if (reason) complain("box", element, reason);
      if (reason || inside) wide.add(element);  // of nested ones the outermost is named
      if (element.placeholder) {
        canvas.font = own.font;
        const room = element.clientWidth - parseFloat(own.paddingLeft) - parseFloat(own.paddingRight);
        const wanted = canvas.measureText(element.placeholder).width;
        if (wanted > room + SLACK) complain("cut", element, `has ${Math.round(room)} px for "${element.placeholder}"`);
      }
      const hidden = element.scrollHeight - element.clientHeight;
      if (scrolls(own.overflowY) && own.maxHeight === "none" && hidden > 1) {
        complain("scroll", element, `scrolls down by ${hidden} px`);
      }
      const begins = own.cursor === "pointer" && style(element.parentElement).cursor !== "pointer";
      if (begins && !element.closest(WITH_KEYS)) complain("keyboard", element, "is for a mouse alone");
    }
  };
  const inspect = (root) => {
    styles.clear();
    boxes.clear();
    readable(root);
    reachable(root);
  };

  for (const folded of document.querySelectorAll("details:not(.filter)")) folded.open = true;
  document.querySelector("#table .open")?.click();  // a record
  const { scrollWidth } = document.documentElement;
  if (scrollWidth > width) complain("overflow", document.body, `is ${scrollWidth} px wide`);
  const menu = document.querySelector("nav");  // on a telephone it scrolls, and fades out where it goes on
  if (width >= 900 && menu && menu.scrollWidth > menu.clientWidth + 1) complain("cut", menu, "is a menu that is cut");
  if (width < 900 && menu && menu.scrollWidth > menu.clientWidth + 1 && style(menu).maskImage === "none") {
    complain("cut", menu, "does not show that it goes on");
  }
  inspect(document.body);
  for (const filter of document.querySelectorAll(".filter")) {
    filter.open = true;
    inspect(filter);
    filter.open = false;
  }
  const drawing = document.querySelector(".drawing[role=group]");  // a panel, enlarged
  for (const key of ["ArrowRight", "+"]) {
    drawing?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  }
  const large = document.querySelector("#large[open]");
  if (large) inspect(large);
  else if (drawing) complain("keyboard", drawing, "has no panel that opens");
  large?.close();
  return Object.fromEntries(Object.entries(complaints).map(([kind, texts]) => [kind, [...texts]]));
})()
