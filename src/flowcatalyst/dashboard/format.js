// Numbers, times and spans as people read them.
export const UNKNOWN = "–";

export const number = (value) => (value === null || value === undefined ? UNKNOWN : value.toLocaleString("en"));

export const rate = (value) =>
  value === null || value === undefined ? UNKNOWN : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });

export function span(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  if (ms < 1000) return `${ms < 10 && ms > 0 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

const pad = (value) => String(value).padStart(2, "0");

export function moment(text) {
  if (!text) return UNKNOWN;
  const at = new Date(text), now = new Date();
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (at.toDateString() === now.toDateString()) return clock;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock}`;
}

export const count = (value, one, several) => `${number(value)} ${value === 1 ? one : several}`;

export const bytes = (value) => (value < 1024 ? `${value} B` : value < 1024 * 1024 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1048576).toFixed(1)} MiB`);

// Without its middle, if it is longer: addresses differ at their ends.
export const clipped = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.floor(most * 0.4))}…${text.slice(text.length - Math.ceil(most * 0.6) + 1)}`);

// Words of the API (IN_FLIGHT) as words of a page.
export const words = (value) => (value ? value.toLowerCase().replaceAll("_", " ") : UNKNOWN);

// A fact of the API (inRouterMs: 119199) as people read it.
const LABELS = { inRouterMs: "In the router", failingMs: "Failing for", receives: "Times received", endpoint: "Its endpoint", ahead: "Ahead of it", number: "Dead letter" };
export function fact(name, value) {
  const label = LABELS[name] ?? capital(name.replace(/Ms$/, "").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase());
  if (typeof value === "boolean") return [label, value ? "yes" : "no"];
  if (typeof value !== "number") return [label, value];
  return [label, name.endsWith("Ms") ? span(value) : number(value)];
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
