"""Numbers in docs/ that are the code's, each followed by a comment that says which.

`at least 1,000<!-- sampling.OVERHEAD --> times`: a Python expression over the modules below. A sentence may
be written anew as long as the comment stays behind its number.

python -m tests.quoted_numbers      writes the numbers as the code has them
"""

import re
from collections.abc import Iterator
from pathlib import Path

from benchbench.analyse import drift, metrics, roofline, rows
from benchbench.backends import base
from benchbench.documents import run_sizes
from benchbench.judging import change_points, comparison, pairs, ranking, session_cases, sessions
from benchbench.launch import pool
from benchbench.machine import conditions, peaks, sampler
from benchbench.model import measurement
from benchbench.profiling import tables
from benchbench.running import measure, recorder, schedule, time_left
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
            *(
                drift,
                metrics,
                roofline,
                rows,
                base,
                peaks,
                change_points,
                comparison,
                pairs,
                ranking,
                session_cases,
                sessions,
                measurement,
            ),
            *(
                pool,
                conditions,
                sampler,
                tables,
                measure,
                recorder,
                schedule,
                time_left,
                policy,
                sampling,
                run_sizes,
                after_timing,
                plausibility,
                jobs,
                reference,
                verify,
            ),
            *(_amp, steps, rounding, convolution, elementwise, recurrent),
        )
    },
}
WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
BY_WORD = {word: float(number) for number, word in enumerate(WORDS)} | {"half": 0.5, "twenty": 20.0}
NUMBER = rf"[0-9](?:[0-9,.]*[0-9])?|\b(?:{'|'.join(BY_WORD)})"
QUOTED = re.compile(rf"(?P<number>{NUMBER})(?P<comment><!-- (?P<expression>[^>]+) -->)")


def value_of(expression: str) -> float:
    """The value of an expression over the modules above."""
    return float(eval(expression, {}, dict(KNOWN)))


def quoted(text: str) -> Iterator[tuple[str, float]]:
    """The expressions in a page, each with the number before it."""
    for found in QUOTED.finditer(text):
        number = found["number"]
        yield found["expression"], BY_WORD.get(number) or float(number.replace(",", ""))


def with_numbers(text: str) -> str:
    """The page with the numbers of the code; one that is right stays as it is written."""

    def number(found: re.Match[str]) -> str:
        value = value_of(found["expression"])
        ((_, written),) = quoted(found[0])
        if abs(written - value) <= 1e-6 * abs(value):
            return found[0]
        words = {number: word for word, number in BY_WORD.items()}
        shown = words.get(value) if found["number"] in BY_WORD else None
        return (shown or f"{value:,.12g}") + found["comment"]

    return QUOTED.sub(number, text)


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(with_numbers(page.read_text()))
