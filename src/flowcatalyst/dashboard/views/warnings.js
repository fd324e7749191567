// Warnings: what somebody should know. Acknowledged means that somebody does; if it comes again it is news again.
import { query, usePages } from "../api.js";
import { html } from "../core.js";
import { confirmAct } from "../dialogs.js";
import { count, number } from "../format.js";
import { Badge, Empty, Filters, List, Page, Sentence, Time, Under, useFilters } from "../ui.js";

const ROOT = "/monitoring/warnings";

const acknowledge = (one, then) =>
  confirmAct({ title: "Acknowledge this warning?", text: one.message, button: "Acknowledge", path: `${ROOT}/${one.id}/acknowledge`, said: () => "The warning is acknowledged. If it comes again it is news again.", then });

const remove = (one, then) =>
  confirmAct({ title: "Remove this warning?", text: one.message, button: "Remove", danger: true, method: "DELETE", path: `${ROOT}/${one.id}`, said: () => "The warning is removed.", then });

const columns = (reload) => [
  { name: "Severity", title: "How bad it is: WARN, ERROR, CRITICAL", kind: "word", cell: (one) => html`<${Badge} word=${one.severity} />` },
  { name: "Code", title: "What kind it is; docs/operations.md says what to do for each", kind: "word", cell: (one) => html`<span class="mono">${one.code}</span>` },
  { name: "Text", title: "What happened, and which part of the router says so", kind: "prose", cell: (one) => html`<${Sentence} text=${one.message} /><${Under}>${one.source}<//>` },
  { name: "Times", title: "How often it came", kind: "num", cell: (one) => number(one.count) },
  { name: "Last", title: "When it came last, and first, by the clock of this browser", kind: "word", cell: (one) => html`<${Time} at=${one.lastAt} />${one.count > 1 && html`<${Under}>first <${Time} at=${one.firstAt} /><//>`}` },
  { name: "Actions", title: "Acknowledged: somebody knows of it", kind: "do", cell: (one) => html`
    ${one.acknowledged ? html`<span class="note">acknowledged</span>` : html`<button class="small" onClick=${() => acknowledge(one, reload)}>Acknowledge</button>`}
    <button class="small" onClick=${() => remove(one, reload)}>Remove</button>` },
];

const FIELDS = [
  { name: "show", label: "Show", options: [["", "Not acknowledged"], ["all", "All"]] },
  { name: "severity", label: "Severity", options: [["", "Any"], ["WARN", "WARN"], ["ERROR", "ERROR"], ["CRITICAL", "CRITICAL"]] },
  { name: "text", label: "Text contains" },
];

export function Warnings({ route }) {
  const [filters, setFilters] = useFilters(route);
  const { show, ...given } = filters;
  const which = { ...given, acknowledged: show === "all" ? "" : "false" };
  const list = usePages(`${ROOT}${query(which)}`, { every: 2000 });
  const all = () =>
    confirmAct({ title: "Acknowledge all of these?", text: "Those that the filters leave. They stay in the list of all warnings; one that comes again is news again.", button: "Acknowledge all", path: `${ROOT}/acknowledge${query({ ...which, acknowledged: "false" })}`, said: (result) => `${count(result.acknowledged, "warning is", "warnings are")} acknowledged.`, then: list.reload });
  const open = list.items.some((one) => !one.acknowledged);
  return html`<${Page} title="Warnings" about="What somebody should know, newest first. One that did not come again for eight hours is forgotten." actions=${open && html`<button onClick=${all}>Acknowledge all …</button>`}>
    <${Filters} fields=${FIELDS} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="warnings" caption="Warnings" columns=${columns(list.reload)} keyOf=${(one) => one.id}
      empty=${html`<${Empty} title="No warnings" text=${show === "all" || Object.keys(given).length ? "None match." : "There is none that nobody has acknowledged."} />`} />
  <//>`;
}
