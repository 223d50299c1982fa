"""Files of other tools become a run; their keys tell which tool wrote them. It reads what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import same_hardware
from benchbench.model.run import Run
from benchbench.reading import LARGEST, parse_json, read_file, unix_time, unpacked
from benchbench.store.imports import google_benchmark, pyperf, pytest_benchmark
from benchbench.store.imports.processes import Benchmark, Process, run_of

READ: tuple[ModuleType, ...] = (pytest_benchmark, pyperf, google_benchmark)
TOOLS = ", ".join(each.TOOL for each in READ)
MOST_BYTES = 128 * 2**20  # of a file: it takes eight times as much memory
MOST_CASES, LONGEST_NAME = 10_000, 2000  # in a file; of a test's name, in characters
MOST_SAMPLES = 300_000  # of a benchmark: more would not fit into a line of records.jsonl
SCRIPT = b"window.BENCHMARK_DATA = "  # begins the data.js of github-action-benchmark


@dataclass(frozen=True, slots=True)
class _Unread:
    """A tool whose files lack what a run needs: by which keys they are known, what they lack, what to do."""

    tool: str
    keys: frozenset[str]
    lacks: str
    instead: str


UNREAD = (
    _Unread(
        "asv",
        frozenset({"commit_hash", "results"}),
        "it does not say which of its processes a sample is of, and has no samples without --record-samples",
        "`asv compare` reads it; to measure the same function here: accelbench time FILE.py:FUNCTION",
    ),
    _Unread(
        "hyperfine",
        frozenset({"results", "command"}),
        "it says neither when nor on which machine, and its times are of whole commands, start included",
        "To measure a function here: accelbench time FILE.py:FUNCTION",
    ),
    _Unread(
        "github-action-benchmark",
        frozenset({"name", "unit", "value"}),
        "it has one value of each benchmark, no samples, and says nothing of the machine",
        "Import the file that the value was made of: pytest-benchmark's or Google Benchmark's.",
    ),
    _Unread(
        "github-action-benchmark",
        frozenset({"lastUpdate", "entries"}),
        "it has one value of each benchmark and commit, no samples, and says nothing of the machine",
        "Import the files that the values were made of: pytest-benchmark's or Google Benchmark's.",
    ),
)


def import_files(paths: Sequence[Path], tags: Mapping[str, str] | None = None) -> Run:
    """A case per benchmark, a round per process: several files of one tool and machine are one run.

    Filed under the commit that the files name, if they agree, unless `tags` name another. Raises
    UnreadableInput for what is no such file or holds no samples, UsageError for files of several tools or
    machines.
    """
    processes: list[Process] = []
    for path in paths:
        of_file = _processes(path)
        first = processes[0] if processes else of_file[0]
        if of_file[0].tool != first.tool or not same_hardware(of_file[0].machine, first.machine):
            what = "on different machines" if of_file[0].tool == first.tool else "by different tools"
            raise UsageError(
                f"{path} and {paths[0]} were made {what}.", "Import each, then compare the runs."
            )
        processes += of_file
    run = run_of(processes, [path.name for path in paths])
    return replace(run, info=replace(run.info, tags={**run.info.tags, **(tags or {})}))


def _processes(path: Path) -> list[Process]:
    """One or more."""
    content = _content(path)
    keys = _keys(content)
    for unread in UNREAD:
        if unread.keys <= keys:
            raise UnreadableInput(f"{path} is of {unread.tool}: {unread.lacks}.", unread.instead)
    tool = next((each for each in READ if keys >= each.KEYS), None)
    if tool is None:
        raise UnreadableInput(f"{path} is of no tool that is known: {TOOLS}.", pytest_benchmark.HOW_TO)
    try:
        found = cast("list[Process]", tool.processes(content, path.name.partition(".")[0]))
        for process in found:
            unix_time(process.started)
    except (ValueError, OverflowError) as error:  # msgspec's errors are ValueErrors
        raise UnreadableInput(f"{path} is no JSON of {tool.TOOL}: {str(error)[:200]}", tool.HOW_TO) from error
    benchmarks = [benchmark for process in found for benchmark in process.benchmarks]
    if not benchmarks:
        raise UnreadableInput(f"{path} holds no samples.", tool.HOW_TO)
    if len(benchmarks) > MOST_CASES:
        raise UnreadableInput(f"{path} holds {len(benchmarks)} benchmarks; at most {MOST_CASES} are read.")
    for benchmark in benchmarks:
        _check(benchmark, path, tool.HOW_TO)
    return found


def _keys(content: Any) -> frozenset[str]:
    """Those of an object or a list's first one, and of the first of its `results`, if these are a list."""
    if isinstance(content, list):
        return _keys(content[0]) if content and isinstance(content[0], dict) else frozenset()
    if not isinstance(content, dict):
        return frozenset()
    results = content.get("results")
    return frozenset(content) | (_keys(results) if isinstance(results, list) else frozenset())


def _content(path: Path) -> Any:
    """Of a file of JSON, which may be compressed. Raises UnreadableInput."""
    text = read_file(path, MOST_BYTES, pytest_benchmark.HOW_TO)
    try:
        return parse_json(unpacked(text, MOST_BYTES).removeprefix(SCRIPT))
    except UnreadableInput as error:
        raise UnreadableInput(f"{path} is no JSON: {str(error)[:200]}", pytest_benchmark.HOW_TO) from error


def _check(benchmark: Benchmark, path: Path, how_to: str) -> None:
    name, steps = benchmark.name, benchmark.steps_s
    if len(name) > LONGEST_NAME:
        text = f"{path}: the name {name[:50]}… has {len(name)} characters"
        raise UnreadableInput(text, f"At most {LONGEST_NAME} are read.")
    if benchmark.failure:
        return
    if not steps:
        raise UnreadableInput(f"{path} holds no samples of {name}.", how_to)
    if not (1 <= benchmark.iterations <= LARGEST) or not all(0 <= step <= LARGEST for step in steps):
        raise UnreadableInput(f"{path}: {name} has a sample that is no duration.", how_to)
    if len(steps) > MOST_SAMPLES:
        text = f"{path}: {name} has {len(steps)} samples, too many."
        raise UnreadableInput(text, f"At most {MOST_SAMPLES} are read: measure for a shorter time.")
