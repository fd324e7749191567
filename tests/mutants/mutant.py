"""Mutant: one planted bug, and the means to plant it by patching objects of the imported package.

A mutant quotes no line of source. It wraps or replaces a method, a property, a function or a constant, so it survives
every change that keeps that name. One whose name is gone cannot be planted, which is an error and no catch.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, getattr_static, signature
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Hunter(StrEnum):
    """Who has to catch a mutant."""

    SIMULATION = "simulation"
    JOBS = "simulation of jobs"
    EVENTS = "simulation of events"
    MACHINE = "stateful test"
    TEST = "test"


@dataclass(slots=True, frozen=True)
class Mutant:
    """A bug that a good engineer could write. `plant` puts it into the package of this process, for good."""

    name: str  # a sentence of what is wrong
    plant: Callable[[], None]
    hunter: Hunter = Hunter.SIMULATION
    where: str = ""  # name of the stateful test, or the test as pytest names it
    missing: str = ""  # what has to come together for it to be caught; empty: it is caught


class Bugs(list[Mutant]):
    """The mutants of one file, each made of the function that plants it; `hunter` has to catch those that name none."""

    def __init__(self, hunter: Hunter = Hunter.SIMULATION) -> None:
        self._hunter = hunter

    def add(
        self, name: str, *, machine: str = "", test: str = "", missing: str = ""
    ) -> Callable[[Callable[[], None]], None]:
        hunter = Hunter.MACHINE if machine else Hunter.TEST if test else self._hunter
        return lambda plant: self.append(Mutant(name, plant, hunter, machine or test, missing))


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of a method, a property or a function of a module.

    It is called with the original one before all other arguments. A function is replaced in every module that has it.
    """

    def plant(new: Callable[..., Any]) -> None:
        original = getattr_static(owner, name)
        _check_parameters(getattr(original, "fget", original), new)
        if isinstance(original, property):
            setattr(owner, name, property(partial(new, original.fget)))
        elif isinstance(owner, ModuleType):
            set_everywhere(owner, name, wraps(original)(partial(new, original)))
        else:
            # A function, not a partial: only that becomes a method of an instance.
            setattr(owner, name, lambda self, *args, **options: new(original, self, *args, **options))

    return plant


def _check_parameters(original: Callable[..., Any], new: Callable[..., Any]) -> None:
    """A bug whose function cannot be called as the original is would only raise, and be caught for that."""
    taken = list(signature(new).parameters.values())[1:]
    if any(one.kind is Parameter.VAR_POSITIONAL for one in taken):
        return
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    expected = [one.name for one in signature(original).parameters.values() if one.kind in positional]
    found = [one.name for one in taken if one.kind in positional]
    if len(found) != len(expected):
        raise TypeError(f"{original.__qualname__} takes {expected}, and the planted one {found}")


def set_everywhere(module: ModuleType, name: str, value: Any) -> None:
    """Change a constant or function of a module, also in the modules that imported it."""
    original = getattr(module, name)
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("flowcatalyst") and vars(other).get(name) is original:
            setattr(other, name, value)
