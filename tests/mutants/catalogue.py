"""All planted bugs."""

from typing import Final

from tests.mutants import (
    bugs_of_acts,
    bugs_of_delivery,
    bugs_of_endpoints,
    bugs_of_events,
    bugs_of_groups,
    bugs_of_job_actions,
    bugs_of_jobs,
    bugs_of_ownership,
    bugs_of_pools,
    bugs_of_postgres,
    bugs_of_postgres_jobs,
    bugs_of_processes,
    bugs_of_queues,
    bugs_of_recalls,
)
from tests.mutants.mutant import Mutant

_ALL: Final = (
    *bugs_of_groups.BUGS,
    *bugs_of_pools.BUGS,
    *bugs_of_acts.BUGS,
    *bugs_of_endpoints.BUGS,
    *bugs_of_ownership.BUGS,
    *bugs_of_queues.BUGS,
    *bugs_of_delivery.BUGS,
    *bugs_of_processes.BUGS,
    *bugs_of_processes.OF_JOBS,
    *bugs_of_jobs.BUGS,
    *bugs_of_job_actions.BUGS,
    *bugs_of_recalls.BUGS,
    *bugs_of_events.BUGS,
)

OF_POSTGRES: Final[tuple[Mutant, ...]] = (
    *bugs_of_postgres.BUGS,
    *bugs_of_postgres_jobs.BUGS,
)  # hunted with tests of brokers

MUTANTS: Final[tuple[Mutant, ...]] = tuple(mutant for mutant in _ALL if not mutant.missing)
SURVIVORS: Final[tuple[Mutant, ...]] = tuple(mutant for mutant in _ALL if mutant.missing)
