"""A fault at every write of a run, of accepting a baseline, of a plot and of a pytest session.

`python -m studies.injected_faults` goes through each of them as tests/test_fault_injection.py does, and
prints how many faults there were and how they ended: told with exit 6, survived, or the process ended there.
What was promised by then could be read in every one of them, else the test fails.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests import test_fault_injection as tests
from tests.injection import ENDED, Outcome

ENDINGS = {0: "survived", 6: "told", ENDED: "ended"}
WORK = {
    "run": tests.faults_of_a_run,
    "baseline set": tests.faults_of_a_baseline,
    "baseline set --replace": tests.faults_of_a_replaced_baseline,
    "plot": tests.faults_of_a_plot,
    "pytest session": tests.faults_of_a_session,
}


def summary(outcomes: list[Outcome]) -> str:
    """`44 faults: 21 told, 1 survived, 22 ended`."""
    counts = Counter(ENDINGS[each.code] for each in outcomes)
    return f"{len(outcomes)} faults: {', '.join(f'{count} {name}' for name, count in counts.items())}"


def main() -> None:
    """A line per kind of work, or per kind that is named."""
    for name in sys.argv[1:] or WORK:
        faults = WORK[name]
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:<24}{summary(faults(Path(folder)))}")


if __name__ == "__main__":
    main()
