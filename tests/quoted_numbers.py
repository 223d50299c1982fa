"""Numbers in docs/ that come from the code, each followed by a comment with its Python expression.

Example: `at least 1,000<!-- sampling.OVERHEAD --> times`. The expression may use the modules below, and the
comment must follow its number.

`python -m tests.quoted_numbers` updates the numbers.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from benchbench import profiling
from benchbench.analyse import doubts, metrics, roofline, rows
from benchbench.backends import base
from benchbench.documents import plan, run_plots
from benchbench.judging import change_points, comparison, pairs, ranking, session_cases, sessions
from benchbench.launch import pool
from benchbench.machine import conditions, peaks, sampler
from benchbench.model import measurement
from benchbench.running import heat, measure, schedule
from benchbench.timing import policy, sampling
from benchbench.worker import after_timing, jobs, plausibility, reference, verify
from benchbench.workloads import _amp, steps
from benchbench.workloads._reference import rounding
from benchbench.workloads.operations import convolution, elementwise, recurrent

DOCS = Path(__file__).resolve().parent.parent / "docs"
KNOWN = {
    "brief": policy.POLICIES["brief"],
    "default": policy.POLICIES["default"],
    "quick": policy.POLICIES["quick"],
    **{
        module.__name__.rpartition(".")[2]: module
        for module in (
            *(doubts, metrics, roofline, rows, base, peaks, change_points, comparison, pairs, ranking),
            *(session_cases, sessions, measurement, pool, conditions, sampler, profiling, measure, heat),
            *(schedule, plan, policy, sampling, run_plots, after_timing, plausibility, jobs, reference),
            *(verify, _amp, steps, rounding, convolution, elementwise, recurrent),
        )
    },
}
WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
BY_WORD = {word: float(number) for number, word in enumerate(WORDS)} | {"half": 0.5, "twenty": 20.0}
NUMBER = rf"[0-9](?:[0-9,.]*[0-9])?|\b(?:{'|'.join(BY_WORD)})"
QUOTED = re.compile(rf"(?P<number>{NUMBER})(?P<comment><!-- (?P<expression>[^>]+) -->)")


def value_of(expression: str) -> float:
    return float(eval(expression, {}, dict(KNOWN)))


def quoted(text: str) -> Iterator[tuple[str, float]]:
    """The expressions in a page, each with its number."""
    for match in QUOTED.finditer(text):
        number = match["number"]
        yield match["expression"], BY_WORD.get(number) or float(number.replace(",", ""))


def with_numbers(text: str) -> str:
    """The page with its wrong numbers corrected."""

    def number(match: re.Match[str]) -> str:
        value = value_of(match["expression"])
        ((_, quoted_value),) = quoted(match[0])
        if abs(quoted_value - value) <= 1e-6 * abs(value):
            return match[0]
        words = {number: word for word, number in BY_WORD.items()}
        as_word = words.get(value) if match["number"] in BY_WORD else None
        return (as_word or f"{value:,.12g}") + match["comment"]

    return QUOTED.sub(number, text)


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(with_numbers(page.read_text()))
