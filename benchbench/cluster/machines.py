"""The machines of a fleet: the hardware and software of each, and in what they differ."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path

from benchbench.analyse.rows import case_key
from benchbench.cluster.messages import (
    UNREADABLE,
    Description,
    Ended,
    LineKind,
    Listener,
    Node,
    NodeJob,
    read_json,
)
from benchbench.errors import UnreadableInput, UsageError
from benchbench.format import size
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.options import MeasureOptions
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.reading import read_file
from benchbench.redaction import own_redaction
from benchbench.running.schedule import due
from benchbench.store import codec, disk, runs, selectors
from benchbench.store.disk import lock
from benchbench.store.naming import INSTEAD_OF, MACHINE, fleet_of, short

NO_DESCRIPTION = "it told nothing of itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMachine:
    """A machine that measures, or could. Machines of one `kind` may stand in for each other."""

    name: str
    kind: str
    has: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A machine of the cluster that measures nothing, and why."""

    name: str
    reason: str


def look_at(
    nodes: Sequence[Node], listener: Listener, options: MeasureOptions
) -> tuple[list[FleetMachine], list[Absent]]:
    """The machines that described themselves, in the order of `nodes`, and those that did not.

    `options`: with the models of which each tells what file it has.
    """
    job = NodeJob(kind="describe", options=MeasureOptions(model=options.model, input=options.input))
    asked = {listener.start(node, job): node for node in nodes}
    told: dict[str, FleetMachine] = {}
    silent: dict[str, str] = {}
    waiting = set(asked)
    while waiting:
        for task, said in listener.hear():
            node = asked[task]
            if isinstance(said, Ended):
                waiting.discard(task)
                silent[node.name] = silent.get(node.name) or said.lost or NO_DESCRIPTION
                continue
            try:
                if said.kind is LineKind.DESCRIPTION:
                    told[node.name] = _machine(node, read_json(said.content, Description))
                elif said.kind is LineKind.ERROR:
                    silent[node.name] = said.text
            except UnreadableInput as error:
                silent[node.name] = UNREADABLE.format(error=error)
    here = [told[node.name] for node in nodes if node.name in told]
    absent = [Absent(name=name, reason=reason) for name, reason in silent.items() if name not in told]
    return here, absent


def _machine(node: Node, has: Description) -> FleetMachine:
    kind = node.kind or ", ".join(dict.fromkeys(has.machine.accelerators)) or has.machine.cpu
    return FleetMachine(name=node.name, kind=kind, has=has)


def one_of_each_kind(machines: Sequence[FleetMachine]) -> list[FleetMachine]:
    """The first machine of each kind."""
    first: dict[str, FleetMachine] = {}
    for machine in machines:
        first.setdefault(machine.kind, machine)
    return list(first.values())


def version_differences(machines: Sequence[FleetMachine]) -> list[str]:
    """`torch: 2.13.0 on a, b; none on c`, for each thing that is not the same on all of them."""
    packages = sorted({name for each in machines for name in each.has.packages})
    known: dict[str, Callable[[FleetMachine], str]] = {
        "accelbench": lambda each: each.has.version,
        "Python": lambda each: each.has.machine.python,
        "system": lambda each: each.has.machine.os,
        "commit": lambda each: short(each.has.commit),
        **{name: lambda each, name=name: each.has.packages.get(name, "") for name in packages},  # type: ignore[misc]
    }
    return list(_differences(machines, known))


def file_differences(machines: Sequence[FleetMachine], here: Mapping[str, str]) -> list[str]:
    """`b has no my.py`, `c has another my.py than this machine`; `here`: the digest of each file here."""
    found = []
    for name, digest in here.items():
        had = {each.name: each.has.files.get(name, "") for each in machines}
        if without := [on for on, own in had.items() if digest and not own]:
            found.append(f"{', '.join(without)}: no {name}")
        if others := [on for on, own in had.items() if own and own != digest]:
            found.append(f"{', '.join(others)}: another {name} than here")
    return found


def hardware_differences(machines: Sequence[FleetMachine]) -> list[str]:
    """`L4, memory: 64 GiB on a; 32 GiB on b`, for each property in which machines of one kind differ."""
    known: dict[str, Callable[[FleetMachine], str]] = {
        "CPU": lambda each: each.has.machine.cpu,
        "threads": lambda each: str(each.has.machine.threads),
        "CPU quota": lambda each: f"{each.has.machine.cpu_quota or 'none'}",
        "memory": lambda each: size(each.has.machine.memory_bytes),
        "accelerators": lambda each: ", ".join(each.has.machine.accelerators),
    }
    kinds = dict.fromkeys(each.kind for each in machines)
    return [
        f"{kind}, {text}"
        for kind in kinds
        for text in _differences([each for each in machines if each.kind == kind], known)
    ]


def _differences(
    machines: Sequence[FleetMachine], known: dict[str, Callable[[FleetMachine], str]]
) -> Iterator[str]:
    for what, value_of in known.items():
        names: dict[str, list[str]] = {}
        for each in machines:
            names.setdefault(value_of(each), []).append(each.name)
        if len(names) > 1:
            yield f"{what}: " + "; ".join(
                f"{value or 'none'} on {', '.join(on)}" for value, on in names.items()
            )


