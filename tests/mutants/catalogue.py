"""All planted bugs."""

from typing import Final

from tests.mutants.bugs_of_groups import GROUP_BUGS
from tests.mutants.bugs_of_ownership import OWNERSHIP_BUGS
from tests.mutants.bugs_of_policy import POLICY_BUGS
from tests.mutants.bugs_of_pools import POOL_BUGS
from tests.mutants.bugs_of_queues import QUEUE_BUGS
from tests.mutants.mutant import Mutant

_ALL: Final = (*GROUP_BUGS, *POOL_BUGS, *POLICY_BUGS, *OWNERSHIP_BUGS, *QUEUE_BUGS)

MUTANTS: Final[tuple[Mutant, ...]] = tuple(mutant for mutant in _ALL if not mutant.missing)
SURVIVORS: Final[tuple[Mutant, ...]] = tuple(mutant for mutant in _ALL if mutant.missing)
