// A receiver of webhooks with Express. See README.md for how to run it.
const express = require("express");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

const secrets = (process.env.WEBHOOK_SECRETS ?? "").split(/\s+/).filter(Boolean); // new and old, while they change
if (!secrets.length || !secrets.every((one) => /^whsec_[A-Za-z0-9+/]{32,}=*$/.test(one))) {
  console.error("WEBHOOK_SECRETS: give the secret of your subscription, whsec_...; several with a space between them");
  process.exit(1);
}
const groups = new Map(); // keep this in your database: after a restart each group begins with a gap
const handled = [];

function verify(body, headers) {
  for (const [index, secret] of secrets.entries()) {
    try {
      return new Webhook(secret).verify(body, headers);
    } catch (error) {
      if (!(error instanceof WebhookVerificationError) || index === secrets.length - 1) throw error;
    }
  }
}

// The rules of docs/receivers.md. Between check and done nothing may be awaited, or the group has to be locked.
function check(group, id, seq, prev) {
  const { last, floor, ids } = groups.get(group) ?? { last: 0, floor: 0, ids: new Map() };
  if ([...ids.values()].includes(id)) {
    if (ids.get(seq) !== id) done(group, id, seq, prev); // what follows will call this position delivered
    return "repeat";
  }
  if (prev > floor && !ids.has(prev)) return "gap";
  return seq > last ? "next" : "regression";
}

function done(group, id, seq, prev) {
  const { last, floor, ids } = groups.get(group) ?? { last: 0, floor: 0, ids: new Map() };
  const trusted = ids.has(prev) ? floor : Math.max(floor, prev);
  const newLast = Math.max(last, seq, trusted);
  ids.set(seq, id);
  for (const old of ids.keys()) if (old <= newLast - 1000) ids.delete(old);
  groups.set(group, { last: newLast, floor: Math.max(trusted, newLast - 1000), ids });
}

const app = express();
app.post("/hook", express.raw({ type: "*/*", limit: "1mb" }), (request, response) => {
  let content;
  try {
    content = verify(request.body, request.headers); // the bytes as they came
  } catch (error) {
    return response.status(401).json({ said: error.message });
  }
  const id = request.get("webhook-id");
  const seq = Number(request.get("x-flowcatalyst-group-seq")); // NaN: it has no position
  const place = [request.get("x-flowcatalyst-group"), id, seq, Number(request.get("x-flowcatalyst-group-prev"))];
  const verdict = seq ? check(...place) : "unordered";
  if (verdict === "repeat") return response.json({ said: "done before" });
  if (verdict === "gap") {
    const said = `${place[0]}: the sender says that ${place[3]} was delivered, and it never came`;
    return response.status(409).json({ said });
  }
  console.log(verdict, place[0], seq, content);
  handled.push(id); // your work
  if (seq) done(...place);
  return response.json({ said: verdict });
});
app.get("/", (request, response) => response.json(handled));
app.listen(Number(process.env.PORT ?? 9000), "127.0.0.1");
