"""What sampling a process for less time costs: the spread between processes, of stored runs cut short.

`python -m studies.shorter_samples RUN…` cuts the timed blocks of each process after so many seconds.
For each length: the standard deviation of the logarithms of the processes' medians, its median and mean over
cases, and how far the mean of these medians is from that of the whole samples, in half of the cases and in
nine of ten.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median, quantiles, stdev

from benchbench.model.measurement import Measurement
from benchbench.store import runs

LENGTHS_S = (0.4, 0.75, 1.5, 2.0, math.inf)
LEAST = 3  # blocks, and processes of a case


def processes(folder: Path) -> Iterator[list[tuple[float, ...]]]:
    """The timed blocks of each process of each case that has enough."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for record in runs.read_run(folder).records:
        if isinstance(record.outcome, Measurement):
            found[record.case.id].append(record.outcome.block_s)
    yield from (blocks for blocks in found.values() if len(blocks) >= LEAST)


def cut(blocks: Sequence[float], length_s: float) -> list[float]:
    """The first blocks, until that many seconds are over."""
    kept: list[float] = []
    for block in blocks:
        if sum(kept) >= length_s and len(kept) >= LEAST:
            break
        kept.append(block)
    return kept


def line(cases: Sequence[Sequence[Sequence[float]]], length_s: float) -> str:
    """A row of the table."""
    short = [[median(cut(blocks, length_s)) for blocks in case] for case in cases]
    spreads = [stdev(map(math.log, medians)) for medians in short]
    whole = [mean(map(median, case)) for case in cases]
    off = [abs(mean(own) / all_of_it - 1) for own, all_of_it in zip(short, whole, strict=True)]
    shown = (median(spreads), mean(spreads), median(off), quantiles(off, n=10)[-1])
    return f"| {length_s:g} s | {' | '.join(f'{100 * each:.1f} %' for each in shown)} |"


def main() -> None:
    """Print the table."""
    cases = [case for folder in sys.argv[1:] for case in processes(Path(folder))]
    print(f"{len(cases)} cases\n")
    print("| sampled | spread, median | spread, mean | off, median | off, 90 % |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for length_s in LENGTHS_S:
        print(line(cases, length_s))


if __name__ == "__main__":
    main()
