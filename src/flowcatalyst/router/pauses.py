"""Pauses: what people told the router not to start. Pure.

A paused pool starts nothing and asks for nothing. A paused endpoint, or origin, and a held group let everything else of
their pool go on: their messages wait at a *gate* (`GroupScheduler.gates`), take no slot and spend no attempt. So do
messages that name a paused pool and are in another one, as when their own is configured no more.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flowcatalyst.core.message import DEFAULT_POOL, Delivery

HELD_GROUPS: Final = "held groups"  # the gate of them all: no endpoint is called so
_PAUSED: Final = "paused "
_POOL: Final = f"{_PAUSED}pool "  # no endpoint begins so


class PauseKind(StrEnum):
    POOL = "POOL"
    ENDPOINT = "ENDPOINT"
    GROUP = "GROUP"


@dataclass(slots=True, frozen=True)
class Pause:
    """Who paused something, and when (wall time)."""

    by: str
    since: float


@dataclass(slots=True, frozen=True)
class Stop:
    """Whom a message waits for that would be tried, or received, otherwise."""

    kind: PauseKind
    name: str
    pause: Pause

    @property
    def what(self) -> str:
        """What it waits for."""
        if self.kind is PauseKind.GROUP:
            return f"its group to be released: {self.pause.by} holds it"
        name = f"pool {self.name}" if self.kind is PauseKind.POOL else self.name
        return f"{name} to be resumed: {self.pause.by} paused it"


class Pauses:
    """All that is paused or held. They outlive an engine: the one of the next primary session gets them too."""

    def __init__(self) -> None:
        self.pools: dict[str, Pause] = {}
        self.endpoints: dict[str, Pause] = {}  # or origins
        self.groups: dict[str, Pause] = {}
        self.gates_closed = False  # each message is looked at before it starts

    def __repr__(self) -> str:
        return f"<Pauses {' '.join(f'{kind}:{name}' for kind, name, _ in self) or 'none'}>"

    def __len__(self) -> int:
        return len(self.pools) + len(self.endpoints) + len(self.groups)

    def __iter__(self) -> Iterator[tuple[PauseKind, str, Pause]]:
        for kind in PauseKind:
            for name, pause in self.of_kind(kind).items():
                yield kind, name, pause

    def of_kind(self, kind: PauseKind) -> dict[str, Pause]:
        return {PauseKind.POOL: self.pools, PauseKind.ENDPOINT: self.endpoints, PauseKind.GROUP: self.groups}[kind]

    def add(self, kind: PauseKind, name: str, pause: Pause) -> Pause:
        """The pause in force: one that is there already stays as it is."""
        known = self.of_kind(kind).setdefault(name, pause)
        self.gates_closed = bool(self.pools or self.endpoints or self.groups)
        return known

    def replace(self, pauses: Mapping[tuple[PauseKind, str], Pause]) -> None:
        """These are in force, and no others."""
        for kind in PauseKind:
            self.of_kind(kind).clear()
        self.gates_closed = False
        for (kind, name), pause in pauses.items():
            self.add(kind, name, pause)

    def remove(self, kind: PauseKind, name: str) -> bool:
        """Whether there was one."""
        was_paused = self.of_kind(kind).pop(name, None) is not None
        self.gates_closed = bool(self.pools or self.endpoints or self.groups)
        return was_paused

    def gate_of(
        self, delivery: Delivery, endpoint_of: Callable[[str], str], origin_of: Callable[[str], str]
    ) -> str | None:
        """The gate at which a message waits for a person; None: nobody stopped it. Groups of jobs are held in their
        database."""
        if self.groups and delivery.ordered and delivery.group in self.groups and delivery.terms is None:
            return HELD_GROUPS
        if self.pools and (code := delivery.pointer.pool_code or DEFAULT_POOL) in self.pools and code != delivery.pool:
            return gate_of_pool(code)
        paused = self.of_target(delivery.pointer.mediation_target, endpoint_of, origin_of) if self.endpoints else None
        return None if paused is None else gate_of_endpoint(paused[0])

    def of_target(
        self, target: str, endpoint_of: Callable[[str], str], origin_of: Callable[[str], str]
    ) -> tuple[str, Pause] | None:
        """What is paused of where a target leads: its endpoint, or its whole origin."""
        for name in (endpoint_of(target), origin_of(target)):
            if name in self.endpoints:
                return name, self.endpoints[name]
        return None

    def stop_of(
        self,
        pool: str,
        group: str | None,
        target: str | None,
        endpoint_of: Callable[[str], str],
        origin_of: Callable[[str], str],
    ) -> Stop | None:
        """What keeps a message that is not in the router from being tried; None: no person does. Nobody knows the
        target of one that was not read yet."""
        if (pause := self.pools.get(pool)) is not None:
            return Stop(PauseKind.POOL, pool, pause)
        if group and (pause := self.groups.get(group)) is not None:
            return Stop(PauseKind.GROUP, group, pause)
        paused = self.of_target(target, endpoint_of, origin_of) if target and self.endpoints else None
        return None if paused is None else Stop(PauseKind.ENDPOINT, *paused)

    def explain(self, gate: str, group: str | None) -> str | None:
        """What a message at a gate waits for; None: no person closed it."""
        if gate == HELD_GROUPS:
            held = self.groups.get(group or "")
            return "its group to be released" + ("" if held is None else f": {held.by} holds it")
        if is_of_pool(gate):
            name = gate.removeprefix(_POOL)
            pause = self.pools.get(name)
            return f"pool {name} to be resumed" + ("" if pause is None else f": {pause.by} paused it")
        if gate.startswith(_PAUSED):
            name = gate.removeprefix(_PAUSED)
            pause = self.endpoints.get(name)
            return f"{name} to be resumed" + ("" if pause is None else f": {pause.by} paused it")
        return None


def gate_of_endpoint(name: str) -> str:
    return f"{_PAUSED}{name}"


def gate_of_pool(code: str) -> str:
    return f"{_POOL}{code}"


def is_of_pool(gate: str) -> bool:
    return gate.startswith(_POOL)


def is_for_people(gate: str) -> bool:
    """Whether only a person opens this gate."""
    return gate == HELD_GROUPS or gate.startswith(_PAUSED)
