// Groups, those that stand still first: who is at the head, what it was answered, and what a person can do.
import { query, usePages } from "../api.js";
import { html } from "../core.js";
import { confirmAct } from "../dialogs.js";
import { count, number, span, UNKNOWN } from "../format.js";
import { answered, Badge, Empty, explain, Filters, Id, link, List, Page, Under, useFilters } from "../ui.js";

const part = encodeURIComponent;
// Another message may be the head by the time of the click, so a head is named by its own id.
const path = ({ group, head }, verb) => (verb.endsWith("-head") ? `/monitoring/messages/${part(head.brokerId)}/${verb.replace("-head", "")}` : `/monitoring/groups/${part(group)}/${verb}`);
const nameOf = ({ group, head }, verb) => (verb.endsWith("-head") ? `message ${head.id} of ${group}` : group);

export const ACTIONS = {
  "retry-head": { button: "Retry now", title: (name) => `Try ${name} now?`, text: "Its next attempt starts at once instead of at its time. Nothing else changes." },
  "skip-head": { button: "Skip head", danger: true, title: (name) => `Skip ${name}?`, text: "The message goes to the dead letters, from where it can be replayed, and the group goes on with the next one. No other message is touched." },
  hold: { button: "Hold", title: (name) => `Hold group ${name}?`, text: "Nothing of the group starts until somebody releases it. An attempt in flight ends as usual." },
  release: { button: "Release", title: (name) => `Release group ${name}?`, text: "Its messages start again, in their order." },
};

export function actOnGroup(one, verb, then) {
  const { title, ...words } = ACTIONS[verb];
  confirmAct({ ...words, title: title(nameOf(one, verb)), path: path(one, verb), said: () => "Done.", then });
}

function buttons(one, reload) {
  const button = (verb, label) => html`<button class="small" key=${verb} onClick=${() => actOnGroup(one, verb, reload)}>${label}</button>`;
  return [
    one.state === "BLOCKED" && one.head?.where !== "IN_FLIGHT" && button("retry-head", "Retry"),
    one.head && button("skip-head", "Skip"),
    one.state === "HELD" ? button("release", "Release") : button("hold", "Hold"),
  ];
}

const lastAnswer = ({ lastAnswer: answer, head }) =>
  answer ? html`<span title=${answer.excerpt || answer.detail}>${answered(answer)}</span>` : head?.where === "IN_FLIGHT" ? html`<span class="note">no answer yet</span>` : UNKNOWN;

const nextAttempt = (one) => (one.state === "HELD" ? "held" : one.nextAttemptInMs === null ? UNKNOWN : `in ${span(one.nextAttemptInMs)}`);

const columns = (reload) => [
  { name: "Group", title: "Its name and its pool; the link says why it stands where it stands", kind: "id", cell: (one) => html`<${Id} id=${one.group} href=${explain(one.group, "GROUP")} /><${Under}><a href=${link("pools", one.pool)}>${one.pool}</a><//>` },
  { name: "State", title: "BLOCKED: its head failed or hangs. HELD: an operator holds it. IN_FLIGHT: an attempt runs. WAITING: for a slot, a permit or its turn", kind: "word", cell: (one) => html`<${Badge} word=${one.state} title=${one.heldBy ? `Held by ${one.heldBy} for ${span(one.heldForMs)}` : null} />` },
  { name: "Blocked for", title: "How long nothing of it could be delivered", kind: "num", cell: (one) => span(one.blockedForMs) },
  { name: "Head", title: "The message at its head, which all others wait for, and how often it failed", kind: "id", cell: (one) => one.head && html`<${Id} id=${one.head.id} href=${explain(one.head.id, "MESSAGE")} />${one.head.failures > 0 && html`<${Under}>${count(one.head.failures, "failure", "failures")}<//>`}` },
  { name: "Last answer", title: "What the endpoint said at the latest attempt", kind: "text", cell: lastAnswer },
  { name: "Next attempt", title: "When the head is tried again", kind: "num", cell: nextAttempt },
  { name: "Behind", title: "Messages that wait behind the head; with + its queue may hold more that nobody can count", kind: "num", cell: (one) => `${number(one.waitingBehind)}${one.waitingBehindExact ? "" : "+"}` },
  { name: "Actions", title: "What can be done about it", kind: "do", cell: (one) => buttons(one, reload) },
];

const FIELDS = [
  { name: "show", label: "Show", options: [["", "Blocked and held"], ["all", "All groups"]] },
  { name: "prefix", label: "Name begins with" },
  { name: "pool", label: "Pool" },
  { name: "queue", label: "Queue" },
  { name: "endpoint", label: "Endpoint" },
];

export function Groups({ route }) {
  const [filters, setFilters] = useFilters(route);
  const { show, ...given } = filters;
  const list = usePages(`/monitoring/groups${query({ blocked: show === "all" ? "" : "true", ...given, limit: 50 })}`);
  return html`<${Page} title="Groups" about=${html`Messages of a group are delivered strictly one after the other. The longest blocked come first. Jobs and webhooks have <a href="#/jobs/groups">groups of their own</a>.`}>
    <${Filters} fields=${FIELDS} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="list of groups" caption="Groups" columns=${columns(list.reload)} keyOf=${(one) => `${one.pool} ${one.group}`}
      empty=${html`<${Empty} title=${show === "all" ? "No groups match" : "No group is blocked"} text=${show === "all" ? "The router has no messages of such a group at hand." : "Every group with messages moves, or waits for its turn."} />`} />
  <//>`;
}
