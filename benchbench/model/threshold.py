"""Thresholds of a check: the fraction by which a case may be slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Rule:
    """Threshold for cases whose id contains `pattern` or matches it (* and ?). An empty suite means all."""

    pattern: str
    value: float  # 0.05 means 5 %
    source: str
    suite: str = ""

    def names(self, suite: str, case: str) -> bool:
        """True if the rule applies to this case."""
        return self.suite in ("", suite) and fnmatchcase(case, f"*{self.pattern}*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A fraction and its source."""

    value: float
    source: str


DEFAULT = Rule("", 0.05, "default")  # sessions of one machine differ by a few per cent


def threshold(suite: str, case: str, rules: Iterable[Rule]) -> Threshold:
    """Threshold of a case: the first matching rule, else the default."""
    rule = next((rule for rule in rules if rule.names(suite, case)), DEFAULT)
    return Threshold(rule.value, rule.source)
