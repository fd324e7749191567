// Dead letters: what was never delivered and why; to be looked at, mended, replayed or removed.
import { act, query, useLoad, usePages } from "../api.js";
import { html } from "../core.js";
import { confirm, confirmAct } from "../dialogs.js";
import { count, number, words } from "../format.js";
import { Address, complain, Empty, explain, Facts, Filters, Id, link, List, Loading, Page, Panel, Text, Time, Trouble, useFilters } from "../ui.js";

const ROOT = "/monitoring/dead-letters";

function replay(letter, then) {
  const target = letter.message?.mediationTarget ?? "";
  confirmAct({
    title: `Replay dead letter ${letter.number}?`,
    text: "The message goes to its queue again, and the dead letter is forgotten.",
    button: "Replay",
    path: `${ROOT}/${letter.number}/replay`,
    fields: [
      { name: "position", label: "Where in its group", value: "BEHIND", options: [["BEHIND", "Behind what the group holds now"], ["FRONT", "In front of it"]] },
      { name: "target", label: "Target", value: target, hint: "Left as it is, the message goes where it was to go, with its query" },
    ],
    body: (values) => ({ position: values.position, target: values.target === target || values.target === "" ? null : values.target }),
    said: () => `Dead letter ${letter.number} was replayed.`,
    then,
  });
}

const remove = (letter, then) =>
  confirmAct({ title: `Remove dead letter ${letter.number} for good?`, text: "The message is gone then.", button: "Remove", danger: true, method: "DELETE", path: `${ROOT}/${letter.number}`, said: () => `Dead letter ${letter.number} is removed.`, then });

const columns = (reload) => [
  { name: "Number", title: "Its number; the link shows it whole", kind: "num", cell: (one) => html`<a href=${link("dead-letters", one.number)}>${one.number}</a>` },
  { name: "Message", title: "Its id; empty: it could not be read", kind: "id", cell: (one) => html`<${Id} id=${one.messageId || "unreadable"} href=${link("dead-letters", one.number)} />` },
  { name: "Group", title: "The message group; none: it had no order", kind: "id", cell: (one) => one.group && html`<${Id} id=${one.group} href=${explain(one.group, "GROUP")} />` },
  { name: "Queue", title: "Where it came from, and goes to when it is replayed", kind: "word", cell: (one) => one.queue },
  { name: "Reason", title: "Why it cannot be delivered", kind: "text", cell: (one) => one.reason },
  { name: "Status", title: "What the endpoint answered at last", kind: "num", cell: (one) => one.status },
  { name: "Failures", title: "Failed attempts before it was given up", kind: "num", cell: (one) => number(one.failures) },
  { name: "Since", title: "When it became a dead letter, by the clock of this browser", kind: "word", cell: (one) => html`<${Time} at=${one.recordedAt} />` },
  { name: "Actions", title: "Replay it once the cause is mended, or remove it for good", kind: "do", cell: (one) => html`
    <button class="small" onClick=${() => replay(one, reload)}>Replay</button>
    <button class="small" onClick=${() => remove(one, reload)}>Remove</button>` },
];

const FIELDS = [
  { name: "group", label: "Group" },
  { name: "target", label: "Target" },
  { name: "status", label: "Status", type: "number" },
  { name: "queue", label: "Queue" },
  { name: "since", label: "Since", type: "datetime-local" },
  { name: "until", label: "Until", type: "datetime-local" },
];

const inUtc = ({ since, until, ...rest }) => ({ ...rest, since: since && new Date(since).toISOString(), until: until && new Date(until).toISOString() });

async function replayAll(given, then) {
  let matching;
  try {
    ({ matching } = await act("POST", `${ROOT}/replay${query({ ...given, dryRun: "true" })}`));
  } catch (error) {
    complain(error.message);
    return;
  }
  confirm({
    title: `Replay ${count(matching, "dead letter", "dead letters")}?`,
    text: matching ? "Oldest first, each behind what its group holds by then. Those that end here again meanwhile stay." : "Nothing matches.",
    button: "Replay",
    run: async () => `${count((await act("POST", `${ROOT}/replay${query(given)}`)).replayed, "dead letter was", "dead letters were")} replayed.`,
    then,
  });
}

const removeAll = (then) =>
  confirmAct({ title: "Remove all dead letters for good?", text: "The messages are gone then.", button: "Remove all", danger: true, method: "DELETE", path: ROOT, said: (result) => `${count(result.purged, "dead letter was", "dead letters were")} removed.`, then });

function All({ route }) {
  const [filters, setFilters] = useFilters(route);
  const given = inUtc(filters);
  const list = usePages(`${ROOT}${query({ ...given, limit: 50 })}`);
  const filtered = Object.keys(filters).length > 0;
  return html`<${Page} title="Dead letters" about="Messages that will not be tried again until somebody replays them. Oldest first."
    actions=${list.items.length > 0 && html`<button onClick=${() => replayAll(given, list.reload)}>${filtered ? "Replay matching …" : "Replay all …"}</button>
      ${!filtered && html`<button class="danger" onClick=${() => removeAll(list.reload)}>Remove all …</button>`}`}>
    <${Filters} fields=${FIELDS} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="such filter" caption="Dead letters" columns=${columns(list.reload)} keyOf=${(one) => one.number}
      empty=${html`<${Empty} title=${filtered ? "No dead letter matches" : "No dead letters"} text=${filtered ? "Change or clear the filters." : "Everything that came was delivered, or is still being tried."} />`} />
  <//>`;
}

function One({ id }) {
  const load = useLoad(`${ROOT}/${id}`);
  const letter = load.data;
  const home = () => { location.hash = "#/dead-letters"; };
  const message = letter?.message;
  return html`<${Page} title=${`Dead letter ${id}`} about=${html`<a href="#/dead-letters">All dead letters</a>`}
    actions=${letter && html`<button class="primary" onClick=${() => replay(letter, home)}>Replay …</button><button class="danger" onClick=${() => remove(letter, home)}>Remove …</button>`}>
    <${Trouble} error=${load.error} what="such dead letter" /><${Loading} load=${load} />
    ${letter && html`
      <section class="answer"><p class="summary">${letter.reason}</p></section>
      <div class="columns">
        <${Panel} title="What happened"><${Facts} facts=${[
          ["Status", letter.status],
          ["Failures", number(letter.failures)],
          ["Since", html`<${Time} at=${letter.recordedAt} />`],
          ["Queue", letter.queue],
          ["Group", letter.group && html`<${Id} id=${letter.group} href=${explain(letter.group, "GROUP")} />`],
        ]} />${letter.excerpt && html`<h3>It answered</h3><${Text} text=${letter.excerpt} what="The answer of the endpoint" />`}<//>
        <${Panel} title="Message"><${Facts} facts=${[
          ["Id", html`<${Id} id=${letter.messageId || "unreadable"} href=${letter.messageId ? explain(letter.messageId, "MESSAGE") : null} />`],
          ["Target", message && html`<${Address} url=${message.mediationTarget} whole />`],
          ["Pool", message && html`<a href=${link("pools", message.poolCode)}>${message.poolCode}</a>`],
          ["Mode", message?.dispatchMode && words(message.dispatchMode)],
          ["Content type", message?.contentType],
        ]} />${(message?.payload ?? letter.body) && html`<h3>${message ? "Payload" : "Body"}</h3><${Text} text=${message?.payload ?? letter.body} what="What was to be delivered" />`}<//>
      </div>`}
  <//>`;
}

export const DeadLetters = ({ route }) => (route.parts[1] ? html`<${One} key=${route.parts[1]} id=${route.parts[1]} />` : html`<${All} route=${route} />`);
