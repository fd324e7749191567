"""The report for people: tables for a terminal or a pipe, and sentences that answer the question."""

from typing import Final

from rich.console import Console
from rich.table import Table

from flowcatalyst.simulation.report import Report

BLOCKED_SHOWN: Final = 5
SHORTEST_SHOWN_S: Final = 1.0
WORTH_TELLING_S: Final = 60.0
TABLE_WIDTH: Final = 82  # of the table over time without its bars
WIDEST_BAR: Final = 24
_STEPS: Final = "▁▂▃▄▅▆▇█"
_ASCII_STEPS: Final = ".:-=+*#@"


def answer(report: Report) -> list[str]:
    """What somebody who asked "what happens if" wants to hear, in plain sentences."""
    if not report.published:
        return ["No message was published: raise per_minute or duration."]
    sentences = [_ends(report), _backlog(report)]
    if report.lag is not None:
        lag = report.lag
        sentences.append(
            f"Half of the messages were delivered within {span(lag.p50_s)} of being published and 99 % within "
            f"{span(lag.p99_s)}; the slowest took {span(lag.max_s)}."
        )
    pool = max(report.pools, key=lambda one: one.permit_wait_s)
    if pool.permit_wait_s >= WORTH_TELLING_S:
        held_s, all_s = span(pool.permit_wait_s), span(report.virtual_s)
        sentences.append(f"Pool {pool.code} waited for its rate limit for {held_s} of {all_s}.")
    longest = next(iter(report.blocked_groups), None)
    if longest is not None and longest.seconds >= WORTH_TELLING_S and report.recovery is None:  # no outage explains it
        end = "" if longest.ended else " and had not moved when the simulation ended"
        sentences.append(f"Group {longest.group} stood still longest, for {span(longest.seconds)}{end}: {longest.why}.")
    return sentences


def _ends(report: Report) -> str:
    total = count(report.published, "message")
    if report.delivered == report.published:
        return f"All {total} were delivered, none is a dead letter."
    parts = [f"{report.delivered:,} were delivered"]
    if report.dead_lettered:
        parts.append(f"{report.dead_lettered:,} became dead letters")
    if report.left:
        parts.append(f"{report.left:,} were still waiting when the simulation ended at {clock(report.virtual_s)}")
    return f"Of {total} {' and '.join(parts) if len(parts) < 3 else ', '.join(parts)}."


def _backlog(report: Report) -> str:
    peak = f"The backlog peaked at {count(report.peak_backlog, 'message')} at {clock(report.peak_backlog_at_s)}"
    recovery, gone_at_s = report.recovery, report.peak_gone_at_s
    if recovery is not None and recovery.seconds is not None:
        recovered_at_s = recovery.trouble_ended_s + recovery.seconds
        if report.peak_backlog_at_s <= recovered_at_s:
            return f"{peak} and was gone {span(recovery.seconds)} after {recovery.after}."
    if gone_at_s is None:
        return f"{peak} and was not gone when the simulation ended: {count(report.left, 'message')} were left."
    return f"{peak} and was gone {span(gone_at_s - report.peak_backlog_at_s)} later."


def print_report(report: Report, console: Console, wall_s: float) -> None:
    """All of it. Nothing depends on colour."""
    _print_counts(report, console, wall_s)
    _print_time_table(report, console)
    _print_pools_and_endpoints(report, console)
    _print_blocked(report, console)
    for error in report.errors:
        console.print(f"Something broke inside: {error}")
    if report.violations is not None and not report.violations:
        console.print("Checked: every rule of the router held.")
    for violation in report.violations or ():
        console.print(f"Violation: {violation}")
    for sentence in report.answer:
        console.print(sentence)


def _print_counts(report: Report, console: Console, wall_s: float) -> None:
    speed = f", {report.virtual_s / wall_s:,.0f} times as fast as real time" if wall_s > 0 else ""
    console.print(f"Simulated {span(report.virtual_s)} in {span(wall_s)}{speed}. Seed {report.seed}.")
    again = f" ({report.delivered_again:,} more than once)" if report.delivered_again else ""
    console.print(
        f"Messages: {report.published:,} published, {report.delivered:,} delivered{again}, "
        f"{report.dead_lettered:,} dead letters, {report.left:,} left."
    )
    console.print(
        f"Attempts: {report.attempts:,}, of which {report.failed_attempts:,} failed. Nacked: "
        f"{report.nacked:,} times. Received: {report.receives:,} times, one message up to {report.most_receives:,}."
    )
    if report.lag is not None:
        lag = report.lag
        console.print(
            f"Lag from publishing to success: p50 {span(lag.p50_s)}, p95 {span(lag.p95_s)}, p99 {span(lag.p99_s)}, "
            f"max {span(lag.max_s)}."
        )


