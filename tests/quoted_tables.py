"""Tables in docs/ that studies printed; `python -m tests.quoted_tables` updates them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = (  # noise, rounds: rows of studies/output/adaptive_rounds.md
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
    """Selected rows of the study."""
    yield "| noise | rounds | any called slower | intervals hold the truth | finds 5 % | 10 % |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    rows = {tuple(row[:2]): row[2:] for row in map(cells, lines("adaptive_rounds.md"))}
    for noise, rounds in SHOWN:
        yield f"| {noise} | {rounds} | {' | '.join(rows[noise, rounds])} |"


def sessions_grid() -> Iterator[str]:
    """Figures by the number of sessions and their differences, for five and ten sessions."""
    yield "| sessions | they differ by | second test | ends with 10 | finds 10 % | 20 % |"
    yield "| ---: | --- | --- | ---: | ---: | ---: |"
    for row in map(cells, lines("sessions.md")):
        if len(row) == 7 and row[0] in ("5", "10") and row[1] in ("2 %", "5 %"):
            yield f"| {' | '.join([*row[:4], *row[5:]])} |"


QUOTED: dict[tuple[str, str], Callable[[], list[str]]] = {  # page, marker
    ("statistics", "grid"): lambda: list(sessions_grid()),
    ("statistics", "rounds"): lambda: list(adaptive_rounds()),
}


def renewed(text: str, marker: str, table: list[str]) -> str:
    """A page with the table after `<!-- marker -->` replaced."""
    pattern = rf"(<!-- {re.escape(marker)} -->\n)(?:\|.*\n)*"
    assert len(re.findall(pattern, text)) == 1, marker
    return re.sub(pattern, lambda match: match[1] + "".join(f"{line}\n" for line in table), text)


if __name__ == "__main__":
    for (page, marker), table in QUOTED.items():
        path = ROOT / f"docs/{page}.md"
        path.write_text(renewed(path.read_text(), marker, table()))
