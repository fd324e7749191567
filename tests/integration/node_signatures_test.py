"""What we sign the official JavaScript library of Standard Webhooks takes, and the other way round."""

import json
import random
import subprocess
import time
from typing import Any

import pytest

from flowcatalyst.http.signing import new_secret, sign
from flowcatalyst.receiver import SignatureError, verify
from tests.servers import ServerMissingError, skip_or_fail
from tests.servers.node import node_command

# Each line has what a sender signed; the answer says whether the library takes it, and how it would sign it.
SCRIPT = """
const { Webhook } = require("standardwebhooks");
const lines = require("fs").readFileSync(0, "utf8").trim().split("\\n");
for (const { secret, id, timestamp, body, signature } of lines.map(JSON.parse)) {
  const webhook = new Webhook(secret);
  const headers = { "webhook-id": id, "webhook-timestamp": `${timestamp}`, "webhook-signature": signature };
  let taken = true;
  try { webhook.verify(body, headers); } catch (error) { taken = error.message; }
  console.log(JSON.stringify({ taken, signature: webhook.sign(id, new Date(timestamp * 1000), body) }));
}
"""
BODIES = ["{}", '""', '{"total": 12.50, "name": "Zoë 🛒 \\u2028"}', "[" * 50 + "]" * 50, json.dumps("x" * 10_000)]


def asked(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        command = node_command(SCRIPT)
    except ServerMissingError as error:
        skip_or_fail(error)
    lines = "\n".join(json.dumps(case) for case in cases)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def cases() -> list[dict[str, Any]]:
    dice, now = random.Random(1), int(time.time())
    made = []
    for number, body in enumerate([*BODIES, *(json.dumps(dice.randbytes(40).hex()) for _ in range(50))]):
        secret, old = new_secret(dice.randint(24, 64)), new_secret()
        case = {"secret": secret, "id": f"msg_{number}", "timestamp": now, "body": body}
        made.append(case | {"signature": sign(f"msg_{number}", now, body.encode(), [old, secret])})
    return made


def test_it_takes_what_we_sign_and_signs_as_we_do() -> None:
    sent = cases()
    for case, answer in zip(sent, asked(sent), strict=True):
        assert answer["taken"] is True, case
        assert answer["signature"] == case["signature"].split(" ")[1]
        headers = {"webhook-id": case["id"], "webhook-timestamp": str(case["timestamp"])}
        headers["webhook-signature"] = answer["signature"]
        assert verify(headers, case["body"].encode(), case["secret"]).body == case["body"].encode()


def test_both_refuse_what_was_changed() -> None:
    sent = [case | {"body": json.dumps([json.loads(case["body"])])} for case in cases()]
    assert {answer["taken"] for answer in asked(sent)} == {"No matching signature found"}
    for case in sent:
        headers = {f"webhook-{name}": str(case[name]) for name in ("id", "timestamp", "signature")}
        with pytest.raises(SignatureError):
            verify(headers, case["body"].encode(), case["secret"])
