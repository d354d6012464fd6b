// The fragments that this page does not answer, each with what the page says. A function.
(async (fragments) => {
  const LIMIT = 20000;  // ms
  const dead = [];
  const late = () => new Promise((done) => setTimeout(done, LIMIT, false));
  for (const fragment of fragments) {
    history.replaceState(null, "", " ");
    const followed = new Promise((done) => addEventListener("hashchange", () => done(true), { once: true }));
    location.hash = fragment;
    if (!await Promise.race([followed, late()])) return [...dead, `#${fragment}: nothing happened`];
    const notice = document.querySelector("#notice:not([hidden])");
    const isRoute = /[?]|^cell-|^theme=/.test(fragment);
    if (notice) dead.push(`#${fragment}: ${notice.textContent}`);
    else if (!isRoute && !document.getElementById(decodeURIComponent(fragment))) dead.push(`#${fragment}`);
  }
  return dead;
})
