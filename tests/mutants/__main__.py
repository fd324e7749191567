"""The report of the hunts, as markdown.

python -m tests.mutants                     bug, what caught it, and how many histories that took
python -m tests.mutants --matrix            for each rule the bugs that only this rule catches
python -m tests.mutants --keep              and write down where each was caught: the tests look there first
python -m tests.mutants --survivors         the bugs that are known to escape
python -m tests.mutants --only kept --tell  the bugs with a word in their name, and how they went wrong
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.catalogue import MUTANTS, SURVIVORS
from tests.mutants.hunt import HISTORIES, Catch, hunt, keep_histories
from tests.mutants.mutant import Hunter, Mutant

MATRIX_SEEDS = 200


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Hunt planted bugs.")
    parser.add_argument("--matrix", action="store_true", help="play all histories and show what each rule is for")
    parser.add_argument("--seeds", type=int, default=MATRIX_SEEDS, help="with --matrix: of each kind of queue")
    parser.add_argument("--keep", action="store_true", help="write down where each was caught, for the tests")
    parser.add_argument("--survivors", action="store_true", help="hunt those that are known to escape")
    parser.add_argument("--only", default="", help="a part of the names of bugs")
    parser.add_argument("--tell", action="store_true", help="show the first thing that was wrong")
    options = parser.parse_args()
    mutants = [mutant for mutant in (SURVIVORS if options.survivors else MUTANTS) if options.only in mutant.name]
    with ThreadPoolExecutor(os.cpu_count()) as hunters:
        if options.matrix:
            histories = HISTORIES[: 2 * options.seeds]
            catches = list(hunters.map(lambda mutant: hunt(mutant, histories, to_the_end=True), mutants))
            _print_matrix(catches)
        else:
            catches = list(hunters.map(hunt, mutants))
            _print_report(catches)
            if options.keep:
                keep_histories(catches)
    if options.tell:
        _tell(catches)


def _print_report(catches: Sequence[Catch]) -> None:
    print("| bug | caught by | first history | histories needed |\n|---|---|---|---|")
    for catch in catches:
        caught_by = ", ".join(catch.checks) or f"**nothing**: {catch.mutant.missing if catch.mutant else ''}"
        print(f"| {_name(catch.mutant)} | {caught_by} | {catch.first_history} | {catch.histories_needed or ''} |")


def _print_matrix(catches: Sequence[Catch]) -> None:
    from flowcatalyst.simulation.checker import RULES

    print("| bug | caught by (histories) |\n|---|---|")
    for catch in catches:
        counts = {check: sum(check in finding.checks for finding in catch.findings) for check in catch.checks}
        print(
            f"| {_name(catch.mutant)} | {', '.join(f'{check} ({n})' for check, n in counts.items()) or '**nothing**'} |"
        )
    print("\n| rule | bugs that only this rule catches |\n|---|---|")
    simulated = [catch for catch in catches if catch.mutant and catch.mutant.hunter is Hunter.SIMULATION]
    for rule in RULES:
        alone = [_name(catch.mutant) for catch in simulated if catch.checks == [rule]]
        print(f"| {rule} | {'; '.join(alone) or '**none**'} |")


def _tell(catches: Sequence[Catch]) -> None:
    for catch in catches:
        print(f"\n{_name(catch.mutant)}")
        for finding in catch.findings[:1]:
            for check, text in finding.checks.items():
                print(f"  {finding.history} {check}: {text}")


def _name(mutant: Mutant | None) -> str:
    return mutant.name if mutant is not None else "no bug"


if __name__ == "__main__":
    main()
