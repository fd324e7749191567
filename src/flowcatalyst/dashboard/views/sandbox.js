// Try it out: traffic to the built-in receivers, which judge the order in which messages come.
import { act, useLoad } from "../api.js";
import { html } from "../core.js";
import { count, number } from "../format.js";
import { complain, Empty, Page, Panel, Stat, Table, tell, Trouble } from "../ui.js";

const SEEDS = [
  ["200 messages, fast", "count=200&endpoint=fast"],
  ["200 messages, 100 ms each", "count=200&endpoint=slow&queue=high"],
  ["100 messages, failing now and then", "count=100&endpoint=faulty&queue=medium"],
  ["50 messages, one group", "count=50&endpoint=fast&messageGroupMode=single"],
];

const COLUMNS = [
  { name: "Receiver", title: "A built-in endpoint", kind: "word", cell: ([name]) => name },
  { name: "Requests", title: "Attempts that reached it, retries included", kind: "num", cell: ([, one]) => number(one.requests) },
  { name: "Order violations", title: "Messages that it saw before an earlier one of their group was taken. It must be 0.", kind: "num", cell: ([, one]) => number(one.orderViolations) },
  { name: "Answers", title: "How often it answered with which status", kind: "text", cell: ([, one]) => Object.entries(one.statusCounts).map(([status, times]) => `${status}: ${number(times)}`).join(", ") },
];

export function Sandbox() {
  const load = useLoad("/api/test/stats", 1000);
  const seen = load.data;
  const run = async (method, path, said) => {
    try {
      tell(said(await act(method, path)));
    } catch (error) {
      complain(error.message);
    }
    load.reload();
  };
  return html`<${Page} title="Try it out" about="Send traffic to the built-in receivers and see that the order holds. A router in production has neither.">
    <div class="actions seeds">${SEEDS.map(([label, query]) => html`<button key=${label} onClick=${() => run("POST", `/api/seed/messages?${query}`, (result) => `${count(result.published, "message was", "messages were")} published.`)}>${label}</button>`)}
      <button class="quiet" onClick=${() => run("DELETE", "/api/test/stats", () => "The receivers count from nothing again.")}>Reset counts</button></div>
    <${Trouble} error=${load.error} what="built-in receivers" />
    ${seen && html`<div class="stats">
      <${Stat} name="Requests received" value=${number(seen.totalRequests)} title="Attempts that reached the built-in receivers since the last reset, retries included" />
      <${Stat} name="Groups seen" value=${number(seen.groups)} title="Message groups that the receivers saw" />
      <${Stat} name="Order violations" value=${number(seen.orderViolations)} tone=${seen.orderViolations ? "bad" : "good"} title="Messages that a receiver saw before an earlier one of their group was taken. It must be 0." />
      <${Stat} name="Duplicates" value=${number(seen.duplicates)} title="Messages that a receiver had taken already and saw again; possible after a crash or a lost answer" />
      <${Stat} name="Webhooks verified" value=${number(seen.webhooks.verified)} title="Signed webhooks that the built-in receiver verified since the start" />
    </div>
    <${Panel} title="Receivers"><${Table} caption="Receivers" columns=${COLUMNS} rows=${Object.entries(seen.endpoints)} keyOf=${([name]) => name} empty=${html`<${Empty} title="Nothing came yet" text="Press one of the buttons above." />`} /><//>
    ${seen.lastViolations.length > 0 && html`<${Panel} title="Last order violations"><ul class="lines">${seen.lastViolations.map((one) => html`<li key=${one} class="mono">${one}</li>`)}</ul><//>`}`}
  <//>`;
}
