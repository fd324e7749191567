"""`flowcatalyst status`: how a router that runs is, on one screen or for a script."""

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import typer

from flowcatalyst.cli.router_api import AsJson, Key, Router, RouterApi, RouterUnreachableError
from flowcatalyst.cli.words import duration, number, print_json, print_table, print_text
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.terminal import visible

EXIT_CODES: Final = {"HEALTHY": 0, "WARNING": 1}
EXIT_DEGRADED: Final = 2  # also: it cannot be reached, or says nothing that can be read
NO_RATE: Final = "-"


def status(router: Router = None, key: Key = None, as_json: AsJson = False) -> None:
    """Say how a router is.

    It ends with 0 if that is HEALTHY, with 1 if it is WARNING, and with 2 if it is DEGRADED or cannot be asked.
    """
    api = RouterApi(router, key)
    try:
        overview = overview_of(api)
    except FlowCatalystError as error:
        if as_json:
            unreachable = isinstance(error, RouterUnreachableError)
            print_json({"level": "UNREACHABLE" if unreachable else "UNKNOWN", "error": str(error)})
        print(visible(f"flowcatalyst: {error}"), file=sys.stderr)
        raise typer.Exit(EXIT_DEGRADED) from None
    if as_json:
        print_json(overview)
    else:
        _print(api.url, overview)
    if code := EXIT_CODES.get(overview["level"], EXIT_DEGRADED):
        raise typer.Exit(code)


def overview_of(api: RouterApi) -> Any:
    """How the router is now. Rates need two readings, if nobody else looks."""
    with closing(api.overviews()) as overviews:
        first = next(overviews)
        return first if first["deliveredPerSecond"] is not None else next(overviews)


def lag_in_words(overview: Mapping[str, Any]) -> str:
    lag = overview["lagMs"]
    return "" if lag is None else f"p50 {duration(lag['p50'])}, p95 {duration(lag['p95'])}"


def rate(value: float | None) -> str:
    return NO_RATE if value is None else f"{number(value)}/s"


def queued_in_words(overview: Mapping[str, Any]) -> str:
    """What the queues hold, as far as they tell."""
    atleast = "at least " if not overview.get("queuedExact", True) and overview["queued"] is not None else ""
    return "not known" if overview["queued"] is None else f"{atleast}{number(overview['queued'])}"


def _print(url: str, overview: Mapping[str, Any]) -> None:
    print_text(f"{overview['level']}  the router at {url} is {overview['role']}")
    for reason in overview["reasons"]:
        print_text(f"{reason['level']} {reason['part']}: {reason['text']}", "    ", "  - ")
    figures = {
        "delivered": rate(overview["deliveredPerSecond"]),
        "failed": rate(overview["failedPerSecond"]),
        "in flight": number(overview["inFlight"]),
        "in the router": number(overview["buffered"]),
        "in the queues": queued_in_words(overview),
        "lag": lag_in_words(overview),
        "blocked groups": number(overview["blockedGroups"]),
        "dead letters": number(overview["deadLetters"]),
        "warnings": number(overview["warnings"]),
    }
    print()
    for name, value in figures.items():
        if value:
            print(f"{name:16}{value}")
    if not overview["pools"]:
        return
    print()
    rows = [
        (
            pool["code"],
            f"{pool['inFlight']}/{pool['slots']}",
            number(pool["queued"]),
            number(pool["parked"]),
            number(pool["delivered"]),
            "paused" if pool["paused"] else "",
        )
        for pool in overview["pools"]
    ]
    header = ("POOL", "IN FLIGHT", "QUEUED", "PARKED", "DELIVERED", "")
    print_table(header, rows, header[1:5])
