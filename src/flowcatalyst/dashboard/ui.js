// Parts that views share.
import { html, store, useEffect, useRef, useState } from "./core.js";
import { capital, clipped, moment, UNKNOWN, words } from "./format.js";

export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
export const explain = (id, kind = "") => `${link("explain", id)}${kind ? `?kind=${kind}` : ""}`;

// Which colour a word of the API has. The word itself is always there too.
const TONES = {
  good: ["HEALTHY", "CLOSED", "COMPLETED", "DELIVERED", "SUCCESS", "PRIMARY", "ACTIVE", "UP", "RUNNING", "POLLED"],
  warn: ["WARNING", "WARN", "HALF_OPEN", "HELD", "PAUSED", "ON_HOLD", "PARKED", "EXPIRED", "STANDBY", "DRAINING", "NACKED"],
  bad: ["DEGRADED", "CRITICAL", "OPEN", "BLOCKED", "DEAD_LETTER", "DOWN", "FAILED", "NOT_POLLED", "ERROR"],
  busy: ["IN_FLIGHT", "IN_PROGRESS", "CONFIRMING"],
};
export const toneOf = (word) => Object.keys(TONES).find((tone) => TONES[tone].includes(word)) ?? "plain";

export const Badge = ({ word, tone = null, title = null }) =>
  html`<span class=${`badge ${tone ?? toneOf(word)}`} title=${title}>${capital(words(word))}</span>`;

export const Time = ({ at }) => (at ? html`<time datetime=${at} title=${new Date(at).toString()}>${moment(at)}</time>` : UNKNOWN);

export const Id = ({ id, href = null }) =>
  href ? html`<a class="mono cut" href=${href} title=${id}>${id}</a>` : html`<span class="mono cut" title=${id}>${id ?? UNKNOWN}</span>`;

// An address, which may end its line behind a slash.
const ADDRESS_SHOWN = 96;
export const Address = ({ url, href = null, whole = false }) => html`<a class="mono wrap" href=${href} title=${url}>${(whole ? url : clipped(url, ADDRESS_SHOWN)).split(/(?<=[^/]\/)(?=[^/])/).map((part) => html`${part}<wbr />`)}</a>`;

// What belongs to a cell but is not what one looks for first.
export const Under = ({ children }) => html`<span class="under">${children}</span>`;

export const Page = ({ title, about, children, actions = null }) => html`
  <header class="page-head">
    <div><h1 tabindex="-1">${title}</h1>${about && html`<p class="about">${about}</p>`}</div>
    ${actions && html`<div class="actions">${actions}</div>`}
  </header>
  ${children}`;

export const Panel = ({ title, note = null, children, actions = null }) => html`
  <section class="panel">
    <header><h2>${title}</h2>${note && html`<span class="note">${note}</span>`}${actions && html`<div class="actions">${actions}</div>`}</header>
    ${children}
  </section>`;

const LONG_VALUE = 7; // characters that a card has room for
export const Stat = ({ name, value, title, tone = "", href = null, detail = null }) => {
  const text = String(value).replace(/(\d) (?=\D)/g, "$1\u00a0"); // "4 min 39 s" may end its line behind a unit only
  const inside = html`<span class="name">${name}</span><b class=${text.length > LONG_VALUE ? "long" : null}>${text}</b>${detail && html`<span class="detail">${detail}</span>`}`;
  return href
    ? html`<a class=${`stat ${tone}`} title=${title} href=${href}>${inside}</a>`
    : html`<div class=${`stat ${tone}`} title=${title}>${inside}</div>`;
};

export const Empty = ({ title, text = null }) => html`<div class="empty"><b>${title}</b>${text && html`<p>${text}</p>`}</div>`;

// What the router says, with a link where it names the command that explains something. It quotes ids as a shell does.
const EXPLAIN = /flowcatalyst explain ((?:'[^']*'|"'"|[\w@%+=:,./-])+)/;
export function Sentence({ text }) {
  const found = EXPLAIN.exec(text);
  if (!found) return text;
  const id = found[1].replace(/'([^']*)'|"'"/g, (_, quoted) => quoted ?? "'");
  return html`${text.slice(0, found.index)}<a href=${explain(id)}>${found[0]}</a>${text.slice(found.index + found[0].length)}`;
}

// What a view says when its data cannot be had: one sentence.
export function Trouble({ error, what }) {
  if (!error) return null;
  const missing = error.status === 404 ? ` Perhaps this router has no ${what}.` : "";
  return html`<p class="trouble" role="alert">${error.message}${missing}</p>`;
}

// Until a view of a single thing has what it shows.
export const Loading = ({ load }) => !load.data && !load.error && html`<p class="loading" role="status">Reading …</p>`;

// Columns: { name, title, kind, cell }. Kinds are num, id, address (wide), text (cut after three lines), prose (not cut), word and do. On a phone each row is a block of its own.
export function Table({ caption, columns, rows, keyOf, empty }) {
  if (!rows.length) return empty ?? null;
  return html`<table class="rows" role="table">
    <caption class="unseen">${caption}</caption>
    <thead role="rowgroup"><tr role="row">${columns.map(
      (one) => html`<th key=${one.name} scope="col" role="columnheader" class=${one.kind ?? "text"} title=${one.title}>${one.kind === "do" ? html`<span class="unseen">${one.name}</span>` : one.name}</th>`,
    )}</tr></thead>
    <tbody role="rowgroup">${rows.map(
      (row) => html`<tr role="row" key=${keyOf(row)} data-key=${keyOf(row)}>${columns.map(
        (one) => html`<td key=${one.name} role="cell" class=${one.kind ?? "text"} data-column=${one.name}><div>${one.cell(row) || UNKNOWN}</div></td>`,
      )}</tr>`,
    )}</tbody>
  </table>`;
}

