"""The changelog lists every rise of a workload's version."""

import re

from benchbench import registry
from benchbench.workloads.base import Workload
from tests.test_architecture import ROOT


def rises(text: str) -> set[tuple[str, int]]:
    matches = re.findall(r"[Vv]ersion (\d+)\s+of\s+(`\w+`(?:(?:,|\s+and)\s+`\w+`)*)", text)
    return {(name, int(number)) for number, names in matches for name in re.findall(r"`(\w+)`", names)}


def expected_rises(versions: dict[str, int]) -> set[tuple[str, int]]:
    return {(name, number) for name, last in versions.items() for number in range(2, last + 1)}


def version(name: str) -> int:
    return registry.load_class(registry.WORKLOADS, name, Workload).version  # type: ignore[type-abstract]


def test_every_rise_of_a_workloads_version_is_in_the_changelog() -> None:
    shipped = {name: version(name) for name in registry.entry_names(registry.WORKLOADS)}
    text = (ROOT / "CHANGELOG.md").read_text()
    assert rises(text) == expected_rises(shipped)
    assert ("all are version 1" in text) == (not expected_rises(shipped))
