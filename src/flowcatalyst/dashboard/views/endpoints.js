// Endpoints: whether they answer, how fast, and how much of the pools they may have.
import { query, usePages } from "../api.js";
import { html } from "../core.js";
import { confirmAct } from "../dialogs.js";
import { number, span, UNKNOWN } from "../format.js";
import { Address, Badge, Empty, Filters, link, List, Meter, Page, Under, useFilters } from "../ui.js";

const of = (one) => `?endpoint=${encodeURIComponent(one.endpoint)}`;

export function pauseEndpoint(one, then) {
  confirmAct(
    one.pausedBy
      ? { title: "Resume this endpoint?", text: one.endpoint, button: "Resume", path: `/monitoring/endpoints/resume${of(one)}`, said: () => `Deliveries to ${one.endpoint} go on.`, then }
      : { title: "Pause this endpoint?", text: `No attempt is spent on ${one.endpoint} until somebody resumes it. What is in flight ends as usual.`, button: "Pause", path: `/monitoring/endpoints/pause${of(one)}`, said: () => `${one.endpoint} is paused.`, then },
  );
}

const reset = (one, then) =>
  confirmAct({
    title: "Reset this circuit breaker?",
    text: `The failures of ${one.endpoint} are forgotten. Messages that only wait for the breaker start now; those that failed wait for their next attempt all the same.`,
    button: "Reset breaker",
    path: `/monitoring/circuit-breakers/reset${of(one)}`,
    said: () => `The circuit breaker of ${one.endpoint} is closed.`,
    then,
  });

const errors = (one) => {
  const all = one.delivered + one.failed;
  return all ? `${((100 * one.failed) / all).toLocaleString("en", { maximumFractionDigits: 1 })} %` : UNKNOWN;
};

// A breaker that lets attempts through says nothing good of an endpoint that answers none of them.
const stateOf = (one) => (one.state === "CLOSED" && one.downForMs !== null ? { word: "DOWN", title: "Its breaker is closed: it is still tried" } : { word: one.state });

const columns = (reload) => [
  { name: "Endpoint", title: "Scheme, host, port and path, and the pools that deliver to it; the link lists its groups", kind: "address", cell: (one) => html`<${Address} url=${one.endpoint} href=${`#/groups?show=all&endpoint=${encodeURIComponent(one.endpoint)}`} /><${Under}>${one.pools.map((code, place) => html`${place > 0 && ", "}<a key=${code} href=${link("pools", code)}>${code}</a>`)}<//>` },
  { name: "State", title: "Of its breaker. CLOSED: attempts go out. OPEN: none is spent for a few seconds. HALF_OPEN: up to three probes are under way. PAUSED: an operator paused it. DOWN: it has failed for long, and is still tried", kind: "word", cell: (one) => html`<${Badge} ...${stateOf(one)} />
    ${one.pausedBy && html`<div><${Badge} word="PAUSED" title=${`By ${one.pausedBy}, ${span(one.pausedForMs)} ago`} /></div>`}
    ${one.downForMs !== null && html`<${Under}>down for ${span(one.downForMs)}<//>`}` },
  { name: "Share in use", title: "Attempts under way, of the slots that it may have now", kind: "num", cell: (one) => html`<${Meter} value=${one.inFlight} most=${one.slots} label="Share in use" />` },
  { name: "Waiting", title: "Groups that wait at its gate", kind: "num", cell: (one) => number(one.waiting) },
  { name: "Delivered", title: "Attempts that were a success", kind: "num", cell: (one) => number(one.delivered) },
  { name: "Errors", title: "The share of attempts that failed, and how many did", kind: "num", cell: (one) => html`${errors(one)}${one.failed > 0 && html`<${Under}>${number(one.failed)} failed<//>`}` },
  { name: "p95", title: "How long 95 of 100 attempts took at most", kind: "num", cell: (one) => html`<span title=${`mean ${span(one.meanMs)}`}>${span(one.p95Ms)}</span>` },
  { name: "Last error", title: "Why the latest failed attempt failed", kind: "text", cell: (one) => one.lastError },
  { name: "Actions", title: "Pause it, or close its breaker", kind: "do", cell: (one) => html`
    <button class="small" onClick=${() => pauseEndpoint(one, reload)}>${one.pausedBy ? "Resume" : "Pause"}</button>
    ${one.state !== "CLOSED" && html`<button class="small" onClick=${() => reset(one, reload)}>Reset</button>`}` },
];

export function Endpoints({ route }) {
  const [filters, setFilters] = useFilters(route);
  const list = usePages(`/monitoring/endpoints${query({ ...filters, limit: 50 })}`, { every: 2000 });
  return html`<${Page} title="Endpoints" about="Everything that was called of late. An endpoint that fails is given a rest by its circuit breaker, and a slow one may have only its share of a pool.">
    <${Filters} fields=${[{ name: "prefix", label: "Address begins with", type: "search" }]} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="list of endpoints" caption="Endpoints" columns=${columns(list.reload)} keyOf=${(one) => one.endpoint}
      empty=${html`<${Empty} title="No endpoints" text="Nothing was called in the last hour, or nothing begins like that." />`} />
  <//>`;
}
