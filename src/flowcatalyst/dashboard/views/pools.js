// Pools: how their slots are used, what waits for them, and their limits, which can be changed while they run.
import { useLoad, usePages } from "../api.js";
import { Chart } from "../chart.js";
import { html } from "../core.js";
import { confirmAct } from "../dialogs.js";
import { number, rate, span, words } from "../format.js";
import { live, past } from "../live.js";
import { Badge, Empty, Facts, link, List, Loading, Meter, Page, Panel, Stat, Trouble } from "../ui.js";

const at = (pool, verb = "") => `/monitoring/pools/${encodeURIComponent(pool.code)}${verb}`;
const stateOf = (pool) => (pool.pausedBy ? "PAUSED" : pool.draining ? "DRAINING" : "RUNNING");
const rateOf = (limit) => (limit === null ? "no limit" : `${number(limit)} / min`);

function changeLimits(pool, then) {
  confirmAct({
    title: `Change the limits of ${pool.code}`,
    text: "They hold at once and until the next restart. Attempts in flight are never cut short.",
    button: "Change limits",
    method: "PUT",
    path: at(pool),
    fields: [
      { name: "concurrency", label: "Slots", type: "number", min: 1, required: true, value: String(pool.concurrency), hint: "Attempts that may be under way at once" },
      { name: "rate", label: "Starts per minute", type: "number", min: 0, value: String(pool.rateLimitPerMinute ?? ""), hint: "Empty or 0: no limit" },
    ],
    body: ({ concurrency, rate: perMinute }) => ({ concurrency: Number(concurrency), rateLimitPerMinute: perMinute === "" ? null : Number(perMinute) }),
    said: (now) => `Pool ${now.code} has ${number(now.concurrency)} slots and ${now.rateLimitPerMinute === null ? "no rate limit" : `at most ${number(now.rateLimitPerMinute)} starts per minute`} now.`,
    then,
  });
}

export function pausePool(pool, then) {
  confirmAct(
    pool.pausedBy
      ? { title: `Resume pool ${pool.code}?`, text: "Its messages are received and start again.", button: "Resume", path: at(pool, "/resume"), said: () => `Pool ${pool.code} goes on.`, then }
      : { title: `Pause pool ${pool.code}?`, text: "Nothing is received for it and no attempt is spent until somebody resumes it. What is in flight ends as usual.", button: "Pause", path: at(pool, "/pause"), said: () => `Pool ${pool.code} is paused.`, then },
  );
}

const Buttons = ({ pool, then, small = "" }) => html`
  <button class=${small} onClick=${() => changeLimits(pool, then)}>Limits …</button>
  <button class=${small} onClick=${() => pausePool(pool, then)}>${pool.pausedBy ? "Resume" : "Pause"}</button>`;

const columns = (reload) => [
  { name: "Pool", title: "Its code", kind: "id", cell: (pool) => html`<a href=${link("pools", pool.code)}>${pool.code}</a>` },
  { name: "State", title: "paused: an operator stopped it. draining: it is no longer configured and ends what it has", kind: "word", cell: (pool) => html`<${Badge} word=${stateOf(pool)} title=${pool.pausedBy ? `By ${pool.pausedBy}, ${span(pool.pausedForMs)} ago` : null} />` },
  { name: "Slots in use", title: "Attempts under way, of those that may be at once (concurrency)", kind: "num", cell: (pool) => html`<${Meter} value=${pool.inFlight} most=${pool.share?.concurrency ?? pool.concurrency} label=${`Slots of ${pool.code} in use`} />` },
  { name: "Rate limit", title: "Starts that are allowed per minute", kind: "num", cell: (pool) => rateOf(pool.rateLimitPerMinute) },
  { name: "Waiting", title: "Messages in the router that have not started, held ones included", kind: "num", cell: (pool) => number(pool.queued) },
  { name: "Groups", title: "Message groups with messages in the router", kind: "num", cell: (pool) => number(pool.groups) },
  { name: "On hold", title: "Groups that wait for a next attempt, an endpoint or a message that is to come back", kind: "num", cell: (pool) => number(pool.heldGroups) },
  { name: "Delivered, 5 min", title: "Messages delivered in the last five minutes", kind: "num", cell: (pool) => number(pool.last5Minutes.delivered) },
  { name: "Rate waits, 5 min", title: "How often a start had to wait for the rate limit in the last five minutes", kind: "num", cell: (pool) => number(pool.last5Minutes.rateLimitWaits) },
  { name: "p95, 5 min", title: "How long 95 of 100 attempts of the last five minutes took at most, an estimate", kind: "num", cell: (pool) => span(pool.last5Minutes.p95AttemptMs) },
  { name: "Actions", title: "Change it while it runs", kind: "do", cell: (pool) => html`<${Buttons} pool=${pool} then=${reload} small="small" />` },
];

