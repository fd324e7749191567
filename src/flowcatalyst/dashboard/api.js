// Requests to the router: with the credentials of this tab, and errors as one sentence each.
import { store, useCallback, useEffect, useState } from "./core.js";
import { capital } from "./format.js";

const PLACE = "flowcatalyst.authorization";
const MODE = "flowcatalyst.mode";

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

// Who we are: `asks` is null while nobody asks for credentials, else what kind ("key" or "password") and why.
export const session = store({ asks: null, signedIn: sessionStorage.getItem(PLACE) !== null });

const inBase64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

// A login in the address bar is one, although a page cannot pass it on by itself.
const here = new URL(document.baseURI);
if (here.username && !session.get().signedIn) {
  const login = `${decodeURIComponent(here.username)}:${decodeURIComponent(here.password)}`;
  keep("password", `Basic ${inBase64(login)}`);
}

function keep(mode, value) {
  sessionStorage.setItem(MODE, mode);
  sessionStorage.setItem(PLACE, value);
  session.set({ asks: null, signedIn: true });
}

export function signOut(why = "") {
  const mode = sessionStorage.getItem(MODE) ?? "key";
  sessionStorage.removeItem(PLACE);
  session.set({ asks: { mode, why }, signedIn: false });
}

// Tries them before it keeps them; the sentence of the router says why not.
export async function signIn(mode, given) {
  const value = mode === "password" ? `Basic ${inBase64(`${given.name}:${given.password}`)}` : `Bearer ${given.key.trim()}`;
  const answer = await send("/monitoring/health", { headers: { Authorization: value } });
  if (!answer.ok) throw new Refused(answer.status, await sentenceOf(answer));
  keep(mode, value);
}

// Credentials are sent by us alone: a browser that did it by itself would ask in a window of its own.
async function send(path, { method = "GET", headers = {}, body, signal } = {}) {
  const own = sessionStorage.getItem(PLACE);
  const all = { ...(own ? { Authorization: own } : {}), ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers };
  const options = { method, headers: all, signal, credentials: "omit", cache: "no-store" };
  if (body !== undefined) options.body = JSON.stringify(body);
  try {
    return await fetch(new URL(path, location.origin), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The router does not answer.");
  }
}

export const asSentence = (text) => (/[.!?]$/.test(text) ? capital(text) : `${capital(text)}.`);

async function sentenceOf(answer) {
  try {
    return asSentence((await answer.json()).detail);
  } catch {
    return `The router answered ${answer.status}.`;
  }
}

// The answer of the router, whatever its body is. Throws `Refused`.
export async function ask(path, options) {
  const sent = sessionStorage.getItem(PLACE);
  const answer = await send(path, options);
  if (answer.ok) return answer;
  const sentence = await sentenceOf(answer);
  if (answer.status === 401) {
    const mode = (answer.headers.get("WWW-Authenticate") ?? "").startsWith("Basic") ? "password" : "key";
    // Others may have asked with the same ones, or without any, and be answered after somebody signed in again.
    if (sessionStorage.getItem(PLACE) === sent && session.get().asks === null) {
      sessionStorage.setItem(MODE, mode);
      sessionStorage.removeItem(PLACE);
      session.set({ asks: { mode, why: sent ? sentence : "" }, signedIn: false });
    }
  }
  throw new Refused(answer.status, sentence);
}

// What an action came to, as JSON if there is any.
export async function act(method, path, body) {
  const answer = await ask(path, { method, body });
  const text = await answer.text();
  const told = text ? JSON.parse(text) : null;
  if (told?.done === false) throw new Refused(answer.status, asSentence(told.text));
  return told;
}

export const query = (given) => {
  const set = Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return set.length ? `?${new URLSearchParams(set)}` : "";
};

// A page of a list: its items, and the path of the next page. Lists say where they go on in three ways.
async function read(path, signal, nextOf) {
  const answer = await ask(path, { signal });
  const data = await answer.json();
  if (Array.isArray(data)) {
    const link = /<([^>]+)>; rel="next"/.exec(answer.headers.get("Link") ?? "");
    return { data, items: data, next: nextOf ? nextOf(data) : (link?.[1] ?? null) };
  }
  if (!Array.isArray(data?.items)) return { data, items: [], next: null };
  const url = new URL(path, location.origin);
  if (data.next !== null && data.next !== undefined) url.searchParams.set("cursor", data.next);
  return { data, items: data.items, next: data.next ? url.pathname + url.search : null };
}

// What is at a path, read again every so many milliseconds while somebody looks. `data` stays while a newer one comes.
// What costs much to find is read again only when somebody asks: `isLast` says so of an answer.
export function useLoad(path, every = 0, nextOf = null, isLast = null) {
  const [found, setFound] = useState({ path: null, data: null, items: [], next: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const look = async (always) => {
      if (always || !document.hidden) {
        try {
          const page = await read(path, stop.signal, nextOf);
          if (!stop.signal.aborted) setFound({ ...page, path, error: null });
          if (isLast?.(page.data)) return;
        } catch (error) {
          if (stop.signal.aborted) return;
          setFound((before) => ({ ...(before.path === path ? before : { data: null, items: [], next: null }), path, error }));
        }
      }
      if (every && !stop.signal.aborted) timer = setTimeout(look, every);
    };
    look(true);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, every, round]);
  const reload = useCallback(() => setRound((count) => count + 1), []);
  return { ...found, busy: path !== null && found.path !== path, reload };
}

export const PAGE = 50;

// A list page by page: only one page is read and drawn, however much there is.
export function usePages(path, { every = 5000, nextOf = null } = {}) {
  const [places, setPlaces] = useState({ path, stack: [] });
  const stack = places.path === path ? places.stack : [];
  const place = stack.at(-1) ?? { path, from: 0 };
  const load = useLoad(place.path, every, nextOf);
  const inside = place.from + PAGE < load.items.length;
  const next = inside ? { path: place.path, from: place.from + PAGE } : load.next ? { path: load.next, from: 0 } : null;
  return {
    ...load,
    items: load.items.slice(place.from, place.from + PAGE),
    page: stack.length + 1,
    forth: next ? () => setPlaces({ path, stack: [...stack, next] }) : null,
    back: stack.length ? () => setPlaces({ path, stack: stack.slice(0, -1) }) : null,
  };
}
