// The page as a whole: its tips, and its start.
const point = (event) => {
  const target = event.target.closest?.("[data-tip]");
  if (target) show(target.dataset.tip, target.getBoundingClientRect());
  else if (!event.target.closest?.(".drawing")) hide();
};
document.addEventListener("mouseover", point);
document.addEventListener("focusin", point);
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
addEventListener("hashchange", follow);
follow();
