"""Write a copy of a run for publication: numbers and hardware, but no names, paths or commands."""

from __future__ import annotations

import ast
import errno
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from benchbench.errors import CannotWrite
from benchbench.format import count_of
from benchbench.machine.environment import is_hashed, own_names
from benchbench.model.case import Case
from benchbench.model.device import Probe
from benchbench.model.measurement import Failure
from benchbench.model.note import Note
from benchbench.model.run import Record, Run, RunInfo
from benchbench.redaction import process_redaction
from benchbench.store import runs

REMOVED = "removed"
END = r"[^\s'\":;,()\[\]]*[^\s'\":;,()\[\].]"
START = r"(?<![\w/.~])(?:~|\.{0,2})/|(?<!\w)[A-Za-z]:[\\/]|\\\\"  # start of a path, also on Windows
REST = rf"(?:(?: [^\s/\\'\":;,]+){{1,4}}[\\/]{END})*"  # rest of a path with spaces in its names
IDENTIFYING = {  # texts that identify a machine
    "path": re.compile(rf"(?<=['\"])(?:{START})[^'\"\n]+(?=['\"])|(?:{START}){END}{REST}"),
    "address": re.compile(
        r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b|://[^\s/'\"]+"
        r"|(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){3,7}(?![\w:])"
    ),
}
NAMES = (
    re.compile(r"[\w.-]+"),
    re.compile(r"[\w-]+"),
    re.compile(r"[^\W_]+"),
)  # words of a text that may be a name, longest first
PLACEHOLDER = re.compile(r"(\[[a-z]+ \d+\]|\[redacted\])")
WORD = re.compile(r"[^\s\[\](){}<>'\"`,;:=|/\\]+")
ERROR = re.compile(r"[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit|Failure)")
NUMBER = re.compile(r"\d{1,12}|(?:\d+)?[a-zA-Zµ×%]{1,2}|0x[0-9a-fA-F]{1,4}|\d+e\d+")
FILES = (runs.HEAD, runs.RECORDS, runs.END)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """A published copy of a run, and a line for everything that was `kept` or `dropped`."""

    folder: Path
    kept: tuple[str, ...]
    dropped: tuple[str, ...]


def write_shared(source: Path, folder: Path) -> SharedRun:
    """Write a copy of the run in `source` for publication into `folder`, which must not exist.

    Raises UnreadableInput, CannotWrite.
    """
    run = runs.read_run(source)
    if os.path.exists(folder):
        raise CannotWrite(f"{folder}: File exists", "Name a folder that does not exist yet: -o FOLDER")
    cases = [
        *run.info.plan,
        *(out.case for out in run.info.left_out),
        *(record.case for record in run.records),
    ]
    used = dict.fromkeys(value for case in cases for value in case.environment.values())
    values = {value: f"value-{number}" for number, value in enumerate(used, 1)}
    texts = _Texts(own_names(), run.info.name_hashes, _names(cases))
    writer = runs.create_in(folder, _head(run.info, values, texts), texts)
    try:
        for record in run.records:
            writer.append(_record(record, values, texts))
        if run.ended:
            writer.end()
    finally:
        writer.close()
    return SharedRun(folder=folder, kept=_kept_lines(run), dropped=_dropped_lines(run, source, values, texts))


def _names(cases: Sequence[Case]) -> set[str]:
    """Text fields that identify a case and must stay distinct after redaction."""
    facts = ((case.workload, case.target, case.backend, case.mode, case.suite) for case in cases)
    return {text for texts in facts for text in texts}


@cache
def message_words() -> frozenset[str]:
    """Words of accelbench's messages, collected from the texts in its sources, and of system errors."""
    words = {sign.name.lower() for sign in signal.Signals}
    words.update(word for number in errno.errorcode for word in _words(os.strerror(number)))
    for path in Path(__file__).parents[1].rglob("*.py"):
        tree = ast.parse(path.read_bytes())
        parts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.Expr)]
        docstrings = {id(node.value) for node in parts if isinstance(node, ast.Expr)}
        texts = (
            node.value for node in parts if isinstance(node, ast.Constant) and id(node) not in docstrings
        )
        words.update(word for text in texts if isinstance(text, str) for word in _words(text))
    return frozenset(words)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-zµ]+", text.lower())


