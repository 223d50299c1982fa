"""Error rates and power of the rules of different tools, on the same simulated measurements.

    python -m studies.rules [TRIALS]

Prints the share of false alarms for one case and for suites of 30, and the share of slowdowns that each rule
finds. A side has 5 processes of 20 blocks with AR(1) noise, φ = 0.5; for `criterion`, it has one process of
100 blocks. The rules of other tools follow their documentation. Each rule returns the one-sided p of a slower
second side.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
from scipy import stats

from benchbench.judging.comparison import ALPHA, THRESHOLD
from benchbench.stats import Difference, holm, paired, welch
from tests.simulator import Array, blocks

FAMILY, SHIFTS = 30, (1.0, 1.02, 1.05, 1.1)
NOISE = {
    "log-normal, 1 % between processes, 5 % within": {"between": 0.01, "within": 0.05, "heavy": False},
    "log-normal, 2 % between, 5 % within": {"between": 0.02, "within": 0.05, "heavy": False},
    "t₃ at both levels, 2 % between, 5 % within": {"between": 0.02, "within": 0.05, "heavy": True},
}


def logs(side: Array) -> Array:
    return np.asarray(np.log(np.median(side, axis=-1)))


def above_threshold(differences: list[Difference]) -> Array:
    """Return one-sided p values, with 1 for estimates below the threshold."""
    return np.array(
        [
            difference.p_either() / 2 if difference.mid >= math.log1p(THRESHOLD) else 1.0
            for difference in differences
        ]
    )


def welch_of_medians(a: Array, b: Array) -> Array:
    """Return p of Welch's t on log medians, or 1 below the threshold."""
    differences = [welch(x.tolist(), y.tolist()) for x, y in zip(logs(a), logs(b), strict=True)]
    return above_threshold(differences)


def paired_medians(a: Array, b: Array) -> Array:
    """Return p of the paired t on log medians, or 1 below the threshold."""
    differences = [paired(list(zip(x, y, strict=True))) for x, y in zip(logs(a), logs(b), strict=True)]
    return above_threshold(differences)


def mann_whitney(a: Array, b: Array) -> Array:
    """Return p of the U test on pooled blocks."""
    x, y = pooled(a), pooled(b)
    p = stats.mannwhitneyu(y, x, axis=1, alternative="two-sided").pvalue
    return np.where(np.median(y, axis=1) > np.median(x, axis=1), p / 2, 1.0)


def pyperf(a: Array, b: Array) -> Array:
    """Return p of Student's t on pooled blocks."""
    x, y = pooled(a), pooled(b)
    p = stats.ttest_ind(y, x, axis=1).pvalue
    return np.where(y.mean(axis=1) > x.mean(axis=1), p / 2, 1.0)


def criterion(a: Array, b: Array) -> Array:
    """Return p if the bootstrap interval of the change of the mean is above 1 %, else 1."""
    source, x, y = np.random.default_rng(824), pooled(a), pooled(b)
    low = np.empty(len(x))
    for index, (old_blocks, new_blocks) in enumerate(zip(x, y, strict=True)):
        draw = source.integers(0, len(old_blocks), (2, 400, len(old_blocks)))
        change = new_blocks[draw[1]].mean(axis=1) / old_blocks[draw[0]].mean(axis=1) - 1
        low[index] = np.quantile(change, 0.025)
    p = stats.ttest_ind(y, x, axis=1, equal_var=False).pvalue
    return np.where(low > 0.01, p / 2, 1.0)


def plain(a: Array, b: Array) -> Array:
    """Return 0 if the mean is more than 5 % higher, else 1."""
    return np.where(pooled(b).mean(axis=1) > 1.05 * pooled(a).mean(axis=1), 0.0, 1.0)


def pooled(side: Array) -> Array:
    return np.asarray(side.reshape(len(side), -1))


COMPARED: dict[str, tuple[Callable[[Array, Array], Array], int, int]] = {
    "Mann–Whitney U, pooled blocks": (mann_whitney, 5, 20),
    "pyperf: Student's t, pooled blocks": (pyperf, 5, 20),
    "criterion: bootstrap, one process": (criterion, 1, 100),
    "mean more than 5 % up": (plain, 5, 20),
    "ours: Welch on log medians, > 3 %": (welch_of_medians, 5, 20),
    "ours in turn: t of pairs, > 3 %": (paired_medians, 5, 20),
}


def print_table(trials: int) -> None:
    """Print false alarms of one case and of a suite, and power."""
    print("| noise | rule | false alarms | any of 30 | finds 2 % | 5 % | 10 % |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, noise in NOISE.items():
        for rule, (judge, processes, count) in COMPARED.items():
            shares, suite = [], 0.0
            for shift in SHIFTS:
                source = np.random.default_rng([processes, count, trials])
                shape = (2, trials, processes)
                a, b = blocks(source, shape, count=count, **noise)  # type: ignore[arg-type]
                p = judge(a, shift * b)
                shares.append(float(np.mean(p < ALPHA / 2)))
                if shift == 1:
                    suite = any_alarm(p, adjust=rule.startswith("ours"))
            print(f"| {name} | {rule} | {cells(shares[0], suite, *shares[1:])} |")


def any_alarm(p: Array, *, adjust: bool) -> float:
    """Return the share of suites in which some case is called slower. `adjust`: by Holm's method."""
    suites = p[: len(p) // FAMILY * FAMILY].reshape(-1, FAMILY)
    alarms = [min(holm(row.tolist())) < ALPHA if adjust else row.min() < ALPHA / 2 for row in suites]
    return float(np.mean(alarms))


def cells(*shares: float) -> str:
    return " | ".join(f"{100 * share:.1f} %" for share in shares)


if __name__ == "__main__":
    print_table(int(sys.argv[1]) if len(sys.argv) > 1 else 6000)
