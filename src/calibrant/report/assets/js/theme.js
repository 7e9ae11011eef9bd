// Runs before the page is painted, so that a remembered choice never flashes the other theme.
(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Storage is refused in some sandboxes; the choice then lasts as long as the page.
  const remember = (theme) => { try { localStorage.setItem("calibrant-theme", theme); } catch { /* no storage */ } };
  const remembered = () => { try { return localStorage.getItem("calibrant-theme"); } catch { return null; } };
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");

  const chosen = remembered();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.querySelector("span").textContent = current() === "dark" ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      remember(root.dataset.theme);
      label();
    });
    dark.addEventListener("change", label);
    button.setAttribute("aria-description", "Switches between light and dark");
    button.hidden = false;
    label();
  });
})();
