// Who is at work, and where the configuration comes from.
import { useLoad } from "../api.js";
import { html } from "../core.js";
import { confirmAct } from "../dialogs.js";
import { number, span } from "../format.js";
import { Badge, Facts, Id, Loading, Page, Panel, Table, Time, Trouble } from "../ui.js";

const SOURCES = [
  { name: "Source", title: "One place the configuration comes from", kind: "id", cell: (one) => html`<${Id} id=${one.url} />` },
  { name: "State", title: "Whether it answered", kind: "word", cell: (one) => html`<${Badge} word=${one.ok ? "UP" : "FAILED"} />` },
  { name: "Answered", title: "When it answered last", kind: "word", cell: (one) => html`<${Time} at=${one.answeredAt} />` },
  { name: "Note", title: "Why it did not answer", kind: "text", cell: (one) => one.failure || null },
];

const reload = (then) =>
  confirmAct({ title: "Fetch the configuration now?", text: "Every source is asked once, and what is new takes effect.", button: "Fetch", path: "/config/reload", said: (result) => (result.changed ? "The configuration changed." : "There was nothing new."), then });

export function Standby() {
  const status = useLoad("/monitoring/standby-status", 2000);
  const config = useLoad("/monitoring/config", 5000);
  const now = status.data, sync = config.data;
  return html`<${Page} title="Standby and configuration" about="Which router is at work, and where its pools and queues come from.">
    <${Trouble} error=${status.error ?? config.error} what="such status" /><${Loading} load=${{ data: now && sync, error: status.error ?? config.error }} />
    <div class="columns">
      ${now && html`<${Panel} title="This router"><${Facts} facts=${[
        ["State", html`<${Badge} word=${now.state} />`],
        ["Lock", now.enabled ? "shared with other routers" : "none: no other router takes over"],
        ["Identity", html`<span class="mono wrap">${now.identity}</span>`],
        ["At work", now.holder && html`<span class="mono wrap">${now.holder}</span>`],
        ["Since", now.since && html`<${Time} at=${now.since} />`],
        ["Fencing number", now.fencingNumber === null ? null : number(now.fencingNumber)],
        ["Last contact with the lock", now.secondsSinceContact === null ? null : `${span(now.secondsSinceContact * 1000)} ago`],
        ["Last error", now.lastError && html`<span class="wrong">${now.lastError}</span>`],
      ]} /><//>`}
      ${sync && html`<${Panel} title="Configuration" actions=${sync.synced && html`<button class="small" onClick=${() => reload(config.reload)}>Fetch now …</button>`}><${Facts} facts=${[
        ["Comes from", sync.synced ? "config sync" : "the settings of this router"],
        ["Pools", number(sync.processingPools.length)],
        ["Queues", number(sync.queues.length)],
        ["Last success", sync.lastSuccessAt && html`<${Time} at=${sync.lastSuccessAt} />`],
        ["Last error", sync.lastError && html`<span class="wrong">${sync.lastError}</span>`],
        ["Not used", sync.problems.length > 0 && sync.problems.join("; ")],
      ]} />
      <${Table} caption="Sources" columns=${SOURCES} rows=${sync.sources} keyOf=${(one) => one.url} /><//>`}
    </div>
  <//>`;
}
