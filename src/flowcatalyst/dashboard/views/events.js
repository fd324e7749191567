// Events that were accepted, and the jobs that were made of them.
import { query, useLoad, usePages } from "../api.js";
import { html } from "../core.js";
import { bytes, number } from "../format.js";
import { Empty, explain, Facts, Filters, Id, link, List, Loading, Page, Panel, Table, Text, Time, Trouble, useFilters } from "../ui.js";
import { jobColumns } from "./jobs.js";

const COLUMNS = [
  { name: "Event", title: "Our id of it; the link shows it whole", kind: "id", cell: (one) => html`<${Id} id=${one.id} href=${link("events", one.id)} />` },
  { name: "Type", title: "What happened", kind: "text", cell: (one) => html`<span class="mono">${one.type}</span>` },
  { name: "Source", title: "Who says so", kind: "text", cell: (one) => one.source },
  { name: "Subject", title: "What it is about", kind: "id", cell: (one) => one.subject && html`<${Id} id=${one.subject} />` },
  { name: "Group", title: "Webhooks of a group go out one after the other", kind: "id", cell: (one) => one.messageGroup && html`<${Id} id=${one.messageGroup} href=${`#/events?messageGroup=${encodeURIComponent(one.messageGroup)}`} />` },
  { name: "Size", title: "Of its data", kind: "num", cell: (one) => bytes(one.dataBytes) },
  { name: "Jobs", title: "Made of it when it came; replays come on top", kind: "num", cell: (one) => number(one.jobs) },
  { name: "Accepted", title: "By the clock of this browser", kind: "word", cell: (one) => html`<${Time} at=${one.createdAt} />` },
];

const FIELDS = [
  { name: "type", label: "Type" },
  { name: "source", label: "Source" },
  { name: "subject", label: "Subject" },
  { name: "messageGroup", label: "Group" },
  { name: "correlationId", label: "Correlation id" },
];

function All({ route }) {
  const [filters, setFilters] = useFilters(route);
  const list = usePages(`/api/events${query({ ...filters, limit: 50 })}`);
  return html`<${Page} title="Events" about="What happened, told once. Each subscription that wants an event gets a job of it. Newest first.">
    <${Filters} fields=${FIELDS} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="events" caption="Events" columns=${COLUMNS} keyOf=${(one) => one.id} empty=${html`<${Empty} title="No events" text="None was sent yet, or none matches." />`} />
  <//>`;
}

function One({ id }) {
  const load = useLoad(`/api/events/${encodeURIComponent(id)}`, 5000);
  const { event, data, dataBase64, jobs } = load.data ?? {};
  return html`<${Page} title="Event" about=${html`<a href="#/events">All events</a> · <span class="mono wrap">${id}</span>`} actions=${event && html`<a class="button" href=${explain(id, "EVENT")}>Explain</a>`}>
    <${Trouble} error=${load.error} what="such event" /><${Loading} load=${load} />
    ${event && html`<div class="columns">
      <${Panel} title="Event"><${Facts} facts=${[
        ["Type", html`<span class="mono">${event.type}</span>`],
        ["Source", event.source],
        ["Subject", event.subject],
        ["Happened", html`<${Time} at=${event.time} />`],
        ["Accepted", html`<${Time} at=${event.createdAt} />`],
        ["Group", event.messageGroup],
        ["Deduplication id", event.deduplicationId],
        ["Correlation id", event.correlationId],
        ["Causation id", event.causationId],
        ["Sender's id", event.senderId],
        ...Object.entries(event.extensions).map(([name, value]) => [name, String(value)]),
      ]} /><//>
      <${Panel} title="Data" note=${event.dataContentType}>${data !== null || dataBase64 ? html`<${Text} text=${dataBase64 ?? (typeof data === "string" ? data : JSON.stringify(data, null, 2))} what="Data" />` : html`<${Empty} title="No data" />`}<//>
    </div>
    <${Panel} title="Jobs"><${Table} caption="Jobs of the event" columns=${jobColumns(load.reload)} rows=${jobs.slice(0, 50)} keyOf=${(job) => job.id} empty=${html`<${Empty} title="No jobs" text="No subscription wanted it when it came." />`} /><//>`}
  <//>`;
}

export const Events = ({ route }) => (route.parts[1] ? html`<${One} key=${route.parts[1]} id=${route.parts[1]} />` : html`<${All} route=${route} />`);
