// Light or dark: as the system has it, until somebody chooses.
import { html, store } from "./core.js";

const PLACE = "flowcatalyst.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem(PLACE);
const inForce = () => chosen() ?? (system.matches ? "dark" : "light");

export const theme = store(inForce());

function apply() {
  if (chosen()) document.documentElement.dataset.theme = chosen();
  theme.set(inForce());
}

system.addEventListener("change", apply);
apply();

export function ThemeButton() {
  const now = theme.use();
  const other = now === "dark" ? "light" : "dark";
  const choose = () => {
    localStorage.setItem(PLACE, other);
    apply();
  };
  return html`<button class="quiet icon" onClick=${choose} title=${`Change to the ${other} theme`} aria-label=${`Change to the ${other} theme`}>
    <svg viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.5" /><path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" /></svg>
  </button>`;
}
