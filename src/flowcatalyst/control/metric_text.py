"""Lines of Prometheus text."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

PREFIX: Final = "flowcatalyst_"


def gauge(name: str, text: str, value: float, prefix: str = PREFIX) -> str:
    return head(name, "gauge", text, prefix) + sample(name, {}, value, prefix)


def counter(name: str, text: str, value: float) -> str:
    return head(name, "counter", text) + sample(name, {}, value)


def head(name: str, kind: str, text: str, prefix: str = PREFIX) -> str:
    return f"# HELP {prefix}{name} {text}\n# TYPE {prefix}{name} {kind}\n"


def sample(name: str, given: Mapping[str, str], value: float, prefix: str = PREFIX) -> str:
    return f"{prefix}{name}{labels(given)} {value}\n"


def buckets(name: str, inner: str, bounds: Iterable[float], counts: Sequence[int], total: float | None) -> str:
    """Of a histogram: `counts` has one for each bound, and the rest. `inner` is what stands in the braces of each."""
    upto = list(accumulate(counts))  # a bucket counts all that is at most so much
    comma = "," if inner else ""
    lines = [
        f'{name}_bucket{{{inner}{comma}le="{bound}"}} {count}\n'
        for bound, count in zip([*map(str, bounds), "+Inf"], upto, strict=True)
    ]
    braced = f"{{{inner}}}" if inner else ""
    lines.append(f"{name}_count{braced} {upto[-1]}\n")
    if total is not None:
        lines.append(f"{name}_sum{braced} {total}\n")
    return "".join(lines)


def labels(given: Mapping[str, str]) -> str:
    """In braces; nothing if there are none."""
    inner = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in given.items())
    return f"{{{inner}}}" if inner else ""


_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
