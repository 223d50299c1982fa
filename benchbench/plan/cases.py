"""Suite × devices → cases, with a reason for every case left out. Pure: no framework, no file, no clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.errors import UsageError, unknown
from benchbench.format import size
from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload, WorkloadKind, workload_at
from benchbench.model.case import Cache, Case, Dtype, LeftOut, Phase, Scalar
from benchbench.model.device import NOT_MEASURED, Device, DeviceClass, Probe
from benchbench.model.placement import ONE_DEVICE, VARIABLE, Placement, Strategy
from benchbench.model.run import Policy
from benchbench.model.status import Status
from benchbench.model.world import Spread
from benchbench.plan import sizes
from benchbench.plan.doubling import DOUBLINGS, doublings, sequence
from benchbench.plan.suite import Axes, Entry, Suite, check_params
from benchbench.workloads.base import Workload

KINDS = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "tpu": "tpu", "sim": "sim", "xla": "tpu"}
HOST_FLOPS, ACCELERATOR_FLOPS = 5e10, 2e13  # per second: only the estimate before the first round uses them
MOST_CASES = 10_000  # a day, at eight seconds each
MARGIN = 8  # times the memory: what a case may need and is still tried
SATURATED_S = 0.25  # likewise: a step that keeps a device busy so long gains nothing by being doubled
PROCESS_S, IMPORT_S = 1.0, 5.0  # likewise: to fork and build a case, to import a framework


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line narrows or overrides; empty means all the suite says."""

    workloads: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    modes: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    params: dict[str, list[Scalar]] = field(default_factory=dict)
    environments: tuple[Mapping[str, str], ...] = ({},)  # each case is planned in every one
    worlds: tuple[int, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    hosts: int = 1  # on which the devices of a world of several lie


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be measured, and what was asked for and will not be."""

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]


def select(suites: Sequence[Suite], selection: Selection) -> list[tuple[str, Entry]]:
    """(suite's name, entry) for what the command line leaves of the suites. Raises UsageError.

    A workload named on the command line that no suite holds is added at its default size.
    """
    entries = [
        (suite.name, _defaulted(entry, suite))
        for suite in suites
        for entry in suite.cases
        if not selection.workloads or entry.workload in selection.workloads
    ]
    present = {entry.workload for _, entry in entries}
    for name in selection.workloads:
        catalogue.workload_named(name)
        if name not in present:
            entries.append(("defaults", Entry(workload=name, dtype=[Dtype.FLOAT32])))
    return _overridden(entries, selection)


def _defaulted(entry: Entry, suite: Suite) -> Entry:
    return entry if entry.dtype else _changed(entry, dtype=suite.dtype)


def _overridden(entries: list[tuple[str, Entry]], selection: Selection) -> list[tuple[str, Entry]]:
    known = {name for _, entry in entries for name in _workload(entry).fields()}
    for name in (name for key in selection.params for name in sizes.tied(key)):
        if name not in known:
            hint = unknown("parameters", name, sorted(known))
            raise UsageError(f"No selected workload has a parameter {name!r}.", hint)
    return [(suite, _override(entry, selection)) for suite, entry in entries]


def _override(entry: Entry, selection: Selection) -> Entry:
    workload = _workload(entry)
    own = sizes.of_fields(selection.params, workload.fields())
    check_params(workload, own)
    return _changed(
        entry,
        dtype=list(selection.dtypes) or entry.dtype,
        mode=list(selection.modes) or entry.mode,
        cache=list(selection.caches) or entry.cache,
        world=list(selection.worlds) or entry.world,
        strategy=list(selection.strategies) or entry.strategy,
        cpu=[sizes.overridden(axes, own) for axes in entry.cpu],
        accelerator=[sizes.overridden(axes, own) for axes in entry.accelerator],
    )


def sizes_left_behind(
    suites: Sequence[Suite], selection: Selection, planned: Sequence[Case]
) -> Iterator[str]:
    """`gemm: n=512 k=512 stay while m changes: …`: what is as it was beside a size that was as large."""
    found: dict[tuple[str, ...], None] = {}
    for entry in (entry for suite in suites for entry in suite.cases):
        workload = _workload(entry)
        own = sizes.of_fields(selection.params, workload.fields())
        for axes in [*entry.cpu, *entry.accelerator]:
            names = sizes.left_behind(axes, own, workload.fields())
            found |= {(entry.workload, *each): None for each in names}
    for workload_name, key, *others in found:
        cases = [case for case in planned if case.workload == workload_name]
        kept = dict.fromkeys(f"{other}={case.params[other]}" for case in cases for other in others)
        if kept:
            together = sizes.TIE.join((key, *others))
            yield f"{workload_name}: {' '.join(kept)} stay while {key} changes: -p {together}=… changes all"


def plan(entries: Sequence[tuple[str, Entry]], selection: Selection, probes: Sequence[Probe]) -> Plan:
    """Every entry on every target and device chosen; duplicates are planned once. Raises UsageError."""
    _check_modes(selection.modes, probes)
    places = [(probe, *place) for probe in probes for place in _chosen(probe, selection.devices)]
    _check_count(entries, selection, [device for _, device, _ in places])
    cases: dict[str, Case] = {}
    left_out: dict[str, LeftOut] = {}
    for probe, device, absent in places:
        for suite, entry in entries:
            for case, reason in _unfold(suite, entry, probe, device, absent, selection):
                if reason:
                    left_out.setdefault(case.id, LeftOut(case=case, status=reason[0], reason=reason[1]))
                else:
                    cases.setdefault(case.id, case)
    ordered = sorted(cases.values(), key=lambda case: _position(case, entries))
    return Plan(tuple(ordered), tuple(left_out.values()))


def _check_count(
    entries: Sequence[tuple[str, Entry]], selection: Selection, devices: Sequence[Device]
) -> None:
    """Before any is made: a few lists of sizes have millions of combinations. Raises UsageError."""
    count = len(selection.environments) * sum(
        len(entry.dtype or [1])
        * len(entry.mode or [1])
        * len(entry.cache)
        * len(entry.world or [1])
        * len(entry.strategy or [1])
        * _points(entry, device)
        * (DOUBLINGS + 1 if entry.double else 1)
        for device in devices
        for _, entry in entries
    )
    if count > MOST_CASES:
        hint = "Narrow it with -w, -b, -d, --dtype or -p, or divide the suite."
        raise UsageError(f"{count:,} cases are asked for; a run has at most {MOST_CASES:,}.", hint)


def _points(entry: Entry, device: Device) -> int:
    tables = [axes.values() for axes in _tables(entry, device)]
    return sum(math.prod(len(v) if isinstance(v, list) else 1 for v in values) for values in tables)


def _tables(entry: Entry, device: Device) -> list[Axes]:
    return entry.cpu if device.device_class is DeviceClass.CPU else entry.accelerator


def fitting(chosen: Plan, memory_bytes: int) -> Plan:
    """Without the cases that no machine of so much memory can hold; 0: not known.

    A network moves its activations several times in a step, so what is left out is far beyond the memory:
    a slip in a size, not a large model. A case that comes nearer is tried, and ends as out of memory. A
    sequence that is doubled goes as far as the memory.
    """
    cases: list[Case] = []
    beyond: dict[str, LeftOut] = {}  # of a sequence the first: those after it need not be told of
    for case in chosen.cases:
        needed = footprint_bytes(case)
        if needed <= ((1 if case.doubles else MARGIN) * memory_bytes or math.inf):
            cases.append(case)
        else:
            reason = _needs(needed, memory_bytes)
            beyond.setdefault(sequence(case), LeftOut(case=case, status=Status.OUT_OF_MEMORY, reason=reason))
    return Plan(tuple(cases), (*chosen.left_out, *beyond.values()))


def _needs(footprint: int, memory: int) -> str:
    return f"its arrays need {size(footprint)}, and this machine has {size(memory)} of memory"


def _position(case: Case, entries: Sequence[tuple[str, Entry]]) -> int:
    return [entry.workload for _, entry in entries].index(case.workload)


def _check_modes(modes: Sequence[str], probes: Sequence[Probe]) -> None:
    known = [mode for probe in probes for mode in (*_backend(probe).modes, *_backend(probe).refused_modes)]
    for mode in modes:
        if mode not in known:
            valid = sorted(set(known))
            raise UsageError(f"No selected backend has a mode {mode!r}.", unknown("modes", mode, valid))


Reason = tuple[Status, str] | None


def _chosen(probe: Probe, wanted: Sequence[str]) -> list[tuple[Device, Reason]]:
    """The devices to measure on: those wanted, else the first accelerator, else the CPU."""
    if probe.status != "ready":
        absent = f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
        device = Device(name=wanted[0] if wanted else "cpu", device_class=_class_of(wanted), model="")
        return [(device, (Status.UNAVAILABLE, absent))]
    if not wanted:
        first = next(
            (d for d in probe.devices if d.device_class is DeviceClass.ACCELERATOR), probe.devices[0]
        )
        return [(first, None)]
    return [chosen for want in wanted for chosen in devices_named(probe, want)]


def devices_named(probe: Probe, want: str) -> list[tuple[Device, Reason]]:
    """The device that a kind, class or name means on this target, and why it is not there, if so."""
    matches = [device for device in probe.devices if _matches(device, want)]
    if matches:
        exact = [device for device in matches if device.name == want]
        return [(exact[0] if exact else matches[0], None)]
    kind = KINDS.get(want.partition(":")[0], want)
    known = {KINDS.get(name, name): reason for name, reason in probe.missing}
    absent = NOT_MEASURED.get(kind, f"{probe.target.name} has no device {want!r}")
    reason = known.get(kind, absent)
    device = Device(name=want, device_class=_class_of([want]), model="")
    return [(device, (Status.UNAVAILABLE, reason))]


def _matches(device: Device, want: str) -> bool:
    if want in (device.name, device.device_class):
        return True
    kind, _, index = want.partition(":")
    same_kind = KINDS.get(kind, kind) == KINDS.get(device.name.partition(":")[0])
    return same_kind and (not index or index == device.name.partition(":")[2])


def _class_of(wanted: Sequence[str]) -> DeviceClass:
    accelerated = wanted and not wanted[0].startswith("cpu")
    return DeviceClass.ACCELERATOR if accelerated else DeviceClass.CPU


def check_devices(wanted: Sequence[str], probes: Sequence[Probe]) -> None:
    """Raise UsageError for a device word that is no kind, class or name of a device."""
    names = {device.name for probe in probes for device in probe.devices}
    valid = sorted({*KINDS, *DeviceClass, *names} - {"sim", "xla"})
    for want in wanted:
        if want not in names and want.partition(":")[0] not in {*KINDS, *DeviceClass, *NOT_MEASURED}:
            raise UsageError(f"No device named {want!r}.", unknown("devices", want, valid))


def _unfold(
    suite: str,
    entry: Entry,
    probe: Probe,
    device: Device,
    absent: Reason,
    selection: Selection,
) -> Iterator[tuple[Case, Reason]]:
    if entry.backend and probe.target.backend not in entry.backend:
        return
    backend, workload = _backend(probe), _workload(entry)
    points = [
        member
        for table in _tables(entry, device)
        for point in sizes.points(table)
        for member in _members(entry, workload, point)
    ]
    modes = entry.mode or [backend.modes[0]]
    placements = _placements(entry, workload, backend, selection.hosts)
    axes = points, entry.dtype or [], modes, entry.cache, selection.environments, placements
    for point, dtype, mode, cache, environment, placement in itertools.product(*axes):
        instance = workload_at(entry.workload, point)
        case = Case(
            suite=suite,
            workload=entry.workload,
            params=instance.params,
            dtype=dtype,
            mode=mode,
            phase=Phase(workload.phase),
            target=probe.target.name,
            backend=probe.target.backend,
            device=device.name,
            cache=cache,
            placement=placement,
            environment=dict(environment),
            doubles=entry.double,
        )
        yield case, absent or unsupported(case, workload, probe, device)


def _members(entry: Entry, workload: WorkloadKind, point: dict[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    """The point, or the sequence that begins with it."""
    if not entry.double:
        return iter([point])
    start = {**workload.fields(), **point}[entry.double]
    return doublings(point, entry.double, int(start))


def _placements(entry: Entry, workload: WorkloadKind, backend: type[Backend], hosts: int) -> list[Placement]:
    """Of each world; of one of several devices every strategy asked for, else every one that there is.

    One that nobody asked for and that does not exist is planned too, so that it is told why it is left out.
    """
    offered = _offered(workload, backend)
    chosen = [each for each in entry.strategy or offered if each is not Strategy.SINGLE]
    found = []
    for devices in entry.world or workload.worlds:
        if devices == 1:
            found.append(ONE_DEVICE)
        else:
            found += [
                Placement(hosts=hosts, devices=devices, strategy=each)
                for each in chosen or [Strategy.DATA_PARALLEL]
            ]
    return found


def _offered(workload: WorkloadKind, backend: type[Backend]) -> list[Strategy]:
    """A virtual backend pretends whatever any framework does."""
    frameworks = workload.frameworks() if backend.virtual else [backend.framework]
    return list(dict.fromkeys(each for name in frameworks for each in workload.strategies(name)))


def holds(entry: Entry, case: Case) -> bool:
    """Whether a case is one that the entry plans, on whatever target and device it is."""
    if case.workload != entry.workload or case.dtype not in (entry.dtype or []):
        return False
    if case.cache not in entry.cache or (entry.mode and case.mode not in entry.mode):
        return False
    if entry.backend and case.backend not in entry.backend:
        return False
    if case.placement.devices not in (entry.world or _workload(entry).worlds):
        return False
    if case.placement.devices > 1 and entry.strategy and case.placement.strategy not in entry.strategy:
        return False
    tables = entry.cpu if _class_of([case.device]) is DeviceClass.CPU else entry.accelerator
    return any(
        workload_at(entry.workload, member).params == case.params
        for table in tables
        for point in sizes.points(table)
        for member in _members(entry, _workload(entry), point)
    )


def unsupported(case: Case, workload: WorkloadKind, probe: Probe, device: Device) -> Reason:
    """Why a case that is well formed cannot run on a device that is there, if so."""
    backend, missing_modes = _backend(probe), dict(probe.missing_modes)
    if not (backend.virtual or backend.computes(workload.frameworks())):
        unwritten = f"{case.workload} has no build_{backend.framework}"
        return Status.UNSUPPORTED, workload.lacking.get(backend.framework, unwritten)
    if undivided := _undivided(case, workload, probe, device):
        return undivided
    if reason := backend().refuses(device, case.computes_in, case.mode, workload.phase, case.cache):
        return Status.UNSUPPORTED, reason
    if device.device_class is DeviceClass.CPU and workload.refused_on_cpu:
        return Status.UNSUPPORTED, workload.refused_on_cpu
    if reason := instance(case).refuses(case.computes_in):
        return Status.UNSUPPORTED, reason
    if case.mode in missing_modes:
        return Status.UNAVAILABLE, f"{case.mode}: {missing_modes[case.mode]}"
    return None


def _undivided(case: Case, workload: WorkloadKind, probe: Probe, device: Device) -> Reason:
    """Why it cannot be computed by that many devices, if so."""
    backend, placement = _backend(probe), case.placement
    if placement.devices not in workload.worlds and placement.devices == 1:
        return Status.UNSUPPORTED, "nothing passes between devices where there is one; add --world 2"
    if placement.devices == 1:
        return None
    if backend.spread is Spread.NONE:
        return Status.UNSUPPORTED, f"{probe.target.name} is measured on one device only"
    offered = _offered(workload, backend)
    if placement.strategy not in offered:
        known = f"; there is {', '.join(offered)}" if offered else ""
        return Status.UNSUPPORTED, f"it has no {placement.strategy} step on {probe.target.name}{known}"
    kind, _, first = device.name.partition(":")
    there = sum(each.name.partition(":")[0] == kind for each in probe.devices) - int(first or 0)
    if device.device_class is DeviceClass.ACCELERATOR and not backend.virtual and there < placement.devices:
        return Status.UNAVAILABLE, f"{placement.devices} {kind} devices are asked for, {there} can be had"
    return None


def estimate_s(case: Case, policy: Policy, device_class: DeviceClass) -> float:
    """Seconds one process of the case is likely to take; rough, until a first round has been measured."""
    rate = HOST_FLOPS if device_class is DeviceClass.CPU else ACCELERATOR_FLOPS
    step = instance(case).cost(case.computes_in).flops / rate
    if case.doubles and step > SATURATED_S:
        return 0.0
    windows_s = 8 / 3 * max(3 * step, min(policy.window_s, 20 * step))  # overlapping ones, as in warm_up
    warm = min(max(policy.warmup_min_s, windows_s), max(policy.warmup_max_s, policy.warmup_min_blocks * step))
    timed = max(policy.min_s, 5 * step)
    return PROCESS_S + warm + min(timed, max(policy.max_s, step))


def footprint_bytes(case: Case) -> int:
    """At least what the case's tensors take: everything its cost counts, once."""
    return instance(case).cost(case.computes_in).bytes


def instance(case: Case) -> SizedWorkload:
    """The workload at the case's parameters, on its devices."""
    sized = catalogue.workload_at(case.workload, case.params)
    return sized.divided(case.placement) if isinstance(sized, Workload) else sized


def parse_environment(texts: Sequence[str]) -> dict[str, list[str]]:
    """`["XLA_FLAGS=,--xla_x"]` → the values of each variable, "" for its absence. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"Cannot read --env {text!r}.", "Write it as NAME=value or NAME=value,value.")
        found.setdefault(name, []).extend(values.split(","))
    return found


def environments(chosen: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], ...]:
    """Every combination of the values; a variable with the value "" is left as it is. Raises UsageError."""
    for name in chosen:
        if not VARIABLE.fullmatch(name):
            raise UsageError(f"{name!r} is no name of an environment variable.", "Write --env NAME=value.")
    combinations = itertools.product(*chosen.values())
    return tuple(
        {name: value for name, value in zip(chosen, values, strict=True) if value} for values in combinations
    )


def _changed(entry: Entry, **changes: object) -> Entry:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Entry(**{**fields, **changes})


def _backend(probe: Probe) -> type[Backend]:
    return registry.load_class("benchbench.backends", probe.target.backend, Backend)  # type: ignore[type-abstract]


def _workload(entry: Entry) -> WorkloadKind:
    return catalogue.workload_named(entry.workload)
