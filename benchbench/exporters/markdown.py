"""A GitHub table to paste. Nothing in a name, a parameter or a message can become markup, link or mention."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from benchbench.documents.run import Report
from benchbench.exporters.base import Exporter

# GitHub links mentions, issues and addresses in the rendered text, where a backslash is gone: a
# zero-width space between is what stops it.
LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=://)|(?<=\bwww\.)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
# Underscores within a word and brackets that no link follows are no markup, and stay readable.
MARKUP = re.compile(r"[\\`*~|$!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|](?=[(\[:])", re.ASCII)
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Markdown(Exporter):
    """Facts about the run, one table, footnotes."""

    extension: ClassVar[str] = "md"

    def export(self, report: Report) -> dict[str, bytes]:
        """One document."""
        parts = [_bullets(report.head), *([_table(report)] if report.groups else []), _bullets(report.foot)]
        return {"report.md": "\n".join(filter(None, parts)).encode()}


def _bullets(lines: Iterable[str]) -> str:
    return "".join(f"- {escaped(line)}\n" for line in lines)


def _table(report: Report) -> str:
    names = [escaped(c.target) + " " + escaped(c.version) for c in report.columns]
    places = [escaped(c.place) for c in report.columns]
    header = ["", *(f"{name}<br>{place}" for name, place in zip(names, places, strict=True))]
    lines = [_row(header), _row(["---"] * len(header))]
    for group in report.groups:
        lines.append(_row([f"**{escaped(group.title)}**", *[""] * len(names)]))
        lines += [_row([line.label, *map(escaped, line.texts)]) for line in group.lines]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """`text`, already made visible, as GitHub-flavoured Markdown that shows it letter by letter.

    For use within a line: what is markup only at the start of one is left alone.
    """
    return LINKED.sub("\u200b", MARKUP.sub(r"\\\g<0>", text)).translate(HTML)
