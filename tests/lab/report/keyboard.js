// What Tab should come to on this page as it is folded now, and what is wrong with each stop. Installs `stops`:
// `stops.count`, `stops.here()` after each Tab, `stops.watch()` before a key and `stops.clicked()` after it.
// An expression for Runtime.evaluate.
(() => {
  const CONTROLS = "a[href], button, summary, input, select, textarea, [tabindex]";
  const shown = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.disabled;
  const expected = [...document.querySelectorAll(CONTROLS)].filter((element) => shown(element) && element.tabIndex >= 0);
  const visited = new Set();
  const named = (element) => {
    const classes = [...element.classList].map((name) => `.${name}`).join("");
    const words = (element.textContent || element.getAttribute("aria-label") || "").trim().replace(/\s+/g, " ");
    return `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}${classes} "${words.slice(0, 30)}"`;
  };
  const isFocusVisible = (element) => {
    const own = getComputedStyle(element);
    return own.outlineStyle !== "none" && parseFloat(own.outlineWidth) >= 1;
  };
  const cutOutline = (element) => {  // by a container that hides or scrolls what is outside of it
    const own = getComputedStyle(element), reach = parseFloat(own.outlineOffset) + parseFloat(own.outlineWidth);
    const box = element.getBoundingClientRect();
    for (let at = element.parentElement; at && !at.matches("html, body"); at = at.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(at), room = at.getBoundingClientRect();
      const isCut = (overflow, sides) => overflow !== "visible" && sides.every((side) => side > 0.5);
      if (isCut(overflowY, [room.top - (box.top - reach), box.bottom + reach - room.bottom])) return true;
      if (isCut(overflowX, [room.left - (box.left - reach), box.right + reach - room.right])) return true;
    }
    return false;
  };
  const isCovered = (element) => {  // by the head of the page, or outside of the window
    const box = element.getBoundingClientRect();
    if (box.bottom <= 0 || box.top >= innerHeight || box.right <= 0 || box.left >= innerWidth) return true;
    const middle = (low, high, most) => (Math.max(low, 0) + Math.min(high, most)) / 2;
    const at = document.elementFromPoint(middle(box.left, box.right, innerWidth), middle(box.top, box.bottom, innerHeight));
    const head = document.querySelector("header.top");
    return Boolean(head?.contains(at)) && !head.contains(element);
  };
  const keysOf = (element) => {  // those that should press it
    if (element.matches("button, summary, td")) return ["Enter", " "];
    if (element.matches("a[href]")) return ["Enter"];
    return element.matches("input[type=checkbox]") ? [" "] : [];
  };
  let target = null, pressed = false;
  document.addEventListener("click", (event) => {
    if (!target) return;
    pressed ||= event.target === target || target.contains(event.target) || event.target.contains(target);
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  window.stops = {
    count: expected.length,
    missed: () => expected.filter((element) => !visited.has(element) && shown(element) && element.tabIndex >= 0).map(named),
    here: () => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      const again = visited.has(element), wrong = [];
      visited.add(element);
      if (!isFocusVisible(element)) wrong.push("has no visible focus");
      else if (cutOutline(element)) wrong.push("has an outline that is cut");
      if (isCovered(element)) wrong.push("is covered or out of the window");
      const kind = `${element.tagName}.${[...element.classList].sort().join(".")}`;
      return { again, kind, name: named(element), wrong, keys: keysOf(element) };
    },
    watch: () => { target = document.activeElement; pressed = false; },
    clicked: () => { target = null; return pressed; },
  };
  return expected.length;
})()