class ShareState(StrEnum):
    """How far a machine has come with its share."""

    WAITING = "waiting"
    STARTING = "starting"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"  # it told why it cannot
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one machine is to measure: the whole suite, unless the share is `interrupted` or `lost`.

    `interrupted`: the head of a run of this machine, to be finished. `lost`: the head of a run whose machine
    went away; its unfinished `cases` are begun again. `instead_of`: its id, or the machine that never began.
    """

    machine: str
    kind: str
    interrupted: RunInfo | None = None
    lost: RunInfo | None = None
    cases: tuple[Case, ...] = ()
    instead_of: str = ""


def unfinished_cases(info: RunInfo, records: Sequence[Record]) -> list[tuple[Case, int]]:
    """The planned cases that lack a record of some round, and the first such round; none of what failed.

    Rounds that a budget would have added are not missed.
    """
    failed = {case_key(record.case) for record in records if isinstance(record.outcome, Failure)}
    made = {(*case_key(record.case), record.round) for record in records}
    pending = [case for case in info.plan if case_key(case) not in failed]
    missing: dict[tuple[str, str], tuple[Case, int]] = {}
    for number in count():
        if not (cases := due(info.policy, number, pending, records, left_s=0.0)):
            return list(missing.values())
        for case in cases:
            if (*case_key(case), number) not in made:
                missing.setdefault(case_key(case), (case, number))
    raise AssertionError("rounds end")


def lost_cases(run: Run) -> tuple[Case, ...]:
    """The cases that were unfinished when the machine was lost."""
    return tuple(record.case for record in run.records if record.outcome.status == Status.LOST)


def begun_again(share: Share, info: RunInfo | None, cases: Sequence[Case], machine: str) -> Share:
    """What is left of a share that was lost, for another machine; `info`: the head, if there was one."""
    if info is None:
        return dataclasses.replace(share, machine=machine, instead_of=share.instead_of or share.machine)
    return Share(machine=machine, kind=share.kind, lost=info, cases=tuple(cases), instead_of=info.id)


def sibling(kind: str, machines: Sequence[FleetMachine], load: Mapping[str, int]) -> str:
    """The machine of that kind with the least to do, by name; empty where there is none."""
    same = [each.name for each in machines if each.kind == kind]
    return min(same, key=lambda name: load.get(name, 0), default="")


def shares_left(
    machines: Sequence[FleetMachine], measuring: Sequence[str], runs: Iterable[Run]
) -> list[Share]:
    """What a fleet that ended early still has to do.

    `measuring`: the names of those machines that were to measure the suite. `runs`: what there is of it, of
    which no records are kept.
    """
    kinds = {each.name: each.kind for each in machines}
    stood_in_for, own = set[str](), set[str]()
    left: list[tuple[str, Share]] = []
    for run in runs:
        tags = run.info.tags
        stood_in_for.add(tags.get(INSTEAD_OF, ""))
        if INSTEAD_OF not in tags:
            own.add(tags[MACHINE])
        left += [(run.info.id, share) for share in _left(run, kinds)]
    never = [Share(machine=name, kind=kinds[name]) for name in measuring if name not in own | stood_in_for]
    return never + [share for name, share in left if name not in stood_in_for]


def _left(run: Run, kinds: Mapping[str, str]) -> Iterator[Share]:
    tags = run.info.tags
    share = Share(
        machine=tags[MACHINE], kind=kinds.get(tags[MACHINE], ""), instead_of=tags.get(INSTEAD_OF, "")
    )
    if not run.ended:
        yield dataclasses.replace(share, interrupted=run.info)
    elif cases := lost_cases(run):
        yield begun_again(share, run.info, cases, share.machine)  # which may be back


SCHEMA = 1  # of the file. 1: first


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetInfo:
    """A suite on several machines. Its runs have `fleet` among their tags."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    version: str
    options: MeasureOptions  # as given, without the paths of interpreters
    suites: tuple[tuple[str, str], ...]  # name and TOML
    machines: tuple[FleetMachine, ...]
    measuring: tuple[str, ...]  # the names of those machines that measure the suite; the others stand by
    checksums: bool = field(default=True)


def keep_fleet(results: Path, info: FleetInfo) -> None:
    """Raises CannotWrite."""
    text = codec.to_json(info, indent=1, redact=own_redaction()) + b"\n"
    stored = codec.sealed_document(text, FleetInfo, f"the request of the fleet {info.id}")
    disk.save_below(results, _path(results, info.id), stored)


@contextmanager
def kept(results: Path, info: FleetInfo) -> Iterator[None]:
    """Store the request, and keep other processes from adding to the fleet meanwhile. Raises CannotWrite."""
    path = _path(results, info.id)
    with ExitStack() as held:
        if os.path.exists(path):  # to be resumed: only who has it may replace it
            held.callback(os.close, lock(path))
        keep_fleet(results, info)
        held.callback(os.close, lock(path))
        yield


def read_fleet(results: Path, name: str = "") -> FleetInfo:
    """The fleet of that id or a beginning of it, else the newest. Raises UsageError, UnreadableInput."""
    folder = results / runs.FLEETS
    found = sorted(path.stem for path in folder.glob("*.json")) if os.path.isdir(folder) else []
    matching = [each for each in found if each.startswith(name.upper())]
    if not matching or (name and len(matching) > 1):
        what = f"No fleet {name!r} in {folder}." if name else f"There is no fleet in {folder}."
        known = f"There are {', '.join(found[-5:])}." if found else "accelbench fleet begins one."
        raise UsageError(what, known)
    return codec.document(_path(results, matching[-1]), FleetInfo, "Measure it anew: accelbench fleet")


def runs_of(results: Path, fleet: str) -> Iterator[Run]:
    """The runs of a fleet one by one, in the order of their ids: those of a large one need much memory."""
    for name in selectors.run_ids(results):
        folder = results / runs.RUNS / name
        try:
            if fleet_of(runs.read_head(folder).tags) == fleet:
                yield runs.read_run(folder)
        except UnreadableInput:
            continue  # whatever it was of, it can be neither finished nor told apart


def _path(results: Path, name: str) -> Path:
    return results / runs.FLEETS / f"{name}.json"


def suite_text(path: Path) -> str:
    """Raises UnreadableInput."""
    return read_file(path, 2**20).decode()
