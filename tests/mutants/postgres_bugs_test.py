"""Planted bugs in the queue on PostgreSQL: its suites are only as good as what they catch. Without a bug all of those
tests are in the same run as this one."""

import pytest

from tests.mutants.catalogue import OF_POSTGRES
from tests.mutants.hunt import Catch, hunt
from tests.mutants.mutant import Mutant
from tests.servers import ServerMissingError, program, skip_or_fail

Hunts = dict[str, Catch]


@pytest.fixture(scope="module")
def hunts() -> Hunts:
    try:
        program("postgres")
    except ServerMissingError as error:
        skip_or_fail(error)
    return {catch.mutant.name: catch for catch in hunt(OF_POSTGRES)}


@pytest.mark.parametrize("mutant", OF_POSTGRES, ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_the_queue_on_postgres_is_caught(hunts: Hunts, mutant: Mutant) -> None:
    assert hunts[mutant.name].checks
