// Why something is where it is: the chain of causes in sentences, and what a person can do about it.
import { query, useLoad } from "../api.js";
import { html } from "../core.js";
import { confirmAct } from "../dialogs.js";
import { capital, fact, number, span, words } from "../format.js";
import { answered, Badge, Copy, Empty, explain, Facts, Id, link, Page, Panel, Trouble } from "../ui.js";
import { ACTIONS } from "./groups.js";

// What each does, by the last word of its path.
const WORDS = {
  ...ACTIONS,
  retry: ACTIONS["retry-head"],
  skip: { ...ACTIONS["skip-head"], button: "Skip" },
  pause: { button: "Pause", text: "Nothing of it starts until somebody resumes it. What is in flight ends as usual." },
  resume: { button: "Resume", text: "What waits for it starts again." },
  reset: { button: "Reset breaker", text: "The failures of the endpoint are forgotten, and messages that only wait for its breaker start now." },
  replay: { button: "Replay", text: "The message goes to its queue again, and the dead letter is forgotten." },
  cancel: { button: "Cancel job", danger: true, text: "It is never tried again, and its group goes on." },
};
const wordsOf = (action) =>
  WORDS[action.what] ?? WORDS[/([^/?]+)(\?|$)/.exec(action.path)[1]] ?? { button: capital(action.what.replaceAll("-", " ")), text: `${action.method} ${action.path}` };

function Actions({ found, reload }) {
  if (!found.actions.length) return null;
  const run = (one) => confirmAct({ ...wordsOf(one), title: `${capital(one.text).replace(/[.?]$/, "")}?`, method: one.method, path: one.path, said: () => "Done.", then: reload });
  return html`<${Panel} title="What you can do">
    <ul class="todo">${found.actions.map((one) => html`<li key=${one.path + one.what}><button onClick=${() => run(one)}>${wordsOf(one).button}</button><span>${capital(one.text)}</span></li>`)}</ul>
  <//>`;
}

// What it is and why it stands there, as far as the state does not say it.
const about = ({ kind, cause, state }) => [...new Set([kind, cause])].filter((one) => one && one !== state && one !== "UNKNOWN").map(words).join(" · ");

function Found({ found, reload }) {
  const tone = found.safeToSendAgain ? "good" : found.safeToSendAgain === false ? "bad" : "";
  const { head, lastAnswer } = found;
  const facts = [
    ["Pool", found.pool && html`<a href=${link("pools", found.pool)}>${found.pool}</a>`],
    ["Group", found.group && html`<${Id} id=${found.group} href=${explain(found.group, "GROUP")} />`],
    ["Queue", found.queue],
    ["Head of the group", head && html`<${Id} id=${head.id} href=${explain(head.id, "MESSAGE")} />`],
    ["Head is", head && words(head.where)],
    ["Failures of the head", head && number(head.failures)],
    ["Endpoint", head?.endpoint && html`<a class="mono wrap" href=${`#/endpoints?prefix=${encodeURIComponent(head.endpoint)}`}>${head.endpoint}</a>`],
    ["Last answer", lastAnswer && `${answered(lastAnswer)}, ${span(lastAnswer.agoMs)} ago`],
    ["It said", lastAnswer?.excerpt && html`<span class="mono wrap">${lastAnswer.excerpt}</span>`],
    ["Next attempt", found.nextAttemptInMs !== null && `in ${span(found.nextAttemptInMs)}`],
    ["Goes out", found.estimateInMs !== null && `in about ${span(found.estimateInMs)}`],
    ...Object.entries(found.facts ?? {}).filter(([name, value]) => name !== "endpoint" || value !== head?.endpoint).map(([name, value]) => fact(name, value)),
  ];
  return html`
    <section class="answer">
      <div class="line"><${Badge} word=${found.state} /><span class="note">${about(found)}</span></div>
      <p class="summary">${found.summary}</p>
      ${found.estimateText && html`<p>${found.estimateText}</p>`}
      ${found.sendAgainText && html`<p class=${`safe ${tone}`}>Safe to send again? ${found.sendAgainText}</p>`}
    </section>
    <${Actions} found=${found} reload=${reload} />
    <div class="columns">
      ${found.chain.length > 0 && html`<${Panel} title="Why"><ol class="chain">${found.chain.map((one) => html`<li key=${one}>${one}</li>`)}</ol><//>`}
      ${facts.some(([, value]) => value) && html`<${Panel} title="Facts"><${Facts} facts=${facts} /><//>`}
    </div>
    ${found.looked?.length > 0 && html`<p class="note">Looked in: ${found.looked.join(", ")}.</p>`}`;
}

const KINDS = [["", "anything"], ["MESSAGE", "a message"], ["GROUP", "a group"], ["POOL", "a pool"], ["JOB", "a job"], ["EVENT", "an event"]];

// All queues were searched for it: that is not done again every two seconds.
const isNowhere = (found) => found.state === "NEVER_SEEN";

export function Explain({ route }) {
  const id = route.parts[1] ?? "";
  const kind = route.query.get("kind") ?? "";
  const load = useLoad(id ? `/monitoring/explain/${encodeURIComponent(id)}${query({ kind })}` : null, 2000, null, isNowhere);
  if (!id) {
    return html`<${Page} title="Explain"><${Empty} title="What are you looking for?" text="Type the id of a message, a group, a job, an event or a pool into the field at the top of the page." /><//>`;
  }
  return html`<${Page} title="Explain" about=${html`<span class="mono wrap">${id}</span> <${Copy} text=${id} />`}
    actions=${html`<label class="inline"><span>Look for</span><select value=${kind} onChange=${(event) => { location.hash = explain(id, event.target.value); }}>${KINDS.map(([value, label]) => html`<option key=${value} value=${value} selected=${value === kind}>${label}</option>`)}</select></label>`}>
    <${Trouble} error=${load.error} what="explanations" />
    ${!load.error && (!load.data || load.busy) && html`<p class="loading" role="status">Looking …</p>`}
    ${load.data && !load.busy && html`<${Found} found=${load.data} reload=${load.reload} />`}
  <//>`;
}
