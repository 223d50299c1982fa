"""Copy tables from studies/output to docs/: `python -m tests.quoted_tables`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROUNDS_ROWS = (  # noise and rounds of the rows to copy from studies/output/adaptive_rounds.md
    ("1 %", "`--rounds 5`"),
    ("3 %", "`--rounds 5`"),
    ("5 %", "`--rounds 5`"),
    ("t₃ 2 %", "`--rounds 5`"),
    ("skewed processes, scale 2 %", "`--rounds 5`"),
    ("1 %, of 6 cases 3 %", "`--quick`"),
    ("two modes, 0.1 %", "`--quick`"),
)


def lines(study: str) -> list[str]:
    return (ROOT / "studies/output" / study).read_text().splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def adaptive_rounds() -> Iterator[str]:
    """Yield the rows of the study that docs/statistics.md shows."""
    yield "| noise | rounds | any called slower | intervals hold the truth | finds 5 % | 10 % |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    rows = {tuple(row[:2]): row[2:] for row in map(cells, lines("adaptive_rounds.md"))}
    for noise, rounds in ROUNDS_ROWS:
        yield f"| {noise} | {rounds} | {' | '.join(rows[noise, rounds])} |"


def sessions_grid() -> Iterator[str]:
    """Yield the rows for five and ten sessions that differ by 2 % or 5 %, without the column `10 or 12`."""
    yield "| sessions | they differ by | second test | ends with 10 | finds 10 % | 20 % |"
    yield "| ---: | --- | --- | ---: | ---: | ---: |"
    for row in map(cells, lines("sessions.md")):
        if len(row) == 7 and row[0] in ("5", "10") and row[1] in ("2 %", "5 %"):
            yield f"| {' | '.join([*row[:4], *row[5:]])} |"


QUOTED: dict[tuple[str, str], Callable[[], list[str]]] = {  # page, marker
    ("statistics", "grid"): lambda: list(sessions_grid()),
    ("statistics", "rounds"): lambda: list(adaptive_rounds()),
}


def replace_table(text: str, marker: str, table: list[str]) -> str:
    """Replace the table after `<!-- marker -->` in the text of a page."""
    pattern = rf"(<!-- {re.escape(marker)} -->\n)(?:\|.*\n)*"
    assert len(re.findall(pattern, text)) == 1, marker
    return re.sub(pattern, lambda match: match[1] + "".join(f"{line}\n" for line in table), text)


if __name__ == "__main__":
    for (page, marker), table in QUOTED.items():
        path = ROOT / f"docs/{page}.md"
        path.write_text(replace_table(path.read_text(), marker, table()))
