// Jobs of the dispatch platform: what they wait for, every attempt at them, and what a person can do.
import { act, query, useLoad, usePages } from "../api.js";
import { html } from "../core.js";
import { confirm, confirmAct } from "../dialogs.js";
import { bytes, count, number, span, words } from "../format.js";
import { Address, Badge, complain, Empty, explain, Facts, Filters, Id, link, List, Loading, Page, Panel, Table, Text, Time, Trouble, Under, useFilters } from "../ui.js";

const ROOT = "/api/dispatch-jobs";
const FINISHED = ["COMPLETED", "CANCELLED", "EXPIRED"];

const retry = (job, then) => confirmAct({ title: "Try this job again now?", text: `${job.id}: at once, and with all its retries.`, button: "Retry", path: `${ROOT}/${job.id}/retry`, said: () => "The job is tried again.", then });
const cancel = (job, then) => confirmAct({ title: "Cancel this job?", text: `${job.id} is never tried again, and its group goes on.`, button: "Cancel job", danger: true, path: `${ROOT}/${job.id}/cancel`, said: () => "The job is cancelled.", then });

const Buttons = ({ job, then, small = "" }) => html`
  ${job.status === "ERROR" && html`<button class=${small} onClick=${() => retry(job, then)}>Retry</button>`}
  ${!FINISHED.includes(job.status) && job.status !== "IN_PROGRESS" && html`<button class=${small} onClick=${() => cancel(job, then)}>Cancel</button>`}`;

