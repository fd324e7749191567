// Who changed what, and when.
import { query, usePages } from "../api.js";
import { html } from "../core.js";
import { number, words } from "../format.js";
import { Empty, Filters, List, Page, Time, useFilters } from "../ui.js";

const COLUMNS = [
  { name: "When", title: "By the clock of this browser", kind: "word", cell: (one) => html`<${Time} at=${one.at} />` },
  { name: "Who", title: "Name of the credentials, or anonymous", kind: "word", cell: (one) => html`<span title=${one.role ?? ""}>${one.who}</span>` },
  { name: "Action", title: "What kind of change it was", kind: "word", cell: (one) => words(one.action) },
  { name: "Object", title: "What was changed", kind: "text", cell: (one) => one.object },
  { name: "Detail", title: "Before -> after, where that is small", kind: "text", cell: (one) => one.detail },
  { name: "Count", title: "Of messages, dead letters, warnings or breakers", kind: "num", cell: (one) => number(one.count) },
  { name: "Requests", title: "Publishes and refused attempts of a caller are summed up by the minute", kind: "num", cell: (one) => number(one.requests) },
  { name: "Address", title: "Of the client, or of the proxy it came through", kind: "word", cell: (one) => html`<span class="mono" title=${one.forwardedFor ? `for ${one.forwardedFor}` : null}>${one.address}</span>` },
];

const FIELDS = [
  { name: "who", label: "Who" },
  { name: "action", label: "Action", hint: "as POOL_CHANGE" },
];
const LIMIT = 50;

export function Audit({ route }) {
  const [filters, setFilters] = useFilters(route);
  const path = (before = "") => `/monitoring/audit${query({ ...filters, action: filters.action?.toUpperCase().replaceAll(" ", "_"), limit: LIMIT, before })}`;
  const list = usePages(path(), { nextOf: (items) => (items.at(-1)?.number > 1 ? path(items.at(-1).number) : null) });
  return html`<${Page} title="Audit" about="Who changed what, and when, newest first. The last 1,000 of each kind are kept.">
    <${Filters} fields=${FIELDS} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="audit trail" caption="Audit trail" columns=${COLUMNS} keyOf=${(one) => one.number} empty=${html`<${Empty} title="Nothing here" text="Nobody changed anything, or nothing matches." />`} />
  <//>`;
}
