"""`GroupGuard` on each of its stores: gaps, repeats and regressions are told, and nothing else is taken for one."""

import importlib.util
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.receiver import (
    GroupGuard,
    GuardStore,
    MemoryGuardStore,
    SqliteGuardStore,
    SqliteTransactionStore,
    Verdict,
    Webhook,
    sqlite_store,
)
from flowcatalyst.receiver.guard import REMEMBERED
from tests.servers.redis import RedisServer, redis_server

ROOT = Path(__file__).parent.parent.parent
NEXT, REPEAT, GAP, REGRESSION = Verdict.NEXT, Verdict.REPEAT, Verdict.GAP, Verdict.REGRESSION


def webhook(seq: int, prev: int, name: str = "", group: str = "order:7") -> Webhook:
    return Webhook(name or f"id-{seq}", 0, b"", 1, group, seq, prev)


@pytest.fixture(scope="module")
def redis_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardStore]:
    match request.param:
        case "memory":
            yield MemoryGuardStore()
        case "sqlite":
            kept = SqliteGuardStore(tmp_path / "guard.db")
            yield kept
            kept.close()
        case _:
            server: RedisServer = request.getfixturevalue("redis_at")
            server.command("FLUSHALL")
            with redis.Redis(port=server.port) as connection:
                yield of_the_example()(connection)


def of_the_example() -> Callable[..., GuardStore]:
    spec = importlib.util.spec_from_file_location("redis_store", ROOT / "examples" / "receivers" / "redis_store.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., GuardStore] = module.RedisGuardStore
    return made


@pytest.fixture
def guard(store: GuardStore) -> GroupGuard:
    return GroupGuard(store)


def does(guard: GroupGuard, *webhooks: tuple[int, int] | Webhook) -> list[Verdict]:
    """What each is judged as when it comes; all but repeats are done."""
    verdicts = []
    for one in webhooks:
        came = webhook(*one) if isinstance(one, tuple) else one
        verdicts.append(guard.check(came))
        if verdicts[-1] is not REPEAT:
            assert guard.done(came) is verdicts[-1]
    return verdicts


def test_what_a_router_that_died_had_sent_is_a_repeat_at_its_new_position_too(guard: GroupGuard) -> None:
    again = webhook(4, 1, "id-2")
    assert does(guard, (1, 0), (2, 1), again, (5, 4)) == [NEXT, NEXT, REPEAT, NEXT]
    assert guard.done(webhook(6, 5, "id-2")) is REPEAT
    assert guard.check(webhook(7, 6)) is NEXT


def test_a_memory_of_few_groups_forgets_those_in_which_nothing_was_done_for_longest() -> None:
    guard = GroupGuard(MemoryGuardStore(max_groups=2))
    for group in ("a", "b", "a", "c"):
        guard.done(webhook(1, 0, group=group))
    assert [guard.check(webhook(2, 1, group=group)) for group in ("a", "b", "c")] == [NEXT, GAP, NEXT]


def test_one_after_the_other_is_in_order(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), (2, 1), (3, 2)) == [NEXT, NEXT, NEXT]


def test_groups_know_nothing_of_each_other(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), webhook(1, 0, "other", group="Bestellung ä"), (2, 1)) == [NEXT, NEXT, NEXT]


def test_what_has_no_position_is_ordered_with_nothing(guard: GroupGuard) -> None:
    for one in (Webhook("a", 0, b""), Webhook("a", 0, b"", 1, "order:7")):
        assert (guard.check(one), guard.done(one)) == (Verdict.UNORDERED, Verdict.UNORDERED)


def test_a_check_alone_changes_nothing(guard: GroupGuard) -> None:
    assert [guard.check(webhook(1, 0)) for _ in range(3)] == [NEXT] * 3


def test_after_a_lost_answer_it_is_a_repeat(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), (2, 1), (2, 1), (3, 2)) == [NEXT, NEXT, REPEAT, NEXT]


def test_after_a_failure_its_retry_is_in_order(guard: GroupGuard) -> None:
    assert does(guard, (1, 0)) == [NEXT]
    assert guard.check(webhook(2, 1)) is NEXT  # and its handling failed: nobody said done
    assert does(guard, (2, 1), (3, 2)) == [NEXT, NEXT]


def test_one_that_a_person_skipped_leaves_no_gap(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), (3, 1), (4, 3)) == [NEXT, NEXT, NEXT]


def test_one_that_was_done_and_then_skipped_by_a_person_leaves_no_gap(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), (2, 1), (3, 1), (4, 3)) == [NEXT] * 4


