"""The machines of a fleet: the hardware and software of each, and in what they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchbench.cluster.interface import Ended, Node
from benchbench.cluster.listener import Listener
from benchbench.cluster.messages import UNREADABLE, Description, LineKind, NodeJob, read_json
from benchbench.errors import UnreadableInput
from benchbench.format import size
from benchbench.store.naming import short

NO_DESCRIPTION = "it told nothing of itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMachine:
    """One that measures, or could. `kind`: those of one kind may stand in for each other."""

    name: str
    kind: str
    has: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A machine of the cluster that measures nothing, and why."""

    name: str
    reason: str


def look_at(nodes: Sequence[Node], listener: Listener) -> tuple[list[FleetMachine], list[Absent]]:
    """The machines that described themselves, in the order of `nodes`, and those that did not."""
    asked = {listener.start(node, NodeJob(kind="describe")): node for node in nodes}
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
    """The first of each."""
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


def hardware_differences(machines: Sequence[FleetMachine]) -> list[str]:
    """The same of the hardware, among machines of one kind."""
    known: dict[str, Callable[[FleetMachine], str]] = {
        "CPU": lambda each: each.has.machine.cpu,
        "threads": lambda each: str(each.has.machine.threads),
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
