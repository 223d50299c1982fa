"""Suite × devices → cases, with a reason for every case left out. Pure: no framework, no file, no clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchbench.backends.base import Backend
from benchbench.errors import UsageError, unknown
from benchbench.format import size
from benchbench.launch.catalogue import WorkloadKind, workload_at
from benchbench.launch.own_models import OwnModel
from benchbench.launch.project import UserCode
from benchbench.model.case import Case, LeftOut, Phase, Scalar
from benchbench.model.device import Device, DeviceClass, Probe
from benchbench.model.placement import Placement
from benchbench.model.status import Status
from benchbench.plan.costs import footprint_bytes, sized
from benchbench.plan.devices import (
    Obstacle,
    backend_of,
    chosen_devices,
    class_of,
    is_of,
    placements,
    undivided,
    world_on,
)
from benchbench.plan.suite import (
    Axes,
    Entry,
    Selection,
    check_count,
    entry_workload,
    parse_world,
    point_count,
    points,
)

MARGIN = 8  # times the memory: what a case may need and is still tried


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be measured, and what was asked for and will not be.

    `pinned`: case id → the parameters that a suite or a user chose; the others are at their defaults.
    """

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    pinned: Mapping[str, frozenset[str]] = field(default_factory=dict)


def plan(entries: Sequence[tuple[str, Entry]], selection: Selection, probes: Sequence[Probe]) -> Plan:
    """Every entry on every target and device chosen; duplicates are planned once. Raises UsageError."""
    _check_modes(selection.modes, probes)
    told = _told(probes, selection.backends)
    places = [(probe, *place) for probe in told for place in chosen_devices(probe, selection.devices)]
    _check_count(entries, selection, [device for _, device, _ in places])
    cases: dict[str, Case] = {}
    left_out: dict[str, LeftOut] = {}
    pinned: dict[str, frozenset[str]] = {}
    for probe, device, absent in places:
        for suite, entry in entries:
            for case, chosen, obstacle in _unfold(suite, entry, probe, (device, absent), selection):
                pinned.setdefault(case.id, chosen)
                if obstacle:
                    left_out.setdefault(
                        case.id, LeftOut(case=case, status=obstacle.status, reason=obstacle.reason)
                    )
                else:
                    cases.setdefault(case.id, case)
    names = dict.fromkeys(entry.workload for _, entry in entries)
    positions = {name: position for position, name in enumerate(names)}
    ordered = sorted(cases.values(), key=lambda case: positions[case.workload])
    return Plan(tuple(ordered), tuple(left_out.values()), pinned)


def _told(probes: Sequence[Probe], named: Sequence[str]) -> Sequence[Probe]:
    """Those that are there or were named. Where none is there all: each tells what to install."""
    return [each for each in probes if each.status != "unavailable" or each.target.name in named] or probes


def _check_count(
    entries: Sequence[tuple[str, Entry]], selection: Selection, devices: Sequence[Device]
) -> None:
    """Before any is made: a few lists of sizes have millions of combinations. Raises UsageError.

    A table is counted also where there is no device for it.
    """
    count = len(selection.environments) * sum(
        len(entry.dtype or [1])
        * len(entry.mode or [1])
        * len(entry.cache)
        * len(entry.world or [1])
        * len(entry.strategy or [1])
        * len(entry.threads or [1])
        * sum(map(point_count, _tables(entry, device)))
        for device in devices
        for _, entry in entries
    )
    tables = [point_count(axes) for _, entry in entries for axes in (*entry.cpu, *entry.accelerator)]
    check_count(max([count, *tables]))


def _tables(entry: Entry, device: Device) -> list[Axes]:
    return entry.cpu if device.device_class is DeviceClass.CPU else entry.accelerator


def fitting(chosen: Plan, memory_bytes: int) -> Plan:
    """The plan without the cases that no machine with this memory can hold; 0: memory unknown.

    A network moves its activations several times in a step, so a case that is left out is far beyond the
    memory: a slip in a size, not a large model. A case that comes nearer is tried, and ends as out of memory.
    """
    cases: list[Case] = []
    left_out = list(chosen.left_out)
    for case in chosen.cases:
        if obstacle := too_large(case, memory_bytes):
            left_out.append(LeftOut(case=case, status=obstacle.status, reason=obstacle.reason))
        else:
            cases.append(case)
    return replace(chosen, cases=tuple(cases), left_out=tuple(left_out))


def too_large(case: Case, memory_bytes: int, code: UserCode | None = None) -> Obstacle | None:
    """Why no machine with this memory can hold the case; None if one may. 0: memory unknown.

    `code`: where the user's workloads are, as in `catalogue.workload_named`.
    """
    needed = footprint_bytes(case, code)
    if needed <= (MARGIN * memory_bytes or math.inf):
        return None
    message = f"its arrays need {size(needed)}, and this machine has {size(memory_bytes)} of memory"
    return Obstacle(Status.OUT_OF_MEMORY, message)


def _check_modes(modes: Sequence[str], probes: Sequence[Probe]) -> None:
    known = [
        mode
        for probe in probes
        for backend in [backend_of(probe)]
        for mode in (*backend.modes, *backend.only_own_modes, *backend.refused_modes)
    ]
    for mode in modes:
        if mode not in known:
            valid = sorted(set(known))
            raise UsageError(f"No selected backend has a mode {mode!r}.", unknown("modes", mode, valid))


