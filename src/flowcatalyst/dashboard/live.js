// The stream of overviews. EventSource cannot send credentials, so it is read by fetch.
import { ask, session } from "./api.js";
import { store } from "./core.js";

const KEPT = 600; // seconds that charts can show
const PATIENCE_MS = 10_000; // without a word: the router sends one every second
let retryMs = 2000;

// `state` is "connecting", "live" or "lost"; `since` is when it was lost.
export const live = store({ state: "connecting", overview: null, since: null, why: "" });

export const past = { at: [], delivered: [], failed: [], inFlight: [], buffered: [], queued: [], p50: [], p95: [], pools: new Map() };

function push(series, value) {
  series.push(value);
  if (series.length > KEPT) series.shift();
}

function remember(overview) {
  const at = Date.parse(overview.at) / 1000;
  push(past.at, at);
  push(past.delivered, overview.deliveredPerSecond);
  push(past.failed, overview.failedPerSecond);
  push(past.inFlight, overview.inFlight);
  push(past.buffered, overview.buffered);
  push(past.queued, overview.queued);
  push(past.p50, overview.lagMs?.p50 ?? null);
  push(past.p95, overview.lagMs?.p95 ?? null);
  const there = new Set();
  for (const pool of overview.pools) {
    there.add(pool.code);
    if (!past.pools.has(pool.code)) past.pools.set(pool.code, { at: [], inFlight: [], slots: [], queued: [], delivered: [], perSecond: [] });
    const of = past.pools.get(pool.code);
    const seconds = at - (of.at.at(-1) ?? at);
    const more = pool.delivered - (of.delivered.at(-1) ?? pool.delivered);
    push(of.perSecond, seconds > 0 && more >= 0 ? more / seconds : null);
    push(of.at, at);
    push(of.inFlight, pool.inFlight);
    push(of.slots, pool.slots);
    push(of.queued, pool.queued);
    push(of.delivered, pool.delivered);
  }
  for (const code of past.pools.keys()) if (!there.has(code)) past.pools.delete(code);
}

function take(block) {
  let kind = "", data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
    else if (line.startsWith("retry: ")) retryMs = Number(line.slice(7));
  }
  if (kind !== "overview") return;
  const overview = JSON.parse(data);
  remember(overview);
  live.set({ state: "live", overview, since: null, why: "" });
}

async function listen() {
  const stop = new AbortController();
  let silence = setTimeout(() => stop.abort(), PATIENCE_MS);
  try {
    const answer = await ask("/monitoring/live", { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), PATIENCE_MS);
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      blocks.forEach(take);
    }
  } finally {
    clearTimeout(silence);
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export async function follow() {
  for (;;) {
    if (session.get().asks === null) {
      let why = "";
      try {
        await listen();
      } catch (error) {
        if (error.status) why = error.message;
      }
      const before = live.get();
      live.set({ ...before, state: "lost", since: before.since ?? new Date(), why });
      await pause(retryMs);
    } else {
      await pause(200);
    }
  }
}
