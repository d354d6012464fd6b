// The page as a whole: its tips, and its start.
const point = (event) => {
  const target = event.target.closest?.("[data-tip], [data-about], [data-why]");
  const text = target && (target.dataset.tip || facts.whys?.[target.dataset.why] || (target.matches("button.key") ? aboutKey(target) : facts.about[target.dataset.about]));
  if (text) show(text, target.getBoundingClientRect());
  else if (!event.target.closest?.(".drawing")) hide();
};
document.addEventListener("mouseover", point);
document.addEventListener("focusin", point);
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details:not(.filter)")) part.open = true; });
document.addEventListener("click", (event) => {  // links within the page keep the choice of methods
  const link = event.target.closest?.("a[href^='#']");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const href = withChoice(link.getAttribute("href")), isHere = href === location.hash;
  if (!isHere && !picked.size) return;  // the browser follows it
  event.preventDefault();
  if (!isHere) history.pushState(null, "", href);
  follow(true);  // also where the page already is, once what it leads to was folded again
});
for (const table of document.querySelectorAll("table")) reach(table);
addEventListener("hashchange", () => follow());
follow(true);
document.documentElement.classList.add("live");  // its data were read after it was loaded
