"""The report of the hunts, as markdown.

python -m tests.mutants                     bug, what caught it, and how many histories that took
python -m tests.mutants --matrix            for each rule the bugs that only this rule catches
python -m tests.mutants --keep              look where each was caught last time, and write down where it is now
python -m tests.mutants --survivors         the bugs that are known to escape
python -m tests.mutants --only kept --tell  the bugs with a word in their name, and how they went wrong
"""

import argparse
from collections.abc import Sequence

from flowcatalyst.simulation.checker import RULES
from flowcatalyst.simulation.jobs.checker import ALL_RULES as JOB_RULES
from tests.mutants.catalogue import MUTANTS, OF_POSTGRES, SURVIVORS
from tests.mutants.hunt import SIMULATED, Catch, hunt, keep_histories
from tests.mutants.mutant import Hunter

MATRIX_SEEDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Hunt planted bugs.")
    parser.add_argument("--matrix", action="store_true", help="play all histories and show what each rule is for")
    parser.add_argument("--seeds", type=int, default=0, help="how many histories at most")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write down where each was caught, for the tests",
    )
    parser.add_argument("--survivors", action="store_true", help="hunt those that are known to escape")
    parser.add_argument("--only", default="", help="a part of the names of bugs")
    parser.add_argument("--tell", action="store_true", help="show the first thing that was wrong")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in (SURVIVORS if options.survivors else (*MUTANTS, *OF_POSTGRES))
        if options.only in mutant.name
    ]
    most = options.seeds or (MATRIX_SEEDS if options.matrix else None)
    catches = hunt(mutants, most, to_the_end=options.matrix, kept=options.keep)
    (_print_matrix if options.matrix else _print_report)(catches)
    if options.keep and not options.matrix:
        keep_histories(catches)
    if options.tell:
        _tell(catches)


def _print_report(catches: Sequence[Catch]) -> None:
    print("| bug | caught by | first history | histories needed |\n|---|---|---|---|")
    for catch in catches:
        caught_by = ", ".join(catch.checks) or f"**nothing**: {catch.mutant.missing}"
        history = catch.first_history if catch.mutant.hunter in SIMULATED else ""
        print(f"| {catch.mutant.name} | {caught_by} | {history} | {catch.histories_needed or ''} |")


def _print_matrix(catches: Sequence[Catch]) -> None:
    print("| bug | caught by (histories) |\n|---|---|")
    for catch in catches:
        counts = {check: sum(check in finding.checks for finding in catch.findings) for check in catch.checks}
        print(
            f"| {catch.mutant.name} | {', '.join(f'{check} ({n})' for check, n in counts.items()) or '**nothing**'} |"
        )
    print("\n| rule | bugs that only this rule catches |\n|---|---|")
    of_jobs = (Hunter.JOBS, Hunter.EVENTS)
    for hunters, rule in [*(((Hunter.SIMULATION,), rule) for rule in RULES), *((of_jobs, rule) for rule in JOB_RULES)]:
        alone = [catch.mutant.name for catch in catches if catch.mutant.hunter in hunters and catch.checks == [rule]]
        print(f"| {rule} | {'; '.join(alone) or '**none**'} |")


def _tell(catches: Sequence[Catch]) -> None:
    for catch in catches:
        print(f"\n{catch.mutant.name}")
        for finding in catch.findings[:1]:
            for check, text in finding.checks.items():
                print(f"  {finding.history} {check}: {text}")


if __name__ == "__main__":
    main()