def test_one_that_failed_and_comes_after_those_behind_it_is_a_regression_once(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), (3, 1), (4, 3), (2, 4), (2, 4), (5, 2)) == [NEXT, NEXT, NEXT, REGRESSION, REPEAT, NEXT]


def test_what_the_sender_knows_as_delivered_and_never_came_is_a_gap(guard: GroupGuard) -> None:
    assert does(guard, (1, 0)) == [NEXT]
    assert [guard.check(webhook(3, 2)) for _ in range(2)] == [GAP, GAP]


def test_a_late_one_that_was_lost_is_a_gap_although_later_ones_came(guard: GroupGuard) -> None:
    assert does(guard, (1, 0), (3, 1)) == [NEXT, NEXT]
    assert guard.check(webhook(4, 2)) is GAP


def test_who_lost_the_store_is_told_once_for_each_group_that_goes_on(guard: GroupGuard) -> None:
    assert does(guard, (101, 100), (102, 101), (50, 102), (103, 50)) == [GAP, NEXT, REGRESSION, NEXT]


def test_a_person_who_looked_lets_the_group_go_on(guard: GroupGuard) -> None:
    does(guard, (1, 0))
    assert guard.check(webhook(6, 5)) is GAP
    guard.resume_after("order:7", 5)
    assert does(guard, (6, 5), (7, 6)) == [NEXT, NEXT]
    guard.resume_after("order:7", 2)  # nothing is undone by it
    assert does(guard, (7, 6), (8, 7)) == [REPEAT, NEXT]


def test_another_webhook_at_a_position_that_was_done_is_no_repeat(guard: GroupGuard) -> None:
    """A sender that was restored from a backup gives positions out again: what it sends then must not be dropped."""
    does(guard, (1, 0), (2, 1), (3, 2))
    assert does(guard, webhook(2, 1, "new"), webhook(2, 1, "new"), webhook(3, 2, "newer")) == [
        REGRESSION,
        REPEAT,
        REGRESSION,
    ]
    assert does(guard, (4, 3)) == [NEXT]


def test_what_is_too_old_to_be_remembered_is_never_taken_for_a_repeat(guard: GroupGuard) -> None:
    does(guard, (1, 0), (2, 1), (REMEMBERED + 2, 2), (REMEMBERED + 3, REMEMBERED + 2))
    assert guard.check(webhook(2, 1)) is REGRESSION
    assert guard.check(webhook(REMEMBERED + 4, 1)) is NEXT  # nobody can tell whether that one was done
    assert guard.check(webhook(REMEMBERED + 3, REMEMBERED + 2)) is REPEAT


def test_of_requests_with_one_webhook_at_the_same_time_exactly_one_is_told_that_it_did_it(guard: GroupGuard) -> None:
    hooks = [webhook(seq, seq - 1) for seq in range(1, 26)]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(guard.done, [one for one in hooks for _ in range(4)]))
    assert verdicts.count(REPEAT) == 3 * len(hooks)
    assert guard.check(webhook(26, 25)) is NEXT


FORKED = """
import multiprocessing, os, random, sys
from flowcatalyst.receiver import GroupGuard, SqliteGuardStore, Verdict, Webhook

def work(seed):
    order = random.Random(seed).sample(range(1, 31), 30)
    done = [seq for seq in order if guard.done(Webhook(f"id-{seq}", 0, b"", 1, "g", seq, 0)) is not Verdict.REPEAT]
    assert set(store._connections) == {os.getppid(), os.getpid()}, "it used what it inherited"
    return done

store = SqliteGuardStore(sys.argv[1])
guard = GroupGuard(store)
assert guard.done(Webhook("id-31", 0, b"", 1, "g", 31, 0)) is Verdict.NEXT
with multiprocessing.get_context("fork").Pool(4) as pool:
    print(*sorted(sum(pool.map(work, range(4), chunksize=1), [])))
"""


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_share_a_file_and_forked_ones_use_no_connection_of_their_parent(tmp_path: Path) -> None:
    done = run_python(FORKED, str(tmp_path / "guard.db"))
    assert done.split() == [str(seq) for seq in range(1, 31)]