class _Texts:
    """Replaces identifying texts by numbered placeholders. Equal texts stay equal and different ones
    different.

    `local_names`: names of this machine and its user. `hashes`: of the names of the machine that measured.
    `case_names`: names of measured cases, which stay.
    """

    def __init__(self, local_names: set[str], hashes: Sequence[str], case_names: set[str]) -> None:
        self._redact = process_redaction()
        self._names, self._hashes = {name.lower() for name in local_names}, tuple(hashes)
        self._cases = {name.lower() for name in case_names}
        self._is_name_of: dict[str, bool] = {}
        self._case_words = {word for name in case_names for word in _words(name)}
        self.hidden: dict[str, dict[str, int]] = {kind: {} for kind in (*IDENTIFYING, "name", "text")}

    def __call__(self, text: str) -> str:
        text = self._redact(text)
        for kind, pattern in IDENTIFYING.items():
            text = pattern.sub(partial(self._hidden, kind), text)
        for pattern in NAMES:
            text = pattern.sub(self._without_name, text)
        return text

    def message(self, text: str) -> str:
        """Redact all but types of errors, numbers, and words of accelbench's messages."""
        parts = PLACEHOLDER.split(self(text))
        parts[::2] = (WORD.sub(self._public_word, part) for part in parts[::2])
        return "".join(parts)

    def _public_word(self, match: re.Match[str]) -> str:
        pieces = re.split(r"[^\w]+|_", match[0])
        is_public = all(
            not piece
            or piece.lower() in message_words()
            or piece.lower() in self._case_words
            or ERROR.fullmatch(piece)
            or NUMBER.fullmatch(piece)
            for piece in pieces
        )
        return match[0] if is_public or ERROR.fullmatch(match[0]) else self._hidden("text", match)

    def _without_name(self, match: re.Match[str]) -> str:
        word = match[0].lower()
        if word not in self._is_name_of:
            is_name = word in self._names or is_hashed(word, self._hashes)
            self._is_name_of[word] = is_name and word not in self._cases
        return self._hidden("name", match) if self._is_name_of[word] else match[0]

    def _hidden(self, kind: str, match: re.Match[str]) -> str:
        numbers = self.hidden[kind]
        return f"[{kind} {numbers.setdefault(match[0], len(numbers) + 1)}]"


def _case(case: Case, values: Mapping[str, str]) -> Case:
    return replace(case, environment={name: values[value] for name, value in case.environment.items()})


def _head(info: RunInfo, values: Mapping[str, str], texts: _Texts) -> RunInfo:
    return replace(
        info,
        command=(REMOVED,),
        probes=tuple(_probe(probe, texts) for probe in info.probes),
        plan=tuple(_case(case, values) for case in info.plan),
        left_out=tuple(
            replace(out, case=_case(out.case, values), reason=texts.message(out.reason))
            for out in info.left_out
        ),
        partner=None,
        tags={},
        machine_id="",
        name_hashes=(),
        variables=None,
        resumed=tuple(replace(part, command=(REMOVED,)) for part in info.resumed),
    )


def _probe(probe: Probe, texts: _Texts) -> Probe:
    return replace(
        probe,
        missing=tuple((kind, texts.message(reason)) for kind, reason in probe.missing),
        missing_modes=tuple((mode, texts.message(reason)) for mode, reason in probe.missing_modes),
        reason=texts.message(probe.reason),
        remedy=texts.message(probe.remedy),
    )


def _record(record: Record, values: Mapping[str, str], texts: _Texts) -> Record:
    outcome = record.outcome
    if isinstance(outcome, Failure):
        outcome = replace(outcome, message=texts.message(outcome.message), log="")
    else:
        model = replace(outcome.model, code="") if outcome.model else None  # it names files and functions
        outcome = replace(outcome, notes=_notes(outcome.notes, texts), model=model)
        if outcome.telemetry:
            notes = _notes(outcome.telemetry.notes, texts)
            outcome = replace(outcome, telemetry=replace(outcome.telemetry, notes=notes))
    return replace(record, case=_case(record.case, values), outcome=outcome)


def _notes(notes: Sequence[Note], texts: _Texts) -> tuple[Note, ...]:
    return tuple(
        replace(
            entry,
            data={
                name: texts.message(datum) if isinstance(datum, str) else datum
                for name, datum in entry.data.items()
            },
        )
        for entry in notes
    )


def _kept_lines(run: Run) -> tuple[str, ...]:
    info, machine = run.info, run.info.machine
    threads = count_of(machine.threads, "thread")
    records, cases = count_of(len(run.records), "record"), count_of(len(info.plan), "case")
    hardware = ", ".join((machine.cpu, threads, machine.os, *machine.accelerators))
    versions = ", ".join(f"{probe.target.name} {probe.version}" for probe in info.probes if probe.version)
    return (
        f"{records} of {cases}: samples, telemetry, messages in accelbench's own words",
        f"hardware and system: {hardware}",
        f"versions: accelbench {info.version}, Python {machine.python}, {versions}",
        "settings, policy, seed, the run's id, and when it began",
    )


def _dropped_lines(run: Run, source: Path, values: Mapping[str, str], texts: _Texts) -> tuple[str, ...]:
    logs = sum(bool(record.outcome.log) for record in run.records if isinstance(record.outcome, Failure))
    run_files = sum(os.path.exists(source / name) for name in FILES)
    files = sum(os.path.isfile(path) for path in source.rglob("*")) - run_files
    counts = {
        "tags": len(run.info.tags),
        "values of environment variables": len(values) + len(run.info.variables or {}),
        "logs of workers": logs,
        "damaged lines": len(run.damaged),
        "other files of its folder": files,
        "words of others in messages": len(texts.hidden["text"]),
        "paths in texts": len(texts.hidden["path"]),
        "addresses in texts": len(texts.hidden["address"]),
        "names of host and user in texts": len(texts.hidden["name"]),
    }
    partner = ("its partner in a comparison",) if run.info.partner else ()
    identity = ("the id of the machine",) if run.info.machine_id else ()
    lines = (f"{count} {kind}" for kind, count in counts.items() if count)
    return ("the command line", *partner, *identity, *lines)