def _print_time_table(report: Report, console: Console) -> None:
    table = _table("from", "in", "out", "failed", "p50", "p95", "p99", "max", "held", "backlog")
    table.add_column("", justify="left", no_wrap=True)
    most = max((bucket.backlog_peak for bucket in report.buckets), default=0)
    width = max(0, min(WIDEST_BAR, console.width - TABLE_WIDTH))
    full = "█" if _has_unicode(console) else "#"
    for bucket in report.buckets:
        numbers = (f"{number:,}" for number in (bucket.published, bucket.delivered, bucket.failed_attempts))
        start = clock(bucket.start_s, with_seconds=report.bucket_s % 60 != 0)
        held = (f"{bucket.in_router:,}", f"{bucket.backlog:,}")
        bar = full * (round(width * bucket.backlog_peak / most) if most else 0)
        lag = bucket.lag
        lags = ["-"] * 4
        if lag is not None:
            lags = [short_span(seconds) for seconds in (lag.p50_s, lag.p95_s, lag.p99_s, lag.max_s)]
        table.add_row(start, *numbers, *lags, *held, bar)
    console.print(
        f"\nEvery {span(report.bucket_s)}: messages in and out, failed attempts, lag of what went out, and at the end: "
        "held by the router, backlog in all (bar: its peak)"
    )
    console.print(table)
    steps = _STEPS if _has_unicode(console) else _ASCII_STEPS
    p95s = [None if bucket.lag is None else bucket.lag.p95_s for bucket in report.buckets]
    slowest = max((p95 for p95 in p95s if p95 is not None), default=0.0)
    line = [" " if p95 is None or not slowest else steps[round((len(steps) - 1) * p95 / slowest)] for p95 in p95s]
    console.print(f"lag p95 over time: {''.join(line)}\n")


def _print_pools_and_endpoints(report: Report, console: Console) -> None:
    pools = _table("pool", "attempts", "delivered", "dead letters", "waits for a permit", "for about")
    for pool in report.pools:
        numbers = (pool.attempts, pool.delivered, pool.dead_lettered, pool.permit_waits)
        pools.add_row(pool.code, *(f"{number:,}" for number in numbers), span(pool.permit_wait_s))
    console.print(pools)
    console.print()
    endpoints = _table("endpoint", "attempts", "breaker opened")
    endpoints.add_column("failures", justify="left")
    for endpoint in report.endpoints:
        failures = ", ".join(f"{number:,} x {what}" for what, number in endpoint.failures.items())
        endpoints.add_row(endpoint.name, f"{endpoint.attempts:,}", f"{endpoint.breaker_openings:,}", failures or "none")
    console.print(endpoints)
    console.print()


def _print_blocked(report: Report, console: Console) -> None:
    shown = [one for one in report.blocked_groups[:BLOCKED_SHOWN] if one.seconds >= SHORTEST_SHOWN_S]
    if not shown:
        return
    table = _table("blocked group", "from", "for", "waiting")
    table.add_column("behind", justify="left")
    table.add_column("why", justify="left")
    for one in shown:
        table.add_row(one.group, clock(one.from_s), span(one.seconds), f"{one.waiting:,}", one.behind, one.why)
    console.print(table)
    console.print()


def _table(*headings: str) -> Table:
    """Names in the first column, numbers in the others."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="none")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _has_unicode(console: Console) -> bool:
    return console.encoding.startswith("utf")


def span(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02} s" if rest else f"{minutes} min"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes % 60 else f"{minutes // 60} h"


def short_span(seconds: float) -> str:
    """The same for a narrow column."""
    return span(seconds).replace(" min ", "m").replace(" min", "m").replace(" h ", "h").replace(" ", "")


def clock(seconds: float, *, with_seconds: bool = True) -> str:
    """A moment, counted from the start: hours, minutes and seconds."""
    whole = int(seconds)
    hours_and_minutes = f"{whole // 3600}:{whole % 3600 // 60:02}"
    return f"{hours_and_minutes}:{whole % 60:02}" if with_seconds else hours_and_minutes


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