def test_a_file_that_another_process_makes_at_the_same_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever changes a file to WAL needs it for himself, and SQLite does not always wait for that."""
    other = sqlite3.connect(tmp_path / "guard.db", isolation_level=None)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()
    pauses: list[float] = []

    class Pause:
        def wait(self, pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 3:
                other.execute("COMMIT")

    monkeypatch.setattr(sqlite_store, "threading", SimpleNamespace(Lock=threading.Lock, Event=Pause))
    store = SqliteGuardStore(tmp_path / "guard.db")
    assert (len(pauses), GroupGuard(store).done(webhook(1, 0))) == (3, NEXT)
    store.close()
    other.close()


def test_a_file_is_remembered_after_a_restart(tmp_path: Path) -> None:
    for verdict in (NEXT, REPEAT):
        store = SqliteGuardStore(tmp_path / "guard.db")
        assert GroupGuard(store).done(webhook(1, 0)) is verdict
        store.close()


def test_groups_in_which_nothing_was_done_for_long_can_be_forgotten(tmp_path: Path) -> None:
    store = SqliteGuardStore(tmp_path / "guard.db")
    assert does(GroupGuard(store), (1, 0)) == [NEXT]
    assert (store.forget_before(0.0), store.forget_before(4e9)) == (0, 1)
    assert does(GroupGuard(store), (2, 1)) == [GAP]
    store.close()


def test_in_the_transaction_of_an_application_work_and_position_are_kept_or_undone_together(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    store = SqliteTransactionStore(database)
    store.create_tables()
    guard = GroupGuard(store)
    database.execute("BEGIN IMMEDIATE")
    assert guard.done(webhook(1, 0)) is NEXT
    database.execute("ROLLBACK")
    assert guard.check(webhook(1, 0)) is NEXT
    database.execute("BEGIN IMMEDIATE")
    assert guard.done(webhook(1, 0)) is NEXT
    database.execute("COMMIT")
    assert guard.check(webhook(1, 0)) is REPEAT
    database.close()


class Sender:
    """One ordered group as a sender delivers it, and a receiver behind a guard.

    `prev_rule` says which reading of "delivered last" the sender has: the guard must raise no false alarm in any.
    """

    def __init__(self, prev_rule: str) -> None:
        self.guard = GroupGuard(MemoryGuardStore())
        self.prev_rule = prev_rule
        self.positions = count(1)
        self.completed = [0]
        self.failed: list[tuple[int, int]] = []
        self.handled: list[int] = []
        self.verdicts: list[Verdict] = []

    def play(self, step: str, dice: random.Random) -> None:
        seq, first_prev = next(self.positions), self.prev_now()
        if step in ("retry", "retry, answer lost", "retry swallowed", "skip") and self.failed:
            seq, first_prev = self.failed.pop(dice.randrange(len(self.failed)))
        match step:
            case "skip":
                return
            case "delivered" | "retry":
                self.receive(seq, first_prev)
            case "answer lost" | "retry, answer lost":  # and a retry, which may be the end or a skip
                self.receive(seq, first_prev)
                if dice.random() < 0.5:
                    self.failed.append((seq, first_prev))
                    return
                self.receive(seq, first_prev)
            case "failed":
                self.failed.append((seq, first_prev))
                return
        self.completed.append(seq)

    def receive(self, seq: int, first_prev: int) -> None:
        came = webhook(seq, first_prev if self.prev_rule == "of the first attempt" else self.prev_now())
        verdict = self.guard.check(came)
        self.verdicts.append(verdict)
        assert (verdict is REGRESSION) is (seq not in self.handled and seq < max(self.handled, default=0))
        if verdict is not REPEAT:
            assert seq not in self.handled
            self.handled.append(seq)
            self.guard.done(came)

    def prev_now(self) -> int:
        return max(self.completed) if self.prev_rule == "highest" else self.completed[-1]


STEPS = st.lists(
    st.sampled_from(["delivered", "answer lost", "failed", "retry", "retry, answer lost", "skip"]), max_size=40
)


@pytest.mark.parametrize("prev_rule", ["latest", "highest", "of the first attempt"])
@given(steps=STEPS, seed=st.integers(0, 9))
def test_no_failure_retry_or_skip_is_taken_for_a_gap_and_nothing_is_done_twice(
    prev_rule: str, steps: list[str], seed: int
) -> None:
    sender, dice = Sender(prev_rule), random.Random(seed)
    for step in steps:
        sender.play(step, dice)
    assert GAP not in sender.verdicts


@given(steps=STEPS, swallowed=st.sampled_from(["swallowed", "retry swallowed"]), seed=st.integers(0, 9))
def test_whatever_was_lost_the_next_webhook_tells(steps: list[str], swallowed: str, seed: int) -> None:
    sender, dice = Sender("latest"), random.Random(seed)
    for step in steps:
        sender.play(step, dice)
    sender.play(swallowed, dice)
    lost = sender.completed[-1]
    sender.play("delivered", dice)
    assert (sender.verdicts[-1] is GAP) is (lost not in sender.handled)


def test_the_manual_has_each_verdict() -> None:
    text = (ROOT / "docs" / "receivers.md").read_text()
    assert all(f"`{verdict.name}`" in text for verdict in Verdict), text
