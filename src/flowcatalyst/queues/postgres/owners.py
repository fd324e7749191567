"""Who owns leased lanes: one row for each process that receives, renewed every second or so.

An owner is dead when its row was not renewed for `LAPSE_S`. Everybody judges that by their own monotonic clock: we by
the time since we sent a renewal that was confirmed, the others by the time since they saw our row change. So nobody's
wall clock matters, and since they saw it after we sent it, they wait for longer than we do. The one who ends an owner
does so only if its row is still as it was seen.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from flowcatalyst.queues.division import Division, Generation, Standing, Thing
from flowcatalyst.storage.postgres import Connection

LAPSE_S: Final = 8.0
MARGIN_S: Final = 1.0  # we count ourselves out so much earlier: clocks do not run equally fast
RENEW_EVERY_S: Final = 1.5


class Session:
    """One registration as an owner. What was leased in it is ours until it ends, and it never comes back."""

    def __init__(self, owner: int, sent_at: float) -> None:
        self.owner = owner
        self.until = 0.0  # monotonic: nobody else takes us for dead before
        self.ended = False
        self.doubtful: set[int] = set()  # claims whose answer was lost: they may have leased something
        self._claims = 0
        self.renewed(sent_at, sent_at)

    def __repr__(self) -> str:
        return (
            f"<Session owner={self.owner} until={self.until:.1f} ended={self.ended} doubtful={sorted(self.doubtful)}>"
        )

    def is_alive(self, now: float) -> bool:
        return not self.ended and now < self.until

    def renewed(self, sent_at: float, now: float) -> None:
        """A renewal that was sent then was confirmed. If we counted ourselves out meanwhile, that stays so."""
        if self.until and not self.is_alive(now):
            self.ended = True
        else:
            self.until = sent_at + LAPSE_S - MARGIN_S

    def new_claim(self) -> int:
        self._claims += 1
        return self._claims


class OwnerWatch:
    """Notices owners whose rows stand still."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}  # beat, and since when it is known

    def dead_among(self, beats: Mapping[int, int], now: float) -> dict[int, int]:
        """Owners, with their last beats, that did not move for too long. `now` is after the look at them."""
        self._seen = {
            owner: seen if (seen := self._seen.get(owner)) is not None and seen[0] == beat else (beat, now)
            for owner, beat in beats.items()
        }
        return {owner: beat for owner, (beat, since) in self._seen.items() if now - since >= LAPSE_S}


async def register(connection: Connection, name: str) -> int:
    """A new owner. Lanes whose owners were deleted by hand are released."""
    owner: int = await connection.fetchval("INSERT INTO owners (name) VALUES ($1) RETURNING id", name)
    await connection.execute(
        "SELECT release(lost.owner, NULL, NULL) FROM ("
        "  SELECT DISTINCT l.owner FROM lanes AS l"
        "  WHERE l.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM owners AS o WHERE o.id = l.owner)) AS lost"
    )
    return owner


async def renew(
    connection: Connection, owner: int, *, waits: bool, keeps_to: Mapping[Thing, int] | None = None
) -> Standing:
    """All owners with their beats; ours is missing if somebody took us for dead. `waits`: we want to be notified.

    With `keeps_to` it takes part in the divisions, and is told of them.
    """
    if keeps_to is None:
        return Standing(dict(await connection.fetch("SELECT owner, beats FROM renew($1, $2)", owner, waits)))
    kept = [keeps_to[Thing.SLOTS], keeps_to[Thing.PERMITS]]
    rows = await connection.fetch("SELECT * FROM renew_member($1, $2, $3, $4)", owner, waits, *kept)
    by_thing = {thing: [row for row in rows if row["thing"] == thing] for thing in Thing}
    return Standing(
        {row["owner"]: row["beats"] for row in rows},
        {thing: {row["owner"]: row["kept"] for row in by_thing[thing] if row["kept"] is not None} for thing in Thing},
        {
            thing: Division(
                Generation(row["in_force"], tuple(row["in_force_members"])),
                Generation(row["newest"], tuple(row["newest_members"])),
            )
            for thing in Thing
            for row in by_thing[thing][:1]
        },
    )


async def divide(connection: Connection, thing: Thing, old: Division, new: Division) -> None:
    """Write a division, unless somebody else was faster. Everybody is told."""
    numbers = [old.in_force.number, old.newest.number]
    await connection.execute("SELECT divide($1, $2, $3, $4, $5, $6, $7)", thing, *numbers, *new.in_force, *new.newest)


async def forget(connection: Connection, owners: Sequence[int], beats: Sequence[int] | None = None) -> int:
    """End owners, if they still have these beats, with all of their leases; how many lanes are free by that."""
    freed: int = await connection.fetchval("SELECT forget($1, $2)", owners, beats)
    return freed


async def release(connection: Connection, owner: int, queue: int) -> None:
    """End the leases of an owner in one queue."""
    await connection.execute("SELECT release($1, $2, NULL)", owner, queue)


async def void(connection: Connection, owner: int, claim: int) -> int:
    """End what a claim leased, and see to it that it leases nothing later. How many lanes others keep locked."""
    left: int = await connection.fetchval("SELECT void($1, $2)", owner, claim)
    return left
