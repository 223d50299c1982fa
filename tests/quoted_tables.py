"""Tables of the documentation that studies printed: `python -m tests.quoted_tables` renews them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHOWN = (  # noise, rounds: rows of studies/output/adaptive_rounds.md
    ("1 %", "`--rounds 5`"),
    ("1 %", "`--budget`"),
    ("3 %", "`--rounds 5`"),
    ("3 %", "`--budget`"),
    ("5 %", "`--rounds 5`"),
    ("5 %", "`--budget`"),
    ("t₃ 2 %", "`--rounds 5`"),
    ("log-normal about 1.2 %", "`--rounds 5`"),
    ("skewed processes, scale 2 %", "`--rounds 5`"),
    ("1 %, of 6 cases 3 %", "`--quick`"),
    ("two modes, 0.1 %", "`--quick`"),
)


def lines(study: str) -> list[str]:
    return (ROOT / "studies/output" / study).read_text().splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def adaptive_rounds() -> Iterator[str]:
    """The shared variance's figures, and in brackets those of each case's own."""
    yield "| noise | rounds | any called slower | intervals hold the truth | finds 5 % | 10 % |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    found = {tuple(row[:3]): row[3:] for row in map(cells, lines("adaptive_rounds.md"))}
    for noise, rounds in SHOWN:
        both = both_variances(*(found[noise, rounds, each] for each in ("shared", "own")))
        yield f"| {noise} | {rounds} | {both} |"


def both_variances(shared: list[str], own: list[str]) -> str:
    """`4.0 (1.0) %`, cell by cell."""
    pairs = zip(shared, own, strict=True)
    return " | ".join(f"{one.removesuffix(' %')} ({other.removesuffix(' %')}) %" for one, other in pairs)


def sessions_grid() -> Iterator[str]:
    """By how many sessions there are and how they differ, but what is provisional at most."""
    yield "| sessions | they differ by | second test | ends with 10 | finds 10 % | 20 % |"
    yield "| ---: | --- | --- | ---: | ---: | ---: |"
    grid = [row for row in map(cells, lines("sessions.md")) if len(row) == 8]
    found = {tuple(row[:4]): [row[4], *row[6:]] for row in grid}
    for count, differ, second in dict.fromkeys(tuple(row[:3]) for row in grid if row[3] == "shared"):
        if int(count) >= 5 or second != "against the sessions":
            both = both_variances(*(found[count, differ, second, each] for each in ("shared", "own")))
            yield f"| {count} | {differ} | {second} | {both} |"


def sessions_otherwise() -> Iterator[str]:
    """Other kinds of sessions, where the variance is shared."""
    yield "| sessions | they differ by | ends with 10 | 10 or 12 | finds 10 % | 20 % | or reports 20 % |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for row in map(cells, lines("sessions.md")):
        if len(row) == 10 and row[3] == "shared" and row[0] != "1":
            yield f"| {' | '.join([*row[:2], *row[4:8], row[9]])} |"


def sessions_unchanged() -> Iterator[str]:
    """More suites, none of them slower."""
    yield "| sessions | they differ by | ends with 10 | 10 or 12 |"
    yield "| ---: | --- | ---: | ---: |"
    rows = [row for row in map(cells, lines("sessions.md")) if len(row) == 5]
    found = {tuple(row[:3]): row[3:] for row in rows}
    for count, differ in dict.fromkeys(tuple(row[:2]) for row in rows if row[2] == "shared"):
        both = both_variances(*(found[count, differ, each] for each in ("shared", "own")))
        yield f"| {count} | {differ} | {both} |"


def wrong_engines() -> Iterator[str]:
    """By who judges them: how many wrong engines are told, and how many right ones taken for wrong."""
    yield "| judged by | wrong engines found | correct ones called wrong |"
    yield "| --- | ---: | ---: |"
    header, _, *rows = map(cells, lines("wrong_engines.md"))
    for column, judge in enumerate(header[2:], 2):
        share = []
        for right in (False, True):
            answers = [row[column] for row in rows if (row[1] == "right") is right]
            told = sum(not answer.endswith(("success", "same", "ok")) for answer in answers)
            share.append(f"{told} of {len(answers)}")
        yield f"| {judge.removesuffix(', error/allowed')} | {' | '.join(share)} |"


QUOTED: dict[tuple[str, str], Callable[[], list[str]]] = {  # page, marker
    ("checking", "grid"): lambda: list(sessions_grid()),
    ("checking", "otherwise"): lambda: list(sessions_otherwise()),
    ("checking", "unchanged"): lambda: list(sessions_unchanged()),
    ("comparing", "rounds"): lambda: list(adaptive_rounds()),
    ("own_models", "wrong engines"): lambda: list(wrong_engines()),
}


def renewed(text: str, marker: str, table: list[str]) -> str:
    """A page with the table that follows `<!-- marker -->`."""
    pattern = rf"(<!-- {re.escape(marker)} -->\n)(?:\|.*\n)*"
    assert len(re.findall(pattern, text)) == 1, marker
    return re.sub(pattern, lambda found: found[1] + "".join(f"{line}\n" for line in table), text)


if __name__ == "__main__":
    for (page, marker), made in QUOTED.items():
        path = ROOT / f"docs/{page}.md"
        path.write_text(renewed(path.read_text(), marker, made()))
