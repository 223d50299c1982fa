"""Numbers that the documentation quotes are those of the code, or of a study's output."""

import re

import pytest

from benchbench.timing.policy import POLICIES, looks
from tests.quoted_numbers import DOCS, quoted, value_of
from tests.quoted_tables import QUOTED, renewed
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
    assert renewed(PAGES[f"{page}.md"], marker, QUOTED[page, marker]()) == PAGES[f"{page}.md"]


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


@pytest.mark.parametrize(
    ("page", "study"), [("devices.md", "collective_bandwidth.md"), ("fleet.md", "fleet_daemons.txt")]
)
def test_a_page_quotes_the_ratios_that_a_study_printed(page: str, study: str) -> None:
    printed = (ROOT / "studies/output" / study).read_text().replace(" to ", " ")
    ratios = re.findall(r"(\d\.\d{3,4}) \[(\d\.\d{3,4}), (\d\.\d{3,4})\]", PAGES[page])
    assert len(ratios) >= 2
    figures = re.findall(r"\d\.\d{3,4}", printed)
    for ratio in ratios:
        assert "".join(ratio) in "".join(figures)
