"""The receivers in examples/, each as a process of its own, and what they make of webhooks that a sender may send."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.servers import running
from tests.servers.node import node_command
from tests.servers.process import ServerProcess, answers_http
from tests.support.patience import PATIENCE_S
from tests.support.webhooks import OLD_SECRET, SECRET, signed

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "receivers"
APPS = ["fastapi_app.py", "flask_app.py", "django_app.py", "express_app.js"]
AT_LEAST_ONCE = {"fastapi_app.py", "flask_app.py"}  # their work is in no transaction
WRONG_SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
BODY = b'{"total": 12}'
_numbers = count(1)


class Receiver(ServerProcess):
    """One of the examples. It knows two secrets, as while they change."""

    def __init__(self, app: str, folder: Path) -> None:
        self.name = app
        super().__init__(folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def post(self, headers: dict[str, str], body: bytes = BODY) -> tuple[int, str]:
        status, answer = self._ask("POST", "/hook", body, headers)
        return status, answer["said"]

    def handled(self) -> list[str]:
        found: list[str] = self._ask("GET", "/")[1]
        return found

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def _command(self) -> Sequence[str | Path]:
        settings = [f"PORT={self.port}", f"WEBHOOK_SECRETS={SECRET} {OLD_SECRET}", "POSITIONS=positions.db"]
        path = EXAMPLES / self.name
        command = node_command(path) if path.suffix == ".js" else [sys.executable, str(path)]
        return ["env", *settings, *command]  # which becomes the program: to kill it kills that

    def _answers(self) -> bool:
        return answers_http(self.port)


@pytest.fixture(scope="module", params=APPS)
def receiver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with running(lambda: Receiver(request.param, tmp_path_factory.mktemp("receiver"))) as receiver:
        yield receiver


class Group:
    """A group of its own for each test, and what a sender sends of it."""

    def __init__(self) -> None:
        self.name = f"order:{next(_numbers)}"

    def id_of(self, seq: int) -> str:
        return f"{self.name}-{seq}"

    def webhook(self, seq: int, prev: int, age_s: int = 0, secrets: Sequence[str] = (SECRET,)) -> dict[str, str]:
        timestamp = int(time.time()) - age_s
        position = (self.name, seq, prev)
        return signed(BODY, webhook_id=self.id_of(seq), timestamp=timestamp, secrets=secrets, position=position)


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.mark.parametrize("secrets", ["", "hunter2"])
@pytest.mark.parametrize("app", APPS)
def test_one_without_a_secret_that_can_be_one_says_so_and_does_not_start(app: str, secrets: str) -> None:
    path = EXAMPLES / app
    command = node_command(path) if path.suffix == ".js" else [sys.executable, str(path)]
    ended = subprocess.run(
        ["env", "PORT=0", f"WEBHOOK_SECRETS={secrets}", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("WEBHOOK_SECRETS: ")
    assert ended.stderr.count("\n") == 1


def test_webhooks_in_order_are_handled_each_once(receiver: Receiver, group: Group) -> None:
    sent = [(1, 0), (2, 1), (2, 1), (3, 2)]
    answers = [receiver.post(group.webhook(*one)) for one in sent]
    assert answers == [(200, "next"), (200, "next"), (200, "done before"), (200, "next")]
    ours = [one for one in receiver.handled() if one.startswith(f"{group.name}-")]
    assert ours == [group.id_of(seq) for seq in (1, 2, 3)]


def test_what_another_secret_signed_or_somebody_changed_is_refused(receiver: Receiver, group: Group) -> None:
    assert receiver.post(group.webhook(1, 0, secrets=[WRONG_SECRET]))[0] == 401
    assert receiver.post(group.webhook(1, 0), BODY + b" ")[0] == 401
    assert receiver.post({})[0] == 401
    assert group.id_of(1) not in receiver.handled()


def test_what_is_too_old_or_too_new_is_refused(receiver: Receiver, group: Group) -> None:
    assert [receiver.post(group.webhook(1, 0, age_s))[0] for age_s in (310, -400)] == [401, 401]
    assert group.id_of(1) not in receiver.handled()


def test_while_secrets_change_either_will_do(receiver: Receiver, group: Group) -> None:
    assert receiver.post(group.webhook(1, 0, secrets=[OLD_SECRET])) == (200, "next")
    assert receiver.post(group.webhook(2, 1, secrets=[WRONG_SECRET, SECRET])) == (200, "next")


def test_a_gap_is_refused_and_named(receiver: Receiver, group: Group) -> None:
    assert receiver.post(group.webhook(1, 0)) == (200, "next")
    status, said = receiver.post(group.webhook(3, 2))
    assert (status, said) == (409, f"{group.name}: the sender says that 2 was delivered, and it never came")
    assert group.id_of(3) not in receiver.handled()


def test_a_late_one_is_handled_once(receiver: Receiver, group: Group) -> None:
    answers = [receiver.post(group.webhook(*one)) for one in ((1, 0), (3, 1), (2, 3), (2, 3), (4, 2))]
    assert [said for _, said in answers] == ["next", "next", "regression", "done before", "next"]
    assert {status for status, _ in answers} == {200}


def test_what_has_no_position_is_handled(receiver: Receiver, group: Group) -> None:
    headers = {name: value for name, value in group.webhook(1, 0).items() if "Group" not in name}
    assert receiver.post(headers) == (200, "unordered")


def test_one_webhook_in_many_requests_at_once_is_done_once_where_work_and_position_are_one_step(
    receiver: Receiver, group: Group
) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(receiver.post, [group.webhook(1, 0)] * 8))
    assert set(answers) == {(200, "done before"), (200, "next")} or receiver.name in AT_LEAST_ONCE
    times = receiver.handled().count(group.id_of(1))
    assert times == answers.count((200, "next")) >= 1
    assert times == 1 or receiver.name in AT_LEAST_ONCE
    assert receiver.post(group.webhook(1, 0)) == (200, "done before")


def test_the_folder_names_each_of_them() -> None:
    text = (EXAMPLES / "README.md").read_text()
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".js"}}
    assert there == {*APPS, "redis_store.py"}
    assert all(f"[{name}]({name})" in text for name in there)
