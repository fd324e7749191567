"""Optional dependencies: who lacks the client of a broker is told in one sentence what to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from flowcatalyst.core.errors import ConfigurationError


@contextmanager
def needs_extra(extra: str, *modules: str, what: str, package: str) -> Iterator[None]:
    """Around an import: if one of `modules` is missing, say that `what` needs `package` and how to install the extra.

    Any other import that fails is a bug and is raised as it is.
    """
    try:
        yield
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in modules:
            raise
        goal = "activemq" if extra == "activemq" else "extras"  # of the Makefile
        raise ConfigurationError(
            f"{what} needs the package {package}: in a checkout make {goal}, or pip install '.[{extra}]'; where "
            f"FlowCatalyst comes from an index, pip install 'flowcatalyst[{extra}]'"
        ) from None
