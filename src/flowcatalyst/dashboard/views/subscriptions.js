// Subscriptions: who gets a webhook of which events.
import { act, useLoad, usePages } from "../api.js";
import { html } from "../core.js";
import { confirm, confirmAct } from "../dialogs.js";
import { number, span, words } from "../format.js";
import { Address, Badge, Empty, Facts, link, List, Loading, Page, Panel, Text, Time, Trouble, Under } from "../ui.js";

const ROOT = "/api/subscriptions";
const at = (one, verb) => `${ROOT}/${encodeURIComponent(one.code)}/${verb}`;

function pause(one, then) {
  confirmAct(
    one.status === "PAUSED"
      ? { title: `Resume ${one.code}?`, text: "Its jobs start again, in their order.", button: "Resume", path: at(one, "resume"), said: () => `Subscription ${one.code} goes on.`, then }
      : { title: `Pause ${one.code}?`, text: "Jobs are still made of its events, and wait until it is resumed. What is in flight ends as usual.", button: "Pause", path: at(one, "pause"), said: () => `Subscription ${one.code} is paused.`, then },
  );
}

const sample = (one) =>
  confirm({ title: `Send a sample to ${one.code}?`, text: "A signed webhook with a test event goes to its target, through its pool.", button: "Send", run: async () => `Job ${(await act("POST", at(one, "test"))).id} was made.` });

const Buttons = ({ one, then, small = "" }) => html`
  <button class=${small} onClick=${() => pause(one, then)}>${one.status === "PAUSED" ? "Resume" : "Pause"}</button>
  <button class=${small} onClick=${() => sample(one)}>Sample …</button>`;

const types = (one) => one.eventTypes.map((binding) => binding.eventTypeCode).join(", ");

const columns = (reload) => [
  { name: "Subscription", title: "Its code; the link shows it whole", kind: "id", cell: (one) => html`<a href=${link("subscriptions", one.code)} title=${one.name}>${one.code}</a><${Under}>${one.name}<//>` },
  { name: "Status", title: "PAUSED: its jobs wait", kind: "word", cell: (one) => html`<${Badge} word=${one.status} />` },
  { name: "Event types", title: "Which events it wants", kind: "text", cell: (one) => html`<span class="mono">${types(one)}</span>` },
  { name: "Target", title: "Where its webhooks go, without the query, and through which pool", kind: "address", cell: (one) => html`<${Address} url=${one.targetUrl} /><${Under}><a href=${link("pools", one.dispatchPoolCode)}>${one.dispatchPoolCode}</a><//>` },
  { name: "Mode", title: "What a failure means for its group", kind: "word", cell: (one) => words(one.mode) },
  { name: "Note", title: "Why its webhooks cannot be sent as they should", kind: "text", cell: (one) => (one.problem ? html`<span class="wrong">${one.problem}</span>` : one.note) },
  { name: "Actions", title: "Pause it, or try it", kind: "do", cell: (one) => html`<${Buttons} one=${one} then=${reload} small="small" />` },
];

function All() {
  const list = usePages(ROOT);
  return html`<${Page} title="Subscriptions" about="Each gets a signed webhook of every event that it wants.">
    <${List} list=${list} what="subscriptions" caption="Subscriptions" columns=${columns(list.reload)} keyOf=${(one) => one.code} empty=${html`<${Empty} title="No subscriptions" text="Make one with POST /api/subscriptions." />`} />
  <//>`;
}

function One({ code }) {
  const load = useLoad(`${ROOT}/${encodeURIComponent(code)}`, 5000);
  const one = load.data;
  return html`<${Page} title=${code} about=${html`<a href="#/subscriptions">All subscriptions</a>`} actions=${one && html`<a class="button" href=${`#/jobs?subscription=${encodeURIComponent(code)}`}>Its jobs</a><${Buttons} one=${one} then=${load.reload} />`}>
    <${Trouble} error=${load.error} what="such subscription" /><${Loading} load=${load} />
    ${one && html`<div class="columns">
      <${Panel} title="Subscription"><${Facts} facts=${[
        ["Name", one.name],
        ["Status", html`<${Badge} word=${one.status} />`],
        ["Target", html`<${Address} url=${one.targetUrl} whole />`],
        ["Event types", html`<span class="mono wrap">${types(one)}</span>`],
        ["Mode", words(one.mode)],
        ["Pool", html`<a href=${link("pools", one.dispatchPoolCode)}>${one.dispatchPoolCode}</a>`],
        ["Last error", one.problem && html`<span class="wrong">${one.problem}</span>`],
        ["Note", one.note],
      ]} /><//>
      <${Panel} title="Terms"><${Facts} facts=${[
        ["Timeout", span(one.timeoutSeconds * 1000)],
        ["Retries", number(one.maxRetries)],
        ["Delays", one.retryDelaysSeconds.map((s) => span(s * 1000)).join(", ") || "the usual ones"],
        ["Delay of the first attempt", one.delaySeconds ? span(one.delaySeconds * 1000) : "none"],
        ["Events older than", one.maxAgeSeconds === null ? null : `${span(one.maxAgeSeconds * 1000)} are left out`],
        ["Body", one.dataOnly ? "the data alone" : "the whole event"],
        ["Secrets", number(one.secrets.length)],
        ["Undecided events", number(one.undecidedEvents)],
        ["Changed", html`<${Time} at=${one.updatedAt ?? one.createdAt} />`],
      ]} />${one.filters.length > 0 && html`<h3>Filters</h3><${Text} text=${JSON.stringify(one.filters, null, 2)} what="Filters" />`}<//>
    </div>`}
  <//>`;
}

export const Subscriptions = ({ route }) => (route.parts[1] ? html`<${One} key=${route.parts[1]} code=${route.parts[1]} />` : html`<${All} />`);
