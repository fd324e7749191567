"""Words for people."""


def count(number: int, one: str, several: str = "") -> str:
    """How many of something, as one says it: `1 copy`, `2 copies`."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
