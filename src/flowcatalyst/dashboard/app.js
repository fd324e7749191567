// The page: its frame, its routes, and who may see it.
import { ask, session, signOut } from "./api.js";
import { html, render, store, useEffect, useRef, useState } from "./core.js";
import { Dialogs, dismiss } from "./dialogs.js";
import { number } from "./format.js";
import { follow, live } from "./live.js";
import { SignIn } from "./signin.js";
import { ThemeButton } from "./theme.js";
import { Badge, explain, moveOn, Told } from "./ui.js";
import { Audit } from "./views/audit.js";
import { DeadLetters } from "./views/dead_letters.js";
import { Endpoints } from "./views/endpoints.js";
import { Events } from "./views/events.js";
import { Explain } from "./views/explain.js";
import { Groups } from "./views/groups.js";
import { Jobs } from "./views/jobs.js";
import { Overview } from "./views/overview.js";
import { Pauses } from "./views/pauses.js";
import { Pools } from "./views/pools.js";
import { Queues } from "./views/queues.js";
import { Sandbox } from "./views/sandbox.js";
import { Standby } from "./views/standby.js";
import { Subscriptions } from "./views/subscriptions.js";
import { Warnings } from "./views/warnings.js";

const VIEWS = {
  overview: { name: "Overview", view: Overview },
  groups: { name: "Groups", view: Groups, count: (now) => now.blockedGroups, counts: "blocked" },
  warnings: { name: "Warnings", view: Warnings, count: (now) => now.warnings, counts: "not acknowledged" },
  pools: { name: "Pools", view: Pools },
  queues: { name: "Queues", view: Queues },
  endpoints: { name: "Endpoints", view: Endpoints },
  "dead-letters": { name: "Dead letters", view: DeadLetters, count: (now) => now.deadLetters, counts: "dead letters" },
  jobs: { name: "Jobs", view: Jobs },
  events: { name: "Events", view: Events },
  subscriptions: { name: "Subscriptions", view: Subscriptions },
  pauses: { name: "Paused and held", view: Pauses },
  standby: { name: "Standby", view: Standby },
  audit: { name: "Audit", view: Audit },
  sandbox: { name: "Try it out", view: Sandbox },
  explain: { name: "Explain", view: Explain },
};
const SECTIONS = [
  ["Now", ["overview", "groups", "warnings"]],
  ["Delivery", ["pools", "queues", "endpoints", "dead-letters"]],
  ["Platform", ["jobs", "events", "subscriptions"]],
  ["Router", ["pauses", "standby", "audit", "sandbox"]],
];

function routeNow() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts: parts.length ? parts : ["overview"], query: new URLSearchParams(search) };
}

const route = store(routeNow());
addEventListener("hashchange", () => route.set(routeNow()));

// Receivers and traffic to try things out with; a router in production has none.
const hasSandbox = store(false);
async function lookForSandbox() {
  try {
    await ask("/api/test/stats");
    hasSandbox.set(true);
  } catch {
    hasSandbox.set(false);
  }
}

function Nav({ open, onChoose }) {
  const [here] = route.use().parts;
  const { overview } = live.use();
  const sandbox = hasSandbox.use();
  const item = (name) => {
    const { name: label, count, counts } = VIEWS[name];
    const found = overview && count ? count(overview) : 0;
    return html`<li key=${name}><a href=${`#/${name}`} onClick=${onChoose} aria-current=${here === name ? "page" : null}>
      <span>${label}</span>${found > 0 && html`<span class="count" title=${counts}>${number(found)}<span class="unseen"> ${counts}</span></span>`}</a></li>`;
  };
  return html`<nav id="nav" class=${open ? "open" : ""} aria-label="Views">
    ${SECTIONS.map(([title, names]) => html`<div key=${title}><h2>${title}</h2><ul>${names.filter((name) => name !== "sandbox" || sandbox).map(item)}</ul></div>`)}
    <div class="elsewhere"><h2>Elsewhere</h2><ul><li><a href="/schema">API</a></li><li><a href="/metrics">Metrics</a></li><li><a href="/health">Probe</a></li></ul></div>
  </nav>`;
}

const narrow = matchMedia("(max-width: 640px)");

function Search() {
  const [text, setText] = useState("");
  const go = (event) => {
    event.preventDefault();
    if (text.trim()) location.hash = explain(text.trim());
  };
  return html`<form class="search" role="search" aria-label="Find" onSubmit=${go}>
    <label><span class="unseen">Find a message, group, job, event or pool by its id</span>
      <input type="search" name="id" placeholder=${narrow.matches ? "Why is it late? Type its id" : "Why is it not there? Message, group, job, event or pool id"} value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" spellcheck=${false} /></label>
    <button type="submit">Explain</button>
  </form>`;
}

function Connection() {
  const { state, overview, since, why } = live.use();
  if (state === "lost") return html`<span class="connection lost" role="status" title=${why}>no connection since ${since.toTimeString().slice(0, 8)}</span>`;
  if (!overview) return html`<span class="connection" role="status">connecting …</span>`;
  return html`<a class="connection" href="#/overview" title="The health of the router; the overview has the reasons"><${Badge} word=${overview.level} /><span class="unseen" role="status">live</span></a>`;
}

function Frame() {
  const now = route.use();
  const { asks, signedIn } = session.use();
  const [open, setOpen] = useState(false);
  const main = useRef(null);
  const name = VIEWS[now.parts[0]] ? now.parts[0] : "overview";
  const { view: View, name: title } = VIEWS[name];
  const place = now.parts.join("/");
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) {
      dismiss();
      moveOn();
    }
    document.title = `${title} · FlowCatalyst`;
    setOpen(false);
    if (!first.current) main.current?.querySelector("h1")?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [place]);
  useEffect(() => {
    if (!asks) lookForSandbox();
  }, [asks]);
  if (asks) return html`<${SignIn} key=${asks.mode + asks.why} asks=${asks} />`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.querySelector("h1")?.focus(); }}>Skip to the content</a>
    <header class="top">
      <button class="quiet icon menu" aria-expanded=${open} aria-controls="nav" aria-label="Views" onClick=${() => setOpen(!open)}>
        <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M2 4h12M2 8h12M2 12h12" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" /></svg>
      </button>
      <a class="brand" href="#/overview"><img src="/dashboard/icon.svg" alt="" width="22" height="22" /><span>FlowCatalyst</span></a>
      <${Search} />
      <${Connection} />
      <${ThemeButton} />
      ${signedIn && html`<button class="quiet" onClick=${() => signOut()}>Sign out</button>`}
    </header>
    <${Nav} open=${open} onChoose=${() => setOpen(false)} />
    <main id="main" ref=${main}><${Told} /><${View} key=${name} route=${now} /></main>
    <${Dialogs} />`;
}

render(html`<${Frame} />`, document.getElementById("app"));
follow();
