"""A receiver of webhooks with Django, in one file. See README.md for how to run it.

What is done for a webhook and its position are one transaction here: both are kept, or neither is, and of two requests
with one webhook at the same time one finds it done.
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from flowcatalyst.receiver import (
    GroupGuard,
    InvalidSecretError,
    SqliteTransactionStore,
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
DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("POSITIONS", "positions.db")}
DATABASE["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}  # check and done see the same
settings.configure(ROOT_URLCONF=__name__, DATABASES={"default": DATABASE}, ALLOWED_HOSTS=["127.0.0.1"])
django.setup()


@csrf_exempt  # the signature tells who sends this
@require_POST
def hook(request: HttpRequest) -> JsonResponse:
    try:
        webhook = verify(request.headers, request.body, SECRETS)
    except WebhookError as error:
        return JsonResponse({"said": str(error)}, status=401)
    with transaction.atomic(), connection.cursor() as cursor:
        guard = GroupGuard(SqliteTransactionStore(connection.connection))
        verdict = guard.check(webhook)
        if verdict is Verdict.REPEAT:
            return JsonResponse({"said": "done before"})
        if verdict is Verdict.GAP:
            said = f"{webhook.group}: the sender says that {webhook.group_prev} was delivered, and it never came"
            return JsonResponse({"said": said}, status=409)
        cursor.execute("INSERT INTO handled VALUES (%s)", [webhook.id])  # your work
        guard.done(webhook)
    return JsonResponse({"said": verdict.value})


def what_was_handled(request: HttpRequest) -> JsonResponse:
    with connection.cursor() as cursor:
        return JsonResponse([row[0] for row in cursor.execute("SELECT id FROM handled").fetchall()], safe=False)


urlpatterns = [path("hook", hook), path("", what_was_handled)]

if __name__ == "__main__":
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT)")
        SqliteTransactionStore(connection.connection).create_tables()
    connection.close()
    address = f"127.0.0.1:{os.environ.get('PORT', '9000')}"
    execute_from_command_line([sys.argv[0], "runserver", "--noreload", "--skip-checks", address])
