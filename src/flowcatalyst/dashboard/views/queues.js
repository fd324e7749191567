// Queues: what they hold, and whether their consumers poll them.
import { useLoad, usePages } from "../api.js";
import { html } from "../core.js";
import { number, span } from "../format.js";
import { Badge, Empty, Id, List, Page } from "../ui.js";

const known = (value) => (value === null ? html`<span class="note">unknown</span>` : number(value));

function stateOf(queue, consumer) {
  if (queue.lastError || consumer?.lastError) return ["FAILED", queue.lastError || consumer.lastError];
  if (!consumer) return ["NOT_POLLED", "This router does not poll it: it is a standby, disabled, or the queue is only published to"];
  if (!consumer.healthy) return ["DOWN", "It was not polled for a minute"];
  return ["POLLED", consumer.waitsForCapacity ? "The pools are full, so it does not ask for more" : "It is polled"];
}

const columns = (consumers) => [
  { name: "Queue", title: "Its name here", kind: "id", cell: (queue) => html`<b>${queue.name}</b>` },
  { name: "State", title: "Whether the router polls it", kind: "word", cell: (queue) => {
    const [word, title] = stateOf(queue, consumers.get(queue.name));
    return html`<${Badge} word=${word} tone=${word === "NOT_POLLED" ? "plain" : null} title=${title} />`;
  } },
  { name: "Waiting", title: "Messages that nobody has in hand and that are not delayed themselves; those behind a delayed message of their group, which cannot go before it, are counted here too", kind: "num", cell: (queue) => known(queue.waiting) },
  { name: "Leased", title: "Messages that a router has in hand", kind: "num", cell: (queue) => known(queue.leased) },
  { name: "Delayed", title: "Messages that wait for a time: a next attempt after failures", kind: "num", cell: (queue) => known(queue.delayed) },
  { name: "Last poll", title: "How long ago it was polled with success", kind: "num", cell: (queue) => (queue.secondsSincePoll === null ? null : `${span(queue.secondsSincePoll * 1000)} ago`) },
  { name: "Restarts", title: "How often its consumer was started again because it was silent", kind: "num", cell: (queue) => number(consumers.get(queue.name)?.restarts) },
  { name: "Address", title: "Where it is, without credentials", kind: "id", cell: (queue) => queue.uri && html`<${Id} id=${queue.uri} />` },
  { name: "Note", title: "What went wrong, or what it waits for", kind: "text", cell: (queue) => {
    const consumer = consumers.get(queue.name);
    const error = queue.lastError || consumer?.lastError;
    return error ? html`<span class="wrong">${error}</span>` : consumer?.waitsForCapacity ? "waits for free capacity in a pool" : null;
  } },
];

export function Queues() {
  const list = usePages("/monitoring/queue-stats", { every: 2000 });
  const consumers = useLoad("/monitoring/consumer-health", 2000);
  const byName = new Map(consumers.items.map((one) => [one.queue, one]));
  return html`<${Page} title="Queues" about="What the queues hold, and whether a consumer polls them. Brokers may not tell how much they hold.">
    <${List} list=${list} what="queues" caption="Queues" columns=${columns(byName)} keyOf=${(queue) => queue.name}
      empty=${html`<${Empty} title="No queues" text="The configuration names none that can be used." />`} />
  <//>`;
}
