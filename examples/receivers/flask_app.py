"""A receiver of webhooks with Flask. See README.md for how to run it."""

import os
import sys

from flask import Flask, request

from flowcatalyst.receiver import (
    GroupGuard,
    InvalidSecretError,
    SqliteGuardStore,
    Verdict,
    WebhookError,
    check_secrets,
    verify,
)

SECRETS = os.environ.get("WEBHOOK_SECRETS", "").split()  # the new one and the old one, while they change
try:
    check_secrets(SECRETS)  # now, and not when the first webhook comes
except InvalidSecretError as error:
    sys.exit(f"WEBHOOK_SECRETS: {error}")
guard = GroupGuard(SqliteGuardStore(os.environ.get("POSITIONS", "positions.db")))
handled: list[str] = []
app = Flask(__name__)


@app.post("/hook")
def hook() -> tuple[dict[str, str], int]:
    try:
        webhook = verify(request.headers, request.get_data(), SECRETS)
    except WebhookError as error:
        return {"said": str(error)}, 401
    verdict = guard.check(webhook)
    if verdict is Verdict.REPEAT:
        return {"said": "done before"}, 200
    if verdict is Verdict.GAP:
        said = f"{webhook.group}: the sender says that {webhook.group_prev} was delivered, and it never came"
        return {"said": said}, 409
    print(verdict.name, webhook.group, webhook.group_seq, webhook.json(), flush=True)
    handled.append(webhook.id)  # your work; it may be done twice, so let it be idempotent by webhook.id
    guard.done(webhook)
    return {"said": verdict.value}, 200


@app.get("/")
def what_was_handled() -> list[str]:
    return handled


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "9000")))
