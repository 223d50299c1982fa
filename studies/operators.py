"""CPU time of steps and their largest operators in profiled runs.

    python -m studies.operators RESULTS …

Reads the latest run in each results folder, which must be measured with `accelbench run --profile`. Prints a
row for each case: the CPU milliseconds of a timed step over all threads, and the operators with at least 3 %
of it. studies/output/operators.md has two runs of the suite `quick`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchbench.model.measurement import Measurement
from benchbench.model.profile import Profile
from benchbench.store import artifacts, runs, selectors

LEAST = 0.03


def rows(folder: Path) -> Iterator[str]:
    """Yield a row for each case of a run."""
    profiles = {
        profile_record.case.id: profile_record.outcome
        for profile_record in artifacts.read_profiles(folder)[0]
    }
    for record in sorted(runs.read_run(folder).records, key=lambda record: record.case.id):
        outcome = record.outcome
        if isinstance(outcome, Measurement) and outcome.window:
            steps = outcome.iterations * len(outcome.block_s)
            profile = profiles.get(record.case.id)
            shares = ", ".join(operators(profile)) if isinstance(profile, Profile) else ""
            yield f"| {record.case.id} | {1e3 * outcome.window.cpu_s / steps:.3g} | {shares} |"


def operators(profile: Profile) -> Iterator[str]:
    """Yield the shares of operators such as `aten::mm 53 %`, the largest first."""
    times = {operator.name: operator.host_self_s for operator in profile.operators}
    for name, time in sorted(times.items(), key=lambda item: -item[1]):
        if time >= LEAST * sum(times.values()):
            yield f"{name} {100 * time / sum(times.values()):.0f} %"


def main() -> None:
    """Print the rows of each run."""
    print("| case | CPU ms | operators |\n| --- | ---: | --- |")
    for name in sys.argv[1:]:
        print("\n".join(rows(selectors.find_run(Path(name), "latest"))))


if __name__ == "__main__":
    main()
