"""A receiver of webhooks with FastAPI. See README.md for how to run it."""

import os
import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

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
app = FastAPI()


@app.post("/hook")
async def hook(request: Request) -> JSONResponse:
    body = await request.body()  # the bytes as they came: a model of the content would not do
    status, said = await run_in_threadpool(receive, request, body)  # a file is written: not in the event loop
    return JSONResponse({"said": said}, status)


def receive(request: Request, body: bytes) -> tuple[int, str]:
    try:
        webhook = verify(request.headers, body, SECRETS)
    except WebhookError as error:
        return 401, str(error)
    verdict = guard.check(webhook)
    if verdict is Verdict.REPEAT:
        return 200, "done before"
    if verdict is Verdict.GAP:
        return 409, f"{webhook.group}: the sender says that {webhook.group_prev} was delivered, and it never came"
    print(verdict.name, webhook.group, webhook.group_seq, webhook.json(), flush=True)
    handled.append(webhook.id)  # your work; it may be done twice, so let it be idempotent by webhook.id
    guard.done(webhook)
    return 200, verdict.value


@app.get("/")
def what_was_handled() -> list[str]:
    return handled


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))
