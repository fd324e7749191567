"""All subscriptions, ready to say which of them want an event. Pure: whoever changes it and asks it is on one loop."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from flowcatalyst.dispatch.conditions import Steps
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.filters import MAX_STEPS, EventView, Filter, Verdict, compiled
from flowcatalyst.dispatch.subscription import Subscription
from flowcatalyst.dispatch.subscription_index import SubscriptionIndex

SUBSCRIPTION_STEPS: Final = 20  # what one costs without conditions on data, in the steps of these
TURN_STEPS: Final = 10_000


class Matcher:
    """Subscriptions, active and paused, by what they want: a paused one still gets its jobs, which wait.

    An event that nobody wants costs the same with ten of them as with ten thousand: it is looked up by its type, and
    where that fits by one attribute that a subscription wants to be exactly so. Those that fit both are asked.
    """

    def __init__(self, subscriptions: Iterable[Subscription] = ()) -> None:
        self._by_code: dict[str, tuple[Subscription, Filter | None]] = {}
        self._index = SubscriptionIndex()
        self.undecided: Counter[str] = Counter()  # by code: events that were taken though filters were undecided
        for subscription in subscriptions:
            self.replace(subscription)

    @property
    def visits(self) -> int:
        """What the index looked at for all events together, subscriptions whose filters were then asked included."""
        return self._index.visits

    def __len__(self) -> int:
        return len(self._by_code)

    def replace(self, subscription: Subscription) -> None:
        """Add one, or put it in the place of the one with its code. Raises `InvalidFilterError` and changes nothing."""
        filters = compiled(subscription.filters)
        self._by_code[subscription.code] = (subscription, filters)
        self._index.put(subscription.code, subscription.patterns, filters)

    def remove(self, code: str) -> None:
        """One that is not there is removed already."""
        if self._by_code.pop(code, None) is not None:
            self._index.remove(code)
            del self.undecided[code]

    def match(self, event: Event) -> list[Subscription]:
        """Those that want an event, by code. With many filters on data, `matching` lets others have their turns."""
        return [found for found in self.matching(event) if found is not None]

    def matching(self, event: Event) -> Iterator[Subscription | None]:
        """The same one by one, as they were when it began. None: others on the loop may have their turn now.

        A turn ends after `TURN_STEPS`, or as soon as the filters of one subscription, up to `MAX_STEPS`, are through.
        """
        view = EventView(event)
        known: dict[Filter, Verdict] = {}  # the same filters say the same
        taken = 0
        for subscription, filters in [self._by_code[code] for code in sorted(self._index.candidates(event.type, view))]:
            taken += SUBSCRIPTION_STEPS
            if filters is None:
                verdict: Verdict = True
            elif filters in known:
                verdict = known[filters]
            else:
                steps = Steps(MAX_STEPS)
                verdict = known[filters] = filters.passes(view, steps)
                taken += MAX_STEPS - steps.left
            if verdict is None:
                self.undecided[subscription.code] += 1
            if verdict is not False:
                yield subscription
            if taken >= TURN_STEPS:
                taken = 0
                yield None
