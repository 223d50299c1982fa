"""CPU time of a step and its operators, of profiled runs: `python -m studies.operators RESULTS …`.

Of the latest run in each results folder, made with `accelbench run --profile`: a row for each case with the
CPU milliseconds of all threads for a timed step, and the operators that have at least 3 % of it.
`output/operators.md` is of two runs of the suite `quick`.
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
    """Of one run."""
    profiles = {each.case.id: each.outcome for each in artifacts.read_profiles(folder)[0]}
    for record in sorted(runs.read_run(folder).records, key=lambda record: record.case.id):
        found = record.outcome
        if isinstance(found, Measurement) and found.window:
            steps = found.iterations * len(found.block_s)
            profile = profiles.get(record.case.id)
            shares = ", ".join(operators(profile)) if isinstance(profile, Profile) else ""
            yield f"| {record.case.id} | {1e3 * found.window.cpu_s / steps:.3g} | {shares} |"


def operators(profile: Profile) -> Iterator[str]:
    """`aten::mm 53 %`, the largest first."""
    times = {each.name: each.host_self_s for each in profile.operators}
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
