// What people stopped, and may have forgotten: pools, endpoints and groups that start nothing until somebody lets them go on.
import { usePages } from "../api.js";
import { html } from "../core.js";
import { capital, span, words } from "../format.js";
import { Address, Empty, explain, Id, link, List, Page } from "../ui.js";
import { pauseEndpoint } from "./endpoints.js";
import { actOnGroup } from "./groups.js";
import { pausePool } from "./pools.js";

const KINDS = {
  POOL: { name: (one) => html`<${Id} id=${one.name} href=${link("pools", one.name)} />`, button: "Resume", go: (one, then) => pausePool({ code: one.name, pausedBy: one.by }, then) },
  ENDPOINT: { name: (one) => html`<${Address} url=${one.name} href=${`#/endpoints?prefix=${encodeURIComponent(one.name)}`} />`, button: "Resume", go: (one, then) => pauseEndpoint({ endpoint: one.name, pausedBy: one.by }, then) },
  GROUP: { name: (one) => html`<${Id} id=${one.name} href=${explain(one.name, "GROUP")} />`, button: "Release", go: (one, then) => actOnGroup({ group: one.name }, "release", then) },
};

const columns = (reload) => [
  { name: "What", title: "A pool or an endpoint that is paused, or a group that is held", kind: "word", cell: (one) => capital(words(one.kind)) },
  { name: "Name", title: "Which one; the link shows it", kind: "address", cell: (one) => KINDS[one.kind].name(one) },
  { name: "By", title: "Who stopped it", kind: "text", cell: (one) => one.by },
  { name: "Since", title: "How long ago that was", kind: "num", cell: (one) => `${span(one.sinceMs)} ago` },
  { name: "Actions", title: "Let it go on", kind: "do", cell: (one) => html`<button class="small" onClick=${() => KINDS[one.kind].go(one, reload)}>${KINDS[one.kind].button}</button>` },
];

export function Pauses() {
  const list = usePages("/monitoring/pauses", { every: 2000 });
  return html`<${Page} title="Paused and held" about="What people stopped: it starts nothing until somebody lets it go on, also after a restart.">
    <${List} list=${list} what="list of pauses" caption="Paused and held" columns=${columns(list.reload)} keyOf=${(one) => `${one.kind} ${one.name}`}
      empty=${html`<${Empty} title="Nothing is paused or held" text="Pools and endpoints can be paused in their views, groups held in theirs." />`} />
  <//>`;
}
