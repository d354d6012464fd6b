// The page as a whole: its theme, its tips, and its start.
$("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("longca-theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
});
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
