"""How much slower a case may become, and who said so: the first rule that names the case. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern`: part of a case's id, or one with * and ?. `suite`: of its cases only; empty: of all."""

    pattern: str
    value: float  # 0.05: 5%
    source: str
    suite: str = ""

    def names(self, suite: str, case: str) -> bool:
        """Whether it is about this case."""
        return self.suite in ("", suite) and fnmatchcase(case, f"*{self.pattern}*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A fraction, and where it comes from."""

    value: float
    source: str


DEFAULT = Rule("", 0.05, "default")  # sessions of one machine differ by some per cent


def threshold(suite: str, case: str, rules: Iterable[Rule]) -> Threshold:
    """Of a case: the first of `rules` that names it, else the default."""
    found = next((rule for rule in rules if rule.names(suite, case)), DEFAULT)
    return Threshold(found.value, found.source)


def rules(table: Mapping[str, str | float], source: str, suite: str = "") -> list[Rule]:
    """The rules of a `[thresholds]` table. Raises UsageError for a value that is no fraction."""
    return [
        Rule(pattern, fraction(str(value)), f"{source} {pattern!r}", suite)
        for pattern, value in table.items()
    ]


def fraction(text: str) -> float:
    """`5%` and `0.05` → 0.05. Raises UsageError."""
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found < 1:
        raise UsageError(f"{text!r} is not between 0% and 100%.", "Write three per cent as 3% or 0.03.")
    return found
