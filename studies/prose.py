"""How plainly the code is written: rates of sentences that are hard to read, and of names that name nothing.

    python -m studies.prose FOLDER… [--show N]

Sentences are those of docstrings, comments and Markdown pages; names are those that are assigned, passed as
arguments or defined. Rates are per 1,000, so that code bases of different sizes can be compared.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = {
    "clause as subject": re.compile(
        r"^(What|Who|Whoever|Whatever|That which|Those that|How much|How many"
        r"|Of (a|an|the|what|each|several|those))\b"
    ),
    "speaking things": re.compile(
        r"\b(is|are|was|were|be|been) (told|said|asked|spoken|named so)\b"
        r"|\b(tells|says|knows of|speaks|stands|lies|goes on|holds that|is nothing to|lets itself)\b",
        re.IGNORECASE,
    ),
    "floating pronoun": re.compile(
        r"\b(those|these|that|this|its|their) of (its|their|the|a|what|those)\b"
        r"|\b(one|ones) (that|which|whose)\b|\bas (it|they) (is|are|was|were)\b",
        re.IGNORECASE,
    ),
    "nested what/where": re.compile(
        r"\b(what|where|who|which|whose|that)\b[^.,;:]{1,40}\b(what|where|who|which|whose)\b", re.IGNORECASE
    ),
    "long sentence (> 30 words)": re.compile(r"^(\S+\s+){30,}"),
}
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*])|\n\s*\n|\n\s*[-*|]\s+")
NO_PROSE = re.compile(r"```.*?```|<!--.*?-->|`[^`]*`", re.DOTALL)
DIRECTIVES = ("#!", "# type", "# noqa", "# ruff")
LEAST_WORDS = 3
VAGUE = frozenset(
    [
        "told",
        "given",
        "made",
        "taken",
        "asked",
        "shown",
        "known",
        "found",
        "kept",
        "held",
        "left",
        "named",
        "wanted",
        "drawn",
        "said",
        "meant",
        "done",
        "seen",
        "put",
        "apart",
        "alone",
        "own",
        "each",
        "one",
        "other",
        "others",
        "both",
        "same",
        "rest",
        "whole",
        "which",
        "what",
        "who",
        "goes_on",
        "begun",
        "gone",
        "spoken",
        "written",
        "answered",
        "measured",
        "offered",
        "missing",
        "spared",
        "lacking",
        "allowed",
        "needed",
        "chosen",
        "counted",
        "joined",
        "moved",
        "stored",
        "read",
        "sent",
        "where",
        "whose",
        "stands",
        "tells",
        "says",
        "besides",
        "beside",
        "ways",
        "places",
    ]
)


@dataclass(frozen=True, slots=True)
class Prose:
    """Sentences of some folders. `hard`: the sentences of each kind, with their file."""

    sentences: int
    hard: dict[str, list[str]]
    any_kind: int

    @property
    def rate(self) -> float:
        """Hard sentences per 1,000."""
        return 1000 * self.any_kind / max(self.sentences, 1)


def prose_of(folders: Sequence[Path]) -> Prose:
    """Count the sentences of folders or single files."""
    hard: dict[str, list[str]] = {kind: [] for kind in KINDS}
    count, any_kind = 0, 0
    for path, sentence in _sentences(folders):
        kinds = [kind for kind, pattern in KINDS.items() if pattern.search(sentence)]
        count, any_kind = count + 1, any_kind + bool(kinds)
        for kind in kinds:
            hard[kind].append(f"{path}: {sentence[:160]}")
    return Prose(count, hard, any_kind)


def vague_names(folder: Path) -> tuple[int, Counter[str]]:
    """Number of names in the Python files of a folder, and the vague ones with their frequency."""
    names = [
        name.strip("_")
        for path in folder.rglob("*.py")
        for name in _names(ast.parse(path.read_text(encoding="utf-8")))
        if name not in ("self", "cls", "_")
    ]
    return len(names), Counter(name for name in names if name in VAGUE)


def _sentences(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if path.suffix not in (".py", ".md"):
                continue
            for chunk in _python(path) if path.suffix == ".py" else _markdown(path):
                for sentence in SENTENCE_END.split(chunk):
                    words = sentence.split()
                    if len(words) >= LEAST_WORDS:
                        yield path, " ".join(words)


def _python(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and len(token.string) > 12:
            yield "" if token.string.startswith(DIRECTIVES) else token.string.lstrip("# ")


def _markdown(path: Path) -> Iterator[str]:
    text = NO_PROSE.sub("x", path.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if not line.startswith(("#", "|"))]
    yield from re.split(r"\n\s*\n", "\n".join(lines))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def main() -> None:
    """Print both rates, and with `--show` examples of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--show", type=int, default=0, help="Number of examples of each kind.")
    options = parser.parse_args()
    prose = prose_of(options.folders)
    for kind, examples in prose.hard.items():
        print(f"{1000 * len(examples) / max(prose.sentences, 1):6.1f} per 1,000  {kind}")
        for example in examples[:: max(1, len(examples) // max(options.show, 1))][: options.show]:
            print("          ", example)
    print(f"{prose.rate:6.1f} per 1,000  any of them, of {prose.sentences} sentences")
    for folder in options.folders:
        count, vague = vague_names(folder)
        rate = 1000 * vague.total() / max(count, 1)
        print(f"{rate:6.1f} per 1,000 of {count} names in {folder}: {dict(vague.most_common(15))}")


if __name__ == "__main__":
    main()
