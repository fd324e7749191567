// How the router is, and what it does right now.
import { Chart } from "../chart.js";
import { html } from "../core.js";
import { capital, number, rate, span } from "../format.js";
import { live, past } from "../live.js";
import { Badge, Empty, link, Meter, Page, Panel, Sentence, Stat, Table } from "../ui.js";

const WHERE = { group: "#/groups", endpoint: "#/endpoints", "circuit breaker": "#/endpoints", consumer: "#/queues", "dead letters": "#/dead-letters", jobs: "#/jobs?parked=true", warnings: "#/warnings", pause: "#/pauses", standby: "#/standby", configuration: "#/warnings" };
const SAID = {
  HEALTHY: "Everything works.",
  WARNING: "It works, but somebody should look.",
  DEGRADED: "A part of it does not work.",
};

const Health = ({ now }) => html`<section class=${`health ${now.level}`} aria-label="Health">
  <div class="line"><${Badge} word=${now.level} /><b>${SAID[now.level]}</b><span class="role" title="primary: this router works. standby: it waits to take over. disabled: it polls no queue.">${now.role}</span></div>
  ${now.reasons.length > 0 && html`<ul>${now.reasons.map((one) => html`<li key=${one.text}><a href=${WHERE[one.part] ?? "#/overview"}>${capital(one.part)}</a> <span><${Sentence} text=${one.text} /></span></li>`)}</ul>`}
</section>`;

const POOLS = [
  { name: "Pool", title: "Its code", kind: "id", cell: (pool) => html`<a href=${link("pools", pool.code)}>${pool.code}</a>` },
  { name: "State", title: "paused: an operator stopped it; nothing is received for it", kind: "word", cell: (pool) => html`<${Badge} word=${pool.paused ? "PAUSED" : "RUNNING"} />` },
  { name: "Slots in use", title: "Attempts under way, of those that may be at once", kind: "num", cell: (pool) => html`<${Meter} value=${pool.inFlight} most=${pool.slots} label=${`Slots of ${pool.code} in use`} />` },
  { name: "In the router", title: "Messages of the pool in the router that have not started", kind: "num", cell: (pool) => number(pool.queued) },
  { name: "Parked", title: "Of these: beyond the capacity, because they came along with others or cannot start now", kind: "num", cell: (pool) => number(pool.parked) },
  { name: "Per second", title: "Deliveries in the last second or so", kind: "num", cell: (pool) => rate(past.pools.get(pool.code)?.perSecond.at(-1)) },
  { name: "Delivered", title: "Messages delivered since the start", kind: "num", cell: (pool) => number(pool.delivered) },
];

export function Overview() {
  const { overview: now, state, since } = live.use();
  if (!now) return html`<${Page} title="Overview"><p class="loading" role="status">Waiting for the first figures …</p><//>`;
  const queued = now.queued === null ? "unknown" : `${now.queuedExact ? "" : "≥ "}${number(now.queued)}`;
  return html`<${Page} title="Overview">
    ${state === "lost" && html`<p class="trouble" role="alert">No connection since ${since.toTimeString().slice(0, 8)}: the figures are of before.</p>`}
    <${Health} now=${now} />
    <div class="stats">
      <${Stat} name="Delivered / s" value=${rate(now.deliveredPerSecond)} title="By all pools in the last second or so" />
      <${Stat} name="Failed / s" value=${rate(now.failedPerSecond)} tone=${now.failedPerSecond > 0 ? "warn" : ""} title="Attempts that were no success in the last second or so; most of them are tried again" />
      <${Stat} name="In flight" value=${number(now.inFlight)} title="Attempts under way" />
      <${Stat} name="In queues" value=${queued} title="All that the queues hold: waiting, leased by a router, and delayed. Brokers may not tell." href="#/queues" />
      <${Stat} name="Lag p95" value=${span(now.lagMs?.p95 ?? null)} detail=${now.lagMs ? `p50 ${span(now.lagMs.p50)}` : null} title="From publishing to delivery, of late: 95 of 100 messages took at most this long" />
      <${Stat} name="Blocked groups" value=${number(now.blockedGroups)} tone=${now.blockedGroups ? "bad" : ""} title="Groups that wait for a message that failed or hangs" href="#/groups" />
      <${Stat} name="Dead letters" value=${number(now.deadLetters)} tone=${now.deadLetters ? "warn" : ""} title="Messages that will not be tried again until somebody replays them" href="#/dead-letters" />
      <${Stat} name="Warnings" value=${number(now.warnings)} tone=${now.warnings ? "warn" : ""} title="Warnings of every severity that nobody has acknowledged" href="#/warnings" />
    </div>
    <div class="charts">
      <${Chart} title="Throughput" note="per second" at=${past.at} format=${rate} series=${[
        { name: "delivered", colour: "a", values: past.delivered, filled: true },
        { name: "failed", colour: "c", values: past.failed },
      ]} />
      <${Chart} title="In the router" note="messages" at=${past.at} format=${(value) => number(value === null ? null : Math.round(value))} series=${[
        { name: "in flight", colour: "a", values: past.inFlight, filled: true },
        { name: "not started", colour: "b", values: past.buffered },
      ]} />
      ${past.p95.some((value) => value !== null)
        ? html`<${Chart} key="lag" title="Lag" note="publish to delivery" at=${past.at} format=${span} series=${[
            { name: "p95", colour: "b", values: past.p95, filled: true },
            { name: "p50", colour: "a", values: past.p50 },
          ]} />`
        : html`<${Chart} key="queues" title="In queues" note="messages" at=${past.at} format=${(value) => number(value === null ? null : Math.round(value))} series=${[{ name: "held", colour: "b", values: past.queued, filled: true }]} />`}
    </div>
    <${Panel} title="Pools" note=${now.pools.length >= 100 ? "the 100 busiest" : null}>
      <${Table} caption="Pools" columns=${POOLS} rows=${now.pools} keyOf=${(pool) => pool.code} empty=${html`<${Empty} title="No pools yet" text="A pool is made when it is configured, or when the first message needs it." />`} />
    <//>
  <//>`;
}
