"""`python -m bench.matching`: what matching an event costs, by subscriptions, and what hostile filters cost at most.

Processor time of this process, the best of some rounds: others on the machine do not count.
"""

import gc
import time
from collections.abc import Callable
from functools import partial

import msgspec
from tests.support.hostile_filters import ACCEPTED, DATA

from flowcatalyst.dispatch.event import Event, NewEvent, new_event
from flowcatalyst.dispatch.filters import EventView, Filter, FilterSpec, Verdict, compiled
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.matcher import Matcher
from flowcatalyst.dispatch.subscription import EventTypeBinding, Subscription, jobs_of

ROUNDS = 7


def main() -> None:
    print_matching()
    print()
    print_fan_out()
    print()
    print_hostile()


def print_matching() -> None:
    print("an event that nobody wants, us of processor each")
    for code in ("unknown", "shop.order.created.other"):
        costs = {count: _cost_us(partial(_matcher(count).match, _event(code))) for count in (10, 10_000)}
        print(f"  {code:26} 10: {costs[10]:.2f}   10,000: {costs[10_000]:.2f}   ratio {costs[10_000] / costs[10]:.2f}")

    for what, filters in _FITTING_NOBODY.items():
        costs = {}
        for count in (10, 10_000):
            matcher = Matcher(_subscription(f"s{n}", ("order.*",), (filters(n),)) for n in range(count))
            costs[count] = _cost_us(partial(matcher.match, _event("order.created")), 20)
        print(f"  {what:26} 10: {costs[10]:.2f}   10,000: {costs[10_000]:.2f}   ratio {costs[10_000] / costs[10]:.2f}")


# Of subscriptions whose patterns it fits: the first are found by an index, the others are asked one by one.
_FITTING_NOBODY: dict[str, Callable[[int], FilterSpec]] = {
    "exact, not of this tenant": lambda n: {"exact": {"source": "shop", "tenant": f"t{n}"}},
    "prefix, of no such subject": lambda n: {"prefix": {"subject": f"s{n}"}},
}


def print_fan_out() -> None:
    print("an event of 1 KiB and its jobs, us of processor each")
    event = _event("order.created", b'{"total":12,"text":"' + b"x" * 1000 + b'"}')
    kinds: tuple[tuple[FilterSpec, ...], ...] = ((), ({"exact": {"source": "shop"}},), ({"jsonpath": "$.total > 10"},))
    for filters in kinds:
        cells = []
        for count in (1, 10, 100):
            matcher = Matcher(_subscription(f"s{n}", ("order.*",), filters) for n in range(count))
            cells.append(f"{count}: {_cost_us(partial(_jobs, matcher, event), 200):.1f}")
        print(f"  {next(iter(filters[0])) if filters else 'no filter':10} {'   '.join(cells)}")


def print_hostile() -> None:
    print("filters that try to take long, ms of processor: accepting the event, decoding and the worst filter")
    for name, data in DATA.items():
        made = NewEvent(type="a", source="s", data=msgspec.Raw(data))
        event = new_event(made, "e", 1.0)
        accept_ms = _cost_us(partial(new_event, made, "e", 1.0), 1) / 1000
        costs = {}
        for text in ACCEPTED:
            filters = compiled([{"jsonpath": text}])
            assert filters is not None
            costs[text] = _cost_us(partial(_pass, filters, event), 1) / 1000
        worst = max(costs, key=lambda text: costs[text])
        print(f"  {name:24} {accept_ms:6.1f} {costs[worst]:6.1f}   {worst[:60]}")


def _jobs(matcher: Matcher, event: Event) -> list[Job]:
    return jobs_of(event, matcher.match(event), lambda: "j", 1.0)


def _pass(filters: Filter, event: Event) -> Verdict:
    return filters.passes(EventView(event))


def _matcher(count: int) -> Matcher:
    """Each with patterns that begin like others, and differ only in the end."""
    return Matcher(
        _subscription(f"s{n}", (f"shop{n}.order.*", f"shop.order.created.v{n}", f"*.order.*.v{n}"))
        for n in range(count)
    )


def _subscription(code: str, patterns: tuple[str, ...], filters: tuple[FilterSpec, ...] = ()) -> Subscription:
    types = tuple(map(EventTypeBinding, patterns))
    return Subscription(code=code, target_url="https://shop.example/", event_types=types, filters=filters)


def _event(code: str, data: bytes = b"{}") -> Event:
    made = NewEvent(type=code, source="shop", data=msgspec.Raw(data), message_group="g")
    return new_event(made, "e", 1.0)


def _cost_us(work: Callable[[], object], times: int = 2000) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


if __name__ == "__main__":
    main()