export const jobColumns = (reload) => [
  { name: "Job", title: "Its id; the link shows it whole", kind: "id", cell: (job) => html`<${Id} id=${job.id} href=${link("jobs", job.id)} />` },
  { name: "Status", title: "Where it stands and when it is tried next. ERROR without a next attempt waits for a person: it is parked", kind: "word", cell: (job) => html`<${Badge} word=${job.parked ? "PARKED" : job.status} />${job.nextAttemptAt && html`<${Under}>next <${Time} at=${job.nextAttemptAt} /><//>`}` },
  { name: "Code", title: "What it is about: the type of its event, or what its sender said; and the subscription that it was made for", kind: "text", cell: (job) => html`${job.code}${job.subscription && html`<${Under}><a href=${link("subscriptions", job.subscription)}>${job.subscription}</a><//>`}` },
  { name: "Group", title: "Jobs of a group go one after the other", kind: "id", cell: (job) => job.messageGroup && html`<${Id} id=${job.messageGroup} href=${`#/jobs?messageGroup=${encodeURIComponent(job.messageGroup)}`} />` },
  { name: "Attempts", title: "Attempts so far, and how many of them failed", kind: "num", cell: (job) => html`${number(job.attempts)}${job.failures > 0 && html`<${Under}>${number(job.failures)} failed<//>`}` },
  { name: "Created", title: "When it was made, by the clock of this browser", kind: "word", cell: (job) => html`<${Time} at=${job.createdAt} />` },
  { name: "Last error", title: "Why the latest attempt failed", kind: "text", cell: (job) => job.lastError || null },
  { name: "Actions", title: "Try it again, or give it up", kind: "do", cell: (job) => html`<${Buttons} job=${job} then=${reload} small="small" />` },
];

const STATUSES = ["PENDING", "QUEUED", "IN_PROGRESS", "COMPLETED", "ERROR", "CANCELLED", "EXPIRED"];
const FIELDS = [
  { name: "status", label: "Status", options: [["", "Any"], ...STATUSES.map((one) => [one, one.replace("_", " ")])] },
  { name: "parked", label: "Parked", options: [["", "Any"], ["true", "Waits for a person"], ["false", "Does not"]] },
  { name: "messageGroup", label: "Group" },
  { name: "code", label: "Code" },
  { name: "subscription", label: "Subscription" },
  { name: "dispatchPoolCode", label: "Pool" },
  { name: "targetUrl", label: "Target begins with" },
];

async function bulk(verb, filters, then) {
  const { parked, ...rest } = filters;
  const filter = { ...rest, ...(parked ? { parked: parked === "true" } : {}) };
  const asked = { filter, all: Object.keys(filter).length === 0 };
  let matched;
  try {
    ({ matched } = await act("POST", `${ROOT}/${verb}`, { ...asked, dryRun: true }));
  } catch (error) {
    complain(error.message);
    return;
  }
  const done = verb === "retry" ? "tried again" : "cancelled";
  confirm({
    title: `${verb === "retry" ? "Retry" : "Cancel"} ${count(matched, "job", "jobs")}?`,
    text: verb === "retry" ? "Those of the filter that failed, at once and with all their retries." : "Those of the filter that are not finished are never tried again, and their groups go on.",
    button: verb === "retry" ? "Retry" : "Cancel jobs",
    danger: verb === "cancel",
    run: async () => {
      const result = await act("POST", `${ROOT}/${verb}`, asked);
      const refused = result.refused ? ` ${count(result.refused, "was", "were")} refused, as they were being delivered or in no state for it.` : "";
      return `${count(result.done, "job is", "jobs are")} ${done}.${refused}`;
    },
    then,
  });
}

function All({ route }) {
  const [filters, setFilters] = useFilters(route);
  const list = usePages(`${ROOT}${query({ ...filters, limit: 50 })}`);
  return html`<${Page} title="Jobs" about="One delivery each: of an event to a subscription, or as somebody asked. Newest first."
    actions=${!list.error && html`<a class="button" href="#/jobs/groups">Groups of jobs</a><button onClick=${() => bulk("retry", filters, list.reload)}>Retry matching …</button><button class="danger" onClick=${() => bulk("cancel", filters, list.reload)}>Cancel matching …</button>`}>
    <${Filters} fields=${FIELDS} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="jobs" caption="Jobs" columns=${jobColumns(list.reload)} keyOf=${(job) => job.id} empty=${html`<${Empty} title="No jobs" text="None was made yet, or none matches." />`} />
  <//>`;
}

const ATTEMPTS = [
  { name: "Attempt", title: "The first is 1", kind: "num", cell: (one) => number(one.attempt) },
  { name: "Began", title: "By the clock of this browser", kind: "word", cell: (one) => html`<${Time} at=${one.beganAt} />` },
  { name: "Took", title: "Until its answer was read", kind: "num", cell: (one) => span(one.durationMs) },
  { name: "Status", title: "What the endpoint answered", kind: "num", cell: (one) => one.status },
  { name: "Counts", title: "Whether it counts against the retries", kind: "word", cell: (one) => (one.counts ? "yes" : "no") },
  { name: "Detail", title: "What it means", kind: "text", cell: (one) => one.detail },
  { name: "Answer", title: "The beginning of the answer", kind: "text", cell: (one) => one.excerpt && html`<span class="mono">${one.excerpt}</span>` },
];
const HISTORY = [
  { name: "When", title: "By the clock of this browser", kind: "word", cell: (one) => html`<${Time} at=${one.at} />` },
  { name: "Who", title: "Name of the credentials", kind: "word", cell: (one) => one.actor },
  { name: "Action", title: "What was done to the job", kind: "text", cell: (one) => one.action },
];

function One({ id }) {
  const load = useLoad(`${ROOT}/${encodeURIComponent(id)}`, 2000);
  const { job, attempts, history, place, waitsFor, payload } = load.data ?? {};
  return html`<${Page} title="Job" about=${html`<a href="#/jobs">All jobs</a> · <span class="mono wrap">${id}</span>`}
    actions=${job && html`<a class="button" href=${explain(id, "JOB")}>Explain</a><${Buttons} job=${job} then=${load.reload} />`}>
    <${Trouble} error=${load.error} what="such job" /><${Loading} load=${load} />
    ${job && html`
      <section class="answer"><div class="line"><${Badge} word=${job.parked ? "PARKED" : job.status} /><span class="note">${job.code}</span></div>
        ${(waitsFor || job.lastError) && html`<p class="summary">${waitsFor || job.lastError}</p>`}</section>
      <div class="columns">
        <${Panel} title="Job"><${Facts} facts=${[
          ["Target", html`<${Address} url=${job.targetUrl} whole />`],
          ["Subscription", job.subscription && html`<a href=${link("subscriptions", job.subscription)}>${job.subscription}</a>`],
          ["Pool", html`<a href=${link("pools", job.dispatchPoolCode)}>${job.dispatchPoolCode}</a>`],
          ["Mode", words(job.mode)],
          ["Created", html`<${Time} at=${job.createdAt} />`],
          ["Scheduled for", job.scheduledFor && html`<${Time} at=${job.scheduledFor} />`],
          ["Next attempt", job.nextAttemptAt && html`<${Time} at=${job.nextAttemptAt} />`],
          ["Expires", job.expiresAt && html`<${Time} at=${job.expiresAt} />`],
          ["Finished", job.finishedAt && html`<${Time} at=${job.finishedAt} />`],
          ["Failures", `${number(job.failures)} of ${number(job.maxRetries + 1)} allowed`],
          ["Payload", `${bytes(job.payloadBytes)}, ${job.contentType}`],
          ...Object.entries(job.metadata).map(([name, value]) => [name, name === "eventId" ? html`<${Id} id=${value} href=${link("events", value)} />` : html`<span class="mono wrap">${value}</span>`]),
        ]} /><//>
        <${Panel} title="Order"><${Facts} facts=${[
          ["Group", job.messageGroup ? html`<${Id} id=${job.messageGroup} href=${`#/jobs?messageGroup=${encodeURIComponent(job.messageGroup)}`} />` : "none: it is ordered with nothing"],
          ["Position", job.position === null ? null : number(job.position)],
          ["Sequence", number(job.sequence)],
          ["Ahead of it", place && `${number(place.ahead)}${place.more ? " or more" : ""}`],
          ["Head of the group", place?.head && html`<${Id} id=${place.head.id} href=${link("jobs", place.head.id)} />`],
        ]} />${payload && html`<h3>Payload</h3><${Text} text=${payload} what="Payload" />`}<//>
      </div>
      <${Panel} title="Attempts"><${Table} caption="Attempts" columns=${ATTEMPTS} rows=${attempts} keyOf=${(one) => one.attempt} empty=${html`<${Empty} title="No attempt yet" />`} /><//>
      ${history.length > 0 && html`<${Panel} title="What people did"><${Table} caption="History" columns=${HISTORY} rows=${history} keyOf=${(one) => one.at + one.action} /><//>`}`}
  <//>`;
}

const VERBS = {
  "retry-head": ["Retry head", "Its first job is tried again at once.", "", (group) => `The first job of ${group} is tried again.`],
  "skip-head": ["Skip head", "Its first job is cancelled, and the group goes on with the next one.", "danger", (group) => `The first job of ${group} is cancelled, and the group goes on.`],
  hold: ["Hold", "Nothing of it starts until it is released; an attempt in flight ends as usual.", "", (group) => `Group ${group} is held.`],
  release: ["Release", "Its jobs start again.", "", (group) => `Group ${group} goes on.`],
};

const groupColumns = (reload) => [
  { name: "Group", title: "Its name; the link lists its jobs", kind: "id", cell: (one) => html`<${Id} id=${one.messageGroup} href=${`#/jobs?messageGroup=${encodeURIComponent(one.messageGroup)}`} />` },
  { name: "State", title: "BLOCKED: its first job failed and others wait for it. HELD: an operator holds it", kind: "word", cell: (one) => html`<${Badge} word=${one.heldSince ? "HELD" : one.blockedSince ? "BLOCKED" : "WAITING"} title=${one.heldBy && `By ${one.heldBy}`} />` },
  { name: "Since", title: "Since when it is blocked or held", kind: "word", cell: (one) => html`<${Time} at=${one.heldSince ?? one.blockedSince} />` },
  { name: "Jobs", title: "Unfinished jobs in order", kind: "num", cell: (one) => number(one.jobs) },
  { name: "Head", title: "The first of them", kind: "id", cell: (one) => one.head && html`<${Id} id=${one.head.id} href=${link("jobs", one.head.id)} />` },
  { name: "Last error", title: "Why the latest attempt at the head failed", kind: "text", cell: (one) => one.head?.lastError || null },
  { name: "Actions", title: "What can be done about it", kind: "do", cell: (one) =>
    [one.head?.status === "ERROR" && "retry-head", one.head && "skip-head", one.heldSince ? "release" : "hold"].filter(Boolean).map((verb) => {
      const [label, text, danger, done] = VERBS[verb];
      const run = () => confirmAct({ title: `${label}: ${one.messageGroup}?`, text, button: label, danger: danger !== "", path: `/api/message-groups/${encodeURIComponent(one.messageGroup)}/${verb}`, said: () => done(one.messageGroup), then: reload });
      return html`<button class="small" key=${verb} onClick=${run}>${label}</button>`;
    }) },
];

function JobGroups({ route }) {
  const [filters, setFilters] = useFilters(route);
  const list = usePages(`/api/message-groups${query({ blocked: filters.show === "all" ? "" : "true", limit: 50 })}`);
  return html`<${Page} title="Groups of jobs" about=${html`<a href="#/jobs">All jobs</a> · Those blocked or held come first, the longest first.`}>
    <${Filters} fields=${[{ name: "show", label: "Show", options: [["", "Blocked and held"], ["all", "All groups"]] }]} values=${filters} onChange=${setFilters} />
    <${List} list=${list} what="jobs" caption="Groups of jobs" columns=${groupColumns(list.reload)} keyOf=${(one) => one.messageGroup} empty=${html`<${Empty} title="No group is blocked" text="Every group of jobs moves, or there is none." />`} />
  <//>`;
}

export const Jobs = ({ route }) => {
  const [, id] = route.parts;
  if (id === "groups") return html`<${JobGroups} route=${route} />`;
  return id ? html`<${One} key=${id} id=${id} />` : html`<${All} route=${route} />`;
};
