"""Numbers that the documentation quotes are those of the code or of a study's output."""

import re

import pytest

from benchbench import registry
from benchbench.timing.policy import POLICIES, looks
from benchbench.workloads.base import Workload
from tests.quoted_numbers import DOCS, quoted, value_of
from tests.quoted_tables import QUOTED, replace_table
from tests.test_architecture import ROOT

PAGES = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md"))}
LINES_OF = re.compile(r"<!-- lines of (\S+) -->\n(?:```\n)?(.+?)\n(?:```|\n)", re.DOTALL)


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if any(quoted(text))])
def test_a_quoted_number_agrees_with_the_code(page: str) -> None:
    wrong = [
        f"{expression} is {value_of(expression):g}, and the page says {number:g}"
        for expression, number in quoted(PAGES[page])
        if number != pytest.approx(value_of(expression))
    ]
    assert not wrong, "python -m tests.quoted_numbers updates them"


def test_every_comment_after_a_number_is_checked() -> None:
    for page, text in PAGES.items():
        assert len(list(quoted(text))) == len(re.findall(r"\w<!--", text)), page
    assert len(OF_STUDIES) == sum(text.count("<!-- lines of ") for text in PAGES.values())


OF_STUDIES = [
    (page, study, lines.splitlines())
    for page, text in PAGES.items()
    for study, lines in LINES_OF.findall(text)
]


@pytest.mark.parametrize(("page", "study", "lines"), OF_STUDIES)
def test_quoted_lines_are_printed_by_the_study(page: str, study: str, lines: list[str]) -> None:
    assert len(lines) >= 2, "a table follows the comment"
    assert set(lines) <= {*(ROOT / study).read_text().splitlines()}


@pytest.mark.parametrize(("page", "marker"), QUOTED)
def test_a_quoted_table_agrees_with_the_study(page: str, marker: str) -> None:
    assert replace_table(PAGES[f"{page}.md"], marker, QUOTED[page, marker]()) == PAGES[f"{page}.md"]


def test_the_table_of_presets_is_current() -> None:
    labels = {name: f"`--{name}`" for name in POLICIES} | {"default": "default"}
    for name, preset in labels.items():
        policy = POLICIES[name]
        cells = (
            policy.rounds,
            ", ".join(map(str, looks(policy))),
            policy.cycles,
            f"{100 * policy.precision:g} %",
            f"{policy.max_s:g}",
        )
        assert f"| {preset} | {' | '.join(map(str, cells))} |" in PAGES["measuring.md"]


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


PAGE = (ROOT / "docs/why_slower.md").read_text()
OUTPUT = ROOT / "studies/output"
BACKENDS = ("torch", "tensorflow", "jax", "onnxruntime")
PASSIVE = "[env:OMP_WAIT_POLICY=passive]"


def measured_ms() -> dict[tuple[str, str], float]:
    """(workload, backend) → CPU milliseconds; torch's with threads that wait passively."""
    milliseconds_by_case = {}
    for line in (OUTPUT / "operators.md").read_text().splitlines():
        if case := re.match(r"\| (\w+)\(.*@(\w+):cpu(\S*) \| ([0-9.]+) \|", line):
            work, backend, suffix, milliseconds = case.groups()
            if (backend == "torch") == (suffix == PASSIVE):
                milliseconds_by_case[work, backend] = float(milliseconds)
    return milliseconds_by_case


def documented() -> dict[tuple[str, str], str]:
    """The same figures on the page."""
    rows = re.findall(r"^\| `(\w+)` \| ([0-9].*) \|$", PAGE, re.MULTILINE)
    cells = {
        (work, backend): cell
        for work, row in rows
        for backend, cell in zip(BACKENDS, row.split(" | "), strict=True)
    }
    return {key: cell for key, cell in cells.items() if cell != "–"}


def test_the_table_has_every_measured_case() -> None:
    assert documented().keys() == measured_ms().keys()


@pytest.mark.parametrize("key", documented(), ids="-".join)
def test_figures_of_the_table_match_the_study(key: tuple[str, str]) -> None:
    assert float(documented()[key]) == pytest.approx(measured_ms()[key], rel=0.03)
