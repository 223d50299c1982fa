"""Every reader of outside data as a function of bytes, with valid examples.

A reader raises an AccelbenchError or returns a value that every format can show.
"""

import dataclasses
import json
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import msgspec

from benchbench.analyse.digest import digest
from benchbench.cluster.machines import Share
from benchbench.cluster.messages import LineKind, LineReader, line_bytes
from benchbench.cluster.receiver import Assignment, Receiver
from benchbench.documents.gate import baselines_document
from benchbench.documents.run import report_document
from benchbench.exporters import FORMATS, export
from benchbench.gate.baselines import encode_session, read_session
from benchbench.launch.transport import Answer, Channel
from benchbench.meeting import Rank, combine_replies, serve_ranks
from benchbench.model.run import Policy, Record
from benchbench.plan.config import load_config
from benchbench.plan.suite import load_suite
from benchbench.running.recording import decode_profile
from benchbench.running.verification import decode_error, decode_outcome
from benchbench.store import artifacts, codec, runs
from benchbench.store.imports import import_files
from tests.factories import a_failure, a_profiled, a_record, a_run, a_run_info, a_watched, some_rounds
from tests.rendering import rendered

Read = Callable[[bytes, Path], Any]


def show(record: Record) -> None:
    report = report_document(a_run([record]))
    for name, kind in FORMATS.items():
        if not kind.pictures:  # these take a second each
            export(report, name)


def read_record(content: bytes, _: Path) -> None:
    show(codec.decode(content))


def read_head(content: bytes, folder: Path) -> None:
    (folder / "records.jsonl").write_bytes(b"")
    (folder / "run.json").write_bytes(content)
    rendered(report_document(runs.read_run(folder)))


def read_end(content: bytes, folder: Path) -> None:
    if not (folder / "run.json").exists():
        folder = runs.store_run(folder, a_run())
    (folder / "end.json").write_bytes(content)
    runs.read_run(folder)


def in_file(name: str, read_file: Callable[[Path], Any]) -> Read:
    """A reader of a file of this name."""

    def read(content: bytes, folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        read_file(folder / name)

    return read


def show_baseline(path: Path) -> None:
    rendered(baselines_document({"main": {"machine": [read_session(path)]}}))


def show_import(path: Path) -> None:
    for record in import_files([path]).records:
        show(codec.decode(codec.encode(record)))


def read_message(content: bytes, _: Path) -> None:
    """Read a worker's message up to the outcome. A ValueError is a failure of the case."""
    ours, theirs = socket.socketpair()
    with theirs, ours:
        theirs.sendall(content.replace(b"\n", b" ")[:100_000] + b"\n")
        try:
            message = Channel(ours).receive(10)
        except ValueError:
            return
    if message is not None:
        read_answer(Answer(message))


def read_answer(answer: Answer) -> None:
    decode_outcome(answer, {})
    decode_error(answer)
    decode_profile(answer, ())


def read_rank(content: bytes, _: Path) -> None:
    """Read the same message from two ranks, up to the outcome and the verification."""
    here, there = zip(*(socket.socketpair() for number in range(2)), strict=True)
    for end in there:
        end.sendall(content[:100_000] + b"\n")
        end.close()
    reply = serve_ranks([Rank(number, end) for number, end in enumerate(here)], monotonic() + 10)
    for end in here:
        end.close()
    read_answer(Answer(combine_replies(reply)))


def read_fleet(content: bytes, folder: Path) -> None:
    """Read the lines of a fleet's machine, up to its stored run."""
    with TemporaryDirectory(dir=folder) as name:
        receiver = Receiver(Share(machine="a", kind="x"), Path(name), ASSIGNMENT, str)
        for line in LineReader().lines(content):
            if record := receiver.take(line):
                show(record)
        receiver.end()
        if receiver.info:
            assert runs.read_run(Path(name) / runs.RUNS / receiver.info.id).damaged == ()


RECORDS = [a_record(), a_record(a_failure()), a_record(a_watched())]
PROFILE = {"profile": dataclasses.asdict(a_profiled())["outcome"], "plain_step_s": [1e-3], "device": "cpu"}
FLEET_HEAD = a_run_info(policy=Policy(name="quick", rounds=1), tags={"fleet": "x"})
ASSIGNMENT = Assignment(
    tags=FLEET_HEAD.tags, policy=FLEET_HEAD.policy, seed=FLEET_HEAD.seed, works=frozenset({("quick", "gemm")})
)
FLEET_LINES = b"".join(
    line_bytes(kind, content)
    for kind, content in (
        (LineKind.HEAD, codec.to_json(FLEET_HEAD)),
        (LineKind.STAGE, "round 1"),
        (LineKind.NOTE, "a note"),
        (LineKind.RECORD, codec.encode(a_record(case=FLEET_HEAD.plan[0]))),
        (LineKind.END, "measure"),
    )
)
SUITE = b"""description = "x"
policy = "quick"
dtype = ["float32"]
[[cases]]
workload = "gemm"
mode = ["eager"]
cpu = [{ m = [64, 128], n = 64 }, { k = 32 }]
[thresholds]
"gemm*" = "8%"
"""
CONFIG = b"""[check]
baseline = "main"
max-slowdown = "5%"
metric = ["latency_s"]
[thresholds]
"gemm*" = 0.08
[price]
currency = "EUR"
[price.per-hour]
"*H100*" = 2.5
"""
IMPORT = {
    "machine_info": {"cpu": {"count": 2, "brand_raw": "x"}, "system": "Linux", "machine": "x86_64"},
    "benchmarks": [
        {"fullname": "t", "stats": {"data": [0.1, 0.2], "iterations": 3}, "options": {"timer": "t"}}
    ],
    "commit_info": {"id": "0" * 40, "dirty": False},
    "datetime": "2026-01-01T00:00:00",
    "version": "5",
}
READERS: dict[str, tuple[Read, list[bytes]]] = {
    "record": (read_record, [codec.to_json(record) for record in RECORDS]),
    "head": (read_head, [codec.to_json(a_run_info())]),
    "end": (read_end, [codec.to_json(runs.End(records=3))]),
    "baseline": (
        in_file("s.json", show_baseline),
        [encode_session(digest(a_run(some_rounds(1e-3, 1.1e-3), id="s")))],
    ),
    "profile": (
        in_file("artifacts/x.profile.json", lambda path: artifacts.read_profiles(path.parents[1])),
        list(artifacts.profile_files(a_profiled(), {})[1].values()),
    ),
    "suite": (in_file("x.toml", lambda path: load_suite(str(path))), [SUITE]),
    "config": (in_file("accelbench.toml", load_config), [CONFIG]),
    "import": (in_file("x.json", show_import), [json.dumps(IMPORT).encode()]),
    "fleet": (read_fleet, [FLEET_LINES, FLEET_LINES.partition(b"\n")[0]]),
    "rank": (
        read_rank,
        [
            *(
                msgspec.json.encode({"reply": {"outcome": outcome, "stages_s": {}, "device": "cpu"}})
                for outcome in (json.loads(codec.to_json(record))["outcome"] for record in RECORDS)
            ),
            msgspec.json.encode({"reply": PROFILE}),
            b'{"reply": {"verified": 1e-7}}',
            b'{"value": [1.0, 2]}',
        ],
    ),
    "message": (
        read_message,
        [
            msgspec.json.encode({"outcome": json.loads(codec.to_json(record))["outcome"], "stages_s": {}})
            for record in RECORDS
        ],
    ),
}