function One({ code }) {
  live.use();
  const load = useLoad("/monitoring/pool-stats", 2000);
  const pool = load.items.find((one) => one.code === code);
  const of = past.pools.get(code);
  const whole = (value) => number(value === null ? null : Math.round(value));
  if (!pool) {
    return html`<${Page} title=${code}><${Trouble} error=${load.error} what="pools" /><${Loading} load=${load} />${load.data && html`<${Empty} title="There is no such pool" text="It may have been removed from the configuration." />`}<//>`;
  }
  const recent = pool.last5Minutes;
  return html`<${Page} title=${pool.code} about=${html`<a href="#/pools">All pools</a>`} actions=${html`<${Buttons} pool=${pool} then=${load.reload} />`}>
    ${pool.pausedBy && html`<p class="notice"><${Badge} word="PAUSED" /> by ${pool.pausedBy}, ${span(pool.pausedForMs)} ago: nothing is received for it.</p>`}
    <div class="stats">
      <${Stat} name="In flight" value=${`${number(pool.inFlight)} / ${number(pool.share?.concurrency ?? pool.concurrency)}`} title="Attempts under way, of those that may be at once" />
      <${Stat} name="Waiting" value=${number(pool.queued)} title="Messages in the router that have not started" />
      <${Stat} name="Groups" value=${number(pool.groups)} detail=${`${number(pool.heldGroups)} on hold`} title="Message groups with messages in the router" />
      <${Stat} name="Delivered, 5 min" value=${number(recent.delivered)} title="Messages delivered in the last five minutes" />
      <${Stat} name="Retried, 5 min" value=${number(recent.retried)} title="Attempts that failed and were repeated within the router in the last five minutes" />
      <${Stat} name="p95, 5 min" value=${span(recent.p95AttemptMs)} detail=${`mean ${span(recent.meanAttemptMs)}`} title="How long 95 of 100 attempts of the last five minutes took at most" />
    </div>
    ${of && html`<div class="charts">
      <${Chart} title="Slots" note="in use" at=${of.at} format=${whole} series=${[{ name: "in flight", colour: "a", values: of.inFlight, filled: true }, { name: "slots", colour: "b", values: of.slots, dashed: true }]} />
      <${Chart} title="Waiting" note="in the router" at=${of.at} format=${whole} series=${[{ name: "not started", colour: "b", values: of.queued, filled: true }]} />
      <${Chart} title="Delivered" note="per second" at=${of.at} format=${rate} series=${[{ name: "delivered", colour: "a", values: of.perSecond, filled: true }]} />
    </div>`}
    <div class="columns">
      <${Panel} title="Limits"><${Facts} facts=${[
        ["Slots", number(pool.concurrency)],
        ["Rate limit", rateOf(pool.rateLimitPerMinute)],
        ["Share of this process", pool.share && `${number(pool.share.concurrency)} slots, ${rateOf(pool.share.rateLimitPerMinute)}; ${pool.share.processes} processes divide them`],
        ["Capacity", number(pool.capacity)],
        ["Parked at most", number(pool.parkedLimit)],
        ["A failure holds", words(pool.failureScope)],
        ["Delivery attempts at most", pool.maxDeliveryAttempts === null ? "no limit" : number(pool.maxDeliveryAttempts)],
        ["Retried statuses", pool.retryStatuses.join(", ") || "the usual ones"],
        ["Success means", words(pool.success)],
        ["Ack before the next", pool.ackBeforeNext ? "yes" : "no"],
      ]} /><//>
      <${Panel} title="Since the start"><${Facts} facts=${[
        ["Delivered", number(pool.delivered)],
        ["Retried", number(pool.retried)],
        ["Nacked", number(pool.nacked)],
        ["Dead letters", number(pool.deadLettered)],
        ["Rate limit waits", number(pool.rateLimitWaits)],
        ["Mean attempt", span(pool.meanAttemptMs)],
        ...Object.entries(pool.attempts).map(([result, count]) => [`Attempts: ${words(result)}`, number(count)]),
      ]} /><//>
    </div>
  <//>`;
}

function All() {
  const list = usePages("/monitoring/pool-stats", { every: 2000 });
  return html`<${Page} title="Pools" about="A pool bounds how many attempts are under way at once and how many start per minute.">
    <${List} list=${list} what="pools" caption="Pools" columns=${columns(list.reload)} keyOf=${(pool) => pool.code}
      empty=${html`<${Empty} title="No pools yet" text="A pool is made when it is configured, or when the first message needs it. A standby has none." />`} />
  <//>`;
}

export const Pools = ({ route }) => (route.parts[1] ? html`<${One} key=${route.parts[1]} code=${route.parts[1]} />` : html`<${All} />`);