def _unfold(
    suite: str, entry: Entry, probe: Probe, chosen: tuple[Device, Obstacle | None], selection: Selection
) -> Iterator[tuple[Case, frozenset[str], Obstacle | None]]:
    """`chosen`: the device of worlds that name none."""
    if entry.backend and probe.target.backend not in entry.backend:
        return
    backend, workload = backend_of(probe), entry_workload(entry)
    divided: dict[tuple[Device, Obstacle | None], list[Placement]] = {}
    for world in entry.world or workload.worlds:
        if named := world_on(parse_world(world), probe, chosen, selection.devices):
            spec, device, reason = named
            own = placements(spec, entry, workload, backend, selection.hosts)
            divided.setdefault((device, reason), []).extend(own)
    for place, placed in divided.items():
        yield from _cases_on(place, placed, suite, entry, probe, selection)


def _cases_on(
    place: tuple[Device, Obstacle | None],
    placed: Sequence[Placement],
    suite: str,
    entry: Entry,
    probe: Probe,
    selection: Selection,
) -> Iterator[tuple[Case, frozenset[str], Obstacle | None]]:
    """The cases on one device, each with its pinned parameters and the reason why it cannot run.

    `placed`: the worlds it is part of.
    """
    workload, (device, absent) = entry_workload(entry), place
    backend = backend_of(probe)
    usual = list(backend.modes[:1])
    if isinstance(workload, OwnModel):
        usual = [*workload.modes(backend), *(backend.lossy_modes if selection.takes_lossy else ())]
    modes = entry.mode or usual
    axes = (entry.dtype or [], modes, entry.cache, selection.environments, entry.threads or [0], placed)
    for point, (dtype, mode, cache, environment, threads, placement) in itertools.product(
        _sizes(entry, device), itertools.product(*axes)
    ):
        case = Case(
            suite=suite,
            workload=entry.workload,
            params=workload_at(entry.workload, point).params,
            dtype=dtype,
            mode=mode,
            phase=Phase(workload.phase),
            target=probe.target.name,
            backend=probe.target.backend,
            device=device.name,
            cache=cache,
            placement=placement,
            environment=dict(environment),
            threads=threads,
            formerly=workload.formerly,
        )
        lossless = _lossless(backend, mode) if not selection.takes_lossy else None
        yield (
            case,
            frozenset(point),
            absent or unsupported(case, workload, probe, device, launched=selection.launched) or lossless,
        )


def _lossless(backend: type[Backend] | Backend, mode: str) -> Obstacle | None:
    """Why a mode is left out where nobody allows an error, if it loses precision."""
    if mode not in backend.lossy_modes:
        return None
    reason = f"it is lossy, {backend.lossy_modes[mode]}: --max-error 1% would let it compete"
    return Obstacle(Status.UNSUPPORTED, reason)


def _sizes(entry: Entry, device: Device) -> list[dict[str, Scalar]]:
    """Parameters of every point of the entry's tables for this device."""
    return [point for table in _tables(entry, device) for point in points(table)]


def entry_plans(entry: Entry, case: Case) -> bool:
    """True if the entry plans this case, on any target and device."""
    known = (entry.workload, entry_workload(entry).formerly)
    if case.workload not in known or case.dtype not in (entry.dtype or []):
        return False
    if case.cache not in entry.cache or (entry.mode and case.mode not in entry.mode):
        return False
    if entry.backend and case.backend not in entry.backend:
        return False
    if entry.threads and case.threads not in entry.threads:
        return False
    if not any(is_of(parse_world(world), case) for world in entry.world or entry_workload(entry).worlds):
        return False
    if case.placement.devices > 1 and entry.strategy and case.placement.strategy not in entry.strategy:
        return False
    tables = entry.cpu if class_of([case.device]) is DeviceClass.CPU else entry.accelerator
    return any(
        workload_at(entry.workload, point).params == case.params
        for table in tables
        for point in points(table)
    )


def unsupported(
    case: Case, workload: WorkloadKind, probe: Probe, device: Device, *, launched: bool = False
) -> Obstacle | None:
    """Why a case that is well formed cannot run on a device that is there, if so."""
    backend, missing_modes = backend_of(probe), dict(probe.missing_modes)
    if not (backend.virtual or backend.computes(workload.frameworks())):
        unwritten = f"{case.workload} has no build_{backend.framework}"
        return Obstacle(Status.UNSUPPORTED, workload.lacking.get(backend.framework, unwritten))
    if case.mode in backend.only_own_modes and not isinstance(workload, OwnModel):
        return Obstacle(Status.UNSUPPORTED, f"{case.mode} is a mode of your own models only")
    if reason_undivided := undivided(case, workload, probe, device, launched=launched):
        return reason_undivided
    if reason := backend().refuses(device, case.computes_in, case.mode, workload.phase, case.cache):
        return Obstacle(Status.UNSUPPORTED, reason)
    if device.device_class is DeviceClass.CPU and workload.refused_on_cpu:
        return Obstacle(Status.UNSUPPORTED, workload.refused_on_cpu)
    work = sized(workload, case)
    if work.backward_passes > 1 and (reason := backend.single_backward_modes.get(case.mode, "")):
        return Obstacle(Status.UNSUPPORTED, reason)
    if reason := work.refuses(case.computes_in):
        return Obstacle(Status.UNSUPPORTED, reason)
    if case.mode in missing_modes:
        return Obstacle(Status.UNAVAILABLE, f"{case.mode}: {missing_modes[case.mode]}")
    return None