export const Pager = ({ list }) =>
  (list.back || list.forth) &&
  html`<nav class="pager" aria-label="Pages">
    <button onClick=${list.back} disabled=${!list.back}>Previous</button>
    <span>Page ${list.page}</span>
    <button onClick=${list.forth} disabled=${!list.forth}>Next</button>
  </nav>`;

// A list with everything around it: trouble, rows, what to say if there are none, and pages.
export const List = ({ list, what, caption, columns, keyOf, empty }) => html`
  <${Trouble} error=${list.error} what=${what} />
  ${!list.error && list.busy && !list.items.length && html`<p class="loading" role="status">Reading …</p>`}
  ${(!list.error || list.items.length > 0) && (!list.busy || list.items.length > 0) &&
  html`<${Table} caption=${caption} columns=${columns} rows=${list.items} keyOf=${keyOf} empty=${empty} />`}
  <${Pager} list=${list} />`;

// What an endpoint answered, with its status if the sentence does not say it.
export const answered = ({ status, detail }) => (status === null || detail.includes(status) ? detail : `${status} ${detail}`);

export const Facts = ({ facts }) => html`<dl class="facts">${facts
  .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
  .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

const TYPED_MS = 500;

// What is typed stays as it is while the page goes on, and takes effect after a moment without a key, by Enter, and when the field is left.
function Typed({ field, value, onSet }) {
  const [text, setText] = useState(value);
  const set = useRef(onSet);
  const applied = useRef(value);
  const apply = (typed) => {
    if (typed.trim() !== applied.current) set.current((applied.current = typed.trim()));
  };
  set.current = onSet;
  useEffect(() => {
    if (value !== applied.current) setText((applied.current = value));  // by Clear, a link or the way back
  }, [value]);
  useEffect(() => {
    const soon = setTimeout(() => apply(text), TYPED_MS);
    return () => clearTimeout(soon);
  }, [text]);
  return html`<input type=${field.type ?? "text"} value=${text} placeholder=${field.hint ?? ""} onInput=${(event) => setText(event.target.value)} onChange=${(event) => apply(event.target.value)} autocomplete="off" spellcheck=${false} />`;
}

// Filters: those that are chosen take effect at once.
export function Filters({ fields, values, onChange }) {
  const set = (name) => (event) => onChange({ ...values, [name]: event.target.value.trim() });
  const isSet = fields.some((one) => (values[one.name] ?? "") !== (one.without ?? ""));
  return html`<form class="filters" role="search" aria-label="Filters" onSubmit=${(event) => event.preventDefault()}>
    ${fields.map((one) => html`<label key=${one.name} class=${one.type === "datetime-local" ? "moment" : null}><span>${one.label}</span>${
      one.options
        ? html`<select value=${values[one.name] ?? ""} onChange=${set(one.name)}>${one.options.map(([value, label]) => html`<option key=${value} value=${value} selected=${value === (values[one.name] ?? "")}>${label}</option>`)}</select>`
        : html`<${Typed} field=${one} value=${values[one.name] ?? ""} onSet=${(value) => onChange({ ...values, [one.name]: value })} />`
    }</label>`)}
    ${isSet && html`<button type="button" class="quiet" onClick=${() => onChange(Object.fromEntries(fields.map((one) => [one.name, one.without ?? ""])))}>Clear</button>`}
  </form>`;
}

// Filters that stand in the address, so that a view can be linked to and the way back works.
export function useFilters(route) {
  const values = Object.fromEntries(route.query);
  const change = (next) => {
    const set = Object.entries(next).filter(([, value]) => value !== "");
    location.hash = `#/${route.parts.map(encodeURIComponent).join("/")}${set.length ? `?${new URLSearchParams(set)}` : ""}`;
  };
  return [values, change];
}

export const Meter = ({ value, most, label }) => {
  const share = most > 0 ? Math.min(1, value / most) : 0;
  return html`<span class="meter"><span class="figures">${value.toLocaleString("en")}<i>/ ${most.toLocaleString("en")}</i></span>
    <meter class=${share >= 1 ? "full" : ""} min="0" max="1" value=${share} aria-label=${label}></meter></span>`;
};

export const Text = ({ text, what }) => html`<pre class="body" tabindex="0" role="region" aria-label=${what}>${text}</pre>`;

// What was done, and what was not: each a sentence that is also read out.
export const told = store({ done: "", wrong: "" });
let forgetting = 0;
let stays = false;
// It goes with the view it is about, unless what was done is what leads to another view.
export function tell(sentence, leadsOn = false) {
  stays = leadsOn;
  told.set({ done: sentence, wrong: "" });
  clearTimeout(forgetting);
  forgetting = setTimeout(() => told.set({ done: "", wrong: told.get().wrong }), 8000);
}
export const complain = (sentence) => told.set({ done: "", wrong: sentence });

export function moveOn() {
  if (!stays) told.set({ done: "", wrong: "" });
  stays = false;
}

export function Told() {
  const { done, wrong } = told.use();
  return html`<div class="told">
    <p role="status" class=${done ? "done" : "unseen"}>${done}</p>
    <p role="alert" class=${wrong ? "wrong" : "unseen"}>${wrong}</p>
    ${wrong && html`<button class="quiet" onClick=${() => complain("")}>Dismiss</button>`}
  </div>`;
}

export function Copy({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      complain("The browser does not let a page copy.");
    }
  };
  return html`<button class="quiet small" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`;
}
