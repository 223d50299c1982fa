"""Plan cases from suites and devices, with a reason for every case left out. Pure: no framework, file or
clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from benchbench.backends.base import NOT_A_GRAPH, Backend, backend_class
from benchbench.errors import UsageError, unknown
from benchbench.format import size
from benchbench.launch.catalogue import WorkloadKind, workload_at
from benchbench.launch.project import UserCode
from benchbench.launch.user_models import UserModel
from benchbench.model.case import STREAMS, Case, Dtype, LeftOut, Phase, Scalar, Status
from benchbench.model.device import ROCM, Device, DeviceClass, Probe, Target, kind_of
from benchbench.model.placement import ONE_DEVICE, Placement, Spread, Strategy
from benchbench.plan.estimates import footprint_bytes, sized
from benchbench.plan.suite import (
    Axes,
    Entry,
    Selection,
    WorldSpec,
    check_count,
    entry_workload,
    nonadjacent_names,
    parse_world,
    point_count,
    points,
)
from benchbench.workloads.base import Workload

# Word → kinds of devices that it selects, the first of them if several are present; other words select the
# kind of that name. Frameworks have different names for one GPU.
SELECTED_KINDS = {
    "gpu": ("gpu", "cuda", ROCM, "xpu", "mps", "metal", "migraphx", "directml", "openvino_gpu"),
    "cuda": ("cuda", "gpu"),
    "mps": ("mps", "metal", "coreml"),
    "metal": ("metal", "mps"),
    "npu": ("npu", "openvino_npu", "qnn"),
    ROCM: (ROCM, "migraphx"),
    "tpu": ("tpu", "xla"),
    "xpu": ("xpu", "openvino_gpu"),
    "xla": ("tpu", "xla"),
}


class Obstacle(NamedTuple):
    """Status and reason of a case that cannot run."""

    status: Status
    reason: str

    def omit(self, case: Case) -> LeftOut:
        """Leave out the case for this reason."""
        return LeftOut(case=case, status=self.status, reason=self.reason)


def unavailable(probe: Probe) -> Obstacle:
    """Obstacle of every case of a target that is not ready, with the remedy."""
    reason = f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
    return Obstacle(Status.UNAVAILABLE, reason)


def chosen_devices(probe: Probe, requested: Sequence[str]) -> list[tuple[Device, Obstacle | None]]:
    """Devices to measure on: the requested ones, else the first accelerator, else the CPU."""
    if probe.status != "ready":
        device = Device(name=requested[0] if requested else "cpu", device_class=class_of(requested), model="")
        return [(device, unavailable(probe))]
    if not requested:
        first = next(
            (d for d in probe.devices if d.device_class is DeviceClass.ACCELERATOR), probe.devices[0]
        )
        return [(first, None)]
    return [device_and_obstacle for word in requested for device_and_obstacle in devices_named(probe, word)]


def devices_named(probe: Probe, word: str) -> list[tuple[Device, Obstacle | None]]:
    """Device that a kind, class or name selects on this target, with an obstacle if it is missing."""
    matches = [device for device in probe.devices if _matches(device, word)]
    if matches:
        exact = [device for device in matches if device.name == word]
        return [(exact[0] if exact else matches[0], None)]
    known_reasons = dict(probe.missing)
    kinds = [kind for kind in selected_kinds(word) if kind in known_reasons]
    reason = known_reasons[kinds[0]] if kinds else f"{probe.target.name} has no device {word!r}"
    device = Device(name=word, device_class=class_of([word]), model="")
    return [(device, Obstacle(Status.UNAVAILABLE, reason))]


def _matches(device: Device, word: str) -> bool:
    if word in (device.name, device.device_class):
        return True
    kind, _, index = device.name.partition(":")
    return kind in selected_kinds(word) and word.partition(":")[2] in ("", index)


def selected_kinds(word: str) -> tuple[str, ...]:
    """Kinds of devices that a word such as `gpu` or `cuda:1` selects."""
    kind = kind_of(word)
    return SELECTED_KINDS.get(kind, (kind,))


def class_of(words: Sequence[str]) -> DeviceClass:
    """Device class of the first word; without any, the CPU."""
    accelerated = words and not words[0].startswith("cpu")
    return DeviceClass.ACCELERATOR if accelerated else DeviceClass.CPU


def requested_devices(entries: Sequence[tuple[str, Entry]], words: Sequence[str]) -> list[str]:
    """Every selected device or kind of device, also those in worlds."""
    worlds = [parse_world(world) for _, entry in entries for world in entry.world or []]
    return [*words, *dict.fromkeys(word for spec in worlds for word in (*spec.names, spec.kind) if word)]


def check_devices(words: Sequence[str], probes: Sequence[Probe]) -> None:
    """Raise UsageError for a word that is not a kind, class or name of a device."""
    names = {device.name for probe in probes for device in probe.devices}
    missing_kinds = {kind for probe in probes for kind, _ in probe.missing}
    backend_kinds = {kind for probe in probes for kind in backend_of(probe).device_kinds}
    kinds = {*SELECTED_KINDS, *map(kind_of, names), *backend_kinds, *missing_kinds, *DeviceClass}
    for word in words:
        if word not in names and kind_of(word) not in kinds:
            valid = sorted({*kinds, *names} - {"sim", "xla"})
            raise UsageError(f"No device named {word!r}.", unknown("devices", word, valid))


def placements(
    spec: WorldSpec, entry: Entry, workload: WorkloadKind, backend: type[Backend], hosts: int
) -> list[Placement]:
    """Placements for each requested strategy, else for each that the framework supports.

    If it supports none, one is planned and later left out with the reason.
    """
    if spec.devices == 1:
        return [ONE_DEVICE]
    supported = supported_strategies(workload, backend)
    strategies = [strategy for strategy in entry.strategy or supported if strategy is not Strategy.SINGLE]
    return [
        Placement(hosts=hosts, devices=spec.devices, names=nonadjacent_names(spec.names), strategy=strategy)
        for strategy in strategies or [Strategy.DATA_PARALLEL]
    ]


def world_on(
    spec: WorldSpec, probe: Probe, default_device: tuple[Device, Obstacle | None], requested: Sequence[str]
) -> tuple[WorldSpec, Device, Obstacle | None] | None:
    """The world with this target's device names, its first device, and an obstacle if that is missing.

    `default_device`: for a world without names. None for a world on devices that are not `requested`.
    """
    if not spec.first:
        return spec, *default_device
    if probe.status != "ready":
        device, reason = default_device
        return spec, replace(device, name=spec.first, device_class=class_of([spec.first])), reason
    device, reason = devices_named(probe, spec.first)[0]
    if requested and not any(_matches(device, word) for word in requested):
        return None
    names = tuple(devices_named(probe, name)[0][0].name for name in spec.names)
    return replace(spec, names=names), device, reason


def has_world(spec: WorldSpec, case: Case) -> bool:
    """True if a case runs on the devices of the world."""
    if spec.devices != case.placement.devices:
        return False
    first = Device(name=case.device, device_class=class_of([case.device]), model="")
    world_numbers = (
        tuple(name.partition(":")[2] for name in nonadjacent_names(spec.names)) if spec.names else ()
    )
    case_numbers = tuple(name.partition(":")[2] for name in case.placement.names)
    return world_numbers == case_numbers and (not spec.first or _matches(first, spec.first))


def division_obstacle(
    case: Case, workload: WorkloadKind, probe: Probe, device: Device, *, launched: bool = False
) -> Obstacle | None:
    """Obstacle of a case that its devices cannot compute together, if any.

    `launched`: started by a launcher, whose processes have devices that the first one's probe does not see.
    """
    backend, placement = backend_of(probe), case.placement
    if placement.devices not in workload.worlds and placement.devices == 1:
        return Obstacle(Status.UNSUPPORTED, "a single device has nothing to exchange; add --world 2")
    if placement.devices == 1:
        return None
    if backend.spread is Spread.NONE:
        return Obstacle(Status.UNSUPPORTED, f"{probe.target.name} is measured on one device only")
    by_mode = backend.undividable_modes.get((placement.strategy, case.mode))
    if reason := backend.undividable.get(placement.strategy) or by_mode:
        return Obstacle(Status.UNSUPPORTED, reason)
    supported = supported_strategies(workload, backend)
    if placement.strategy not in supported:
        alternatives = f"; there is {', '.join(supported)}" if supported else ""
        return Obstacle(
            Status.UNSUPPORTED, f"it has no {placement.strategy} step on {probe.target.name}{alternatives}"
        )
    kind, _, first = device.name.partition(":")
    present = {present_device.name for present_device in probe.devices}
    if missing_names := [name for name in placement.names if name not in present]:
        return Obstacle(Status.UNAVAILABLE, f"{probe.target.name} has no device {missing_names[0]!r}")
    available_count = sum(
        present_device.name.partition(":")[0] == kind for present_device in probe.devices
    ) - int(first or 0)
    is_limited = device.device_class is DeviceClass.ACCELERATOR and not (
        backend.virtual or placement.names or (launched and backend.spread is Spread.PROCESSES)
    )
    if is_limited and available_count < placement.devices:
        return Obstacle(
            Status.UNAVAILABLE,
            f"it needs {placement.devices} {kind} devices, {available_count} are available",
        )
    return None


def supported_strategies(workload: WorkloadKind, backend: type[Backend]) -> list[Strategy]:
    """Strategies by which the backend can divide the workload; a virtual backend has those of all
    frameworks.
    """
    frameworks = workload.frameworks() if backend.virtual else [backend.framework]
    strategies = dict.fromkeys(strategy for name in frameworks for strategy in workload.strategies(name))
    return [strategy for strategy in strategies if strategy not in backend.undividable]


def backend_of(probe: Probe) -> type[Backend]:
    return backend_class(probe.target.backend)


MARGIN = 8  # cases that need up to this multiple of the memory are still tried


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases to measure, and requested cases that are left out.

    `pinned`: case id → parameters that a suite or a user chose; others have default values.
    """

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    pinned: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def without(self, obstacle_of: Callable[[Case], Obstacle | None]) -> Plan:
        """Leave out the cases that have an obstacle."""
        obstacles = {case.id: obstacle_of(case) for case in self.cases}
        left_out = [obstacle.omit(case) for case in self.cases if (obstacle := obstacles[case.id])]
        cases = tuple(case for case in self.cases if not obstacles[case.id])
        return replace(self, cases=cases, left_out=(*self.left_out, *left_out))


def plan(entries: Sequence[tuple[str, Entry]], selection: Selection, probes: Sequence[Probe]) -> Plan:
    """Plan every entry on every selected target and device, without duplicates. Raises UsageError."""
    _check_modes(selection.modes, probes)
    reported = _reported_probes(probes, selection.backends)
    devices = [
        (probe, *device_and_obstacle)
        for probe in reported
        for device_and_obstacle in chosen_devices(probe, selection.devices)
    ]
    _check_count(entries, selection, [device for _, device, _ in devices])
    cases: dict[str, Case] = {}
    left_out: dict[str, LeftOut] = {}
    pinned: dict[str, frozenset[str]] = {}
    for probe, device, obstacle_of_device in devices:
        for suite, entry in entries:
            for case, pinned_names, obstacle in _unfold(
                suite, entry, probe, (device, obstacle_of_device), selection
            ):
                pinned.setdefault(case.id, pinned_names)
                if obstacle:
                    left_out.setdefault(case.id, obstacle.omit(case))
                else:
                    cases.setdefault(case.id, case)
    names = dict.fromkeys(entry.workload for _, entry in entries)
    positions = {name: position for position, name in enumerate(names)}
    ordered = sorted(cases.values(), key=lambda case: positions[case.workload])
    return Plan(tuple(ordered), tuple(left_out.values()), pinned)


def _reported_probes(probes: Sequence[Probe], names: Sequence[str]) -> Sequence[Probe]:
    """Probes of available or named targets; if none is available, all, so that each has a hint."""
    return [
        probe for probe in probes if probe.status != "unavailable" or probe.target.name in names
    ] or probes


def _check_count(
    entries: Sequence[tuple[str, Entry]], selection: Selection, devices: Sequence[Device]
) -> None:
    """Check the number of cases before creating them: short lists of sizes can have millions of combinations.

    Tables without a device count, too. Raises UsageError.
    """
    count = len(selection.environments) * sum(
        len(entry.dtype or [1])
        * len(entry.mode or [1])
        * len(entry.cache)
        * len(entry.world or [1])
        * len(entry.strategy or [1])
        * len(entry.threads or [1])
        * sum(map(point_count, _tables(entry, device.device_class)))
        for device in devices
        for _, entry in entries
    )
    tables = [point_count(axes) for _, entry in entries for axes in (*entry.cpu, *entry.accelerator)]
    check_count(max([count, *tables]))


def _tables(entry: Entry, device_class: DeviceClass) -> list[Axes]:
    return entry.cpu if device_class is DeviceClass.CPU else entry.accelerator


def without_too_large(full_plan: Plan, memory_bytes: int) -> Plan:
    """Leave out the cases that are far too large for this memory; 0: memory unknown.

    A network moves its activations several times in a step, so its bound exceeds the memory it needs. A case
    beyond the margin is a mistake in a size. Others are tried, and may end as out of memory.
    """
    return full_plan.without(lambda case: too_large(case, memory_bytes))


def too_large(case: Case, memory_bytes: int, code: UserCode | None = None) -> Obstacle | None:
    """Obstacle of a case that is far too large for this memory, else None. 0: memory unknown.

    `code`: the user's workloads, as in `catalogue.workload_named`.
    """
    required_bytes = footprint_bytes(case, code)
    if required_bytes <= (MARGIN * memory_bytes or math.inf):
        return None
    message = f"its arrays need {size(required_bytes)}, and this machine has {size(memory_bytes)} of memory"
    return Obstacle(Status.OUT_OF_MEMORY, message)


def _check_modes(modes: Sequence[str], probes: Sequence[Probe]) -> None:
    modes_of_backends = [
        mode
        for probe in probes
        for backend in [backend_of(probe)]
        for mode in (*backend.modes, *backend.model_only_modes, *backend.refused_modes)
    ]
    for mode in modes:
        if mode not in modes_of_backends:
            valid = sorted(set(modes_of_backends))
            raise UsageError(f"No selected backend has a mode {mode!r}.", unknown("modes", mode, valid))


def _unfold(
    suite: str,
    entry: Entry,
    probe: Probe,
    default_device: tuple[Device, Obstacle | None],
    selection: Selection,
) -> Iterator[tuple[Case, frozenset[str], Obstacle | None]]:
    """Yield cases, pinned parameters and obstacles. `default_device`: for worlds without device names."""
    if entry.backend and probe.target.backend not in entry.backend:
        return
    backend, workload = backend_of(probe), entry_workload(entry)
    divided: dict[tuple[Device, Obstacle | None], list[Placement]] = {}
    for world in entry.world or workload.worlds:
        if world_device := world_on(parse_world(world), probe, default_device, selection.devices):
            spec, device, reason = world_device
            new_placements = placements(spec, entry, workload, backend, selection.hosts)
            divided.setdefault((device, reason), []).extend(new_placements)
    for device_and_obstacle, placements_there in divided.items():
        yield from _cases_on(device_and_obstacle, placements_there, suite, entry, probe, selection)


def _cases_on(
    device_and_obstacle: tuple[Device, Obstacle | None],
    placements_there: Sequence[Placement],
    suite: str,
    entry: Entry,
    probe: Probe,
    selection: Selection,
) -> Iterator[tuple[Case, frozenset[str], Obstacle | None]]:
    """Yield the cases on one device with these placements, each with pinned parameters and an obstacle."""
    workload, (device, obstacle_of_device) = entry_workload(entry), device_and_obstacle
    backend = backend_of(probe)
    default_modes = list(backend.modes[:1])
    if isinstance(workload, UserModel):
        lossy_modes = workload.lossy_modes(backend) if selection.takes_lossy else []
        default_modes = [*workload.modes(backend), *lossy_modes]
    modes = entry.mode or default_modes
    axes = (
        entry.dtype or [],
        modes,
        entry.cache,
        selection.environments,
        entry.threads or [0],
        placements_there,
    )
    for point, (dtype, mode, cache, environment, threads, placement) in itertools.product(
        _sizes(entry, device.device_class), itertools.product(*axes)
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
        )
        lossless = _lossless(backend, mode) if not selection.takes_lossy else None
        yield (
            case,
            frozenset(point),
            obstacle_of_device
            or support_obstacle(case, workload, probe, device, launched=selection.launched)
            or lossless,
        )


def _lossless(backend: type[Backend] | Backend, mode: str) -> Obstacle | None:
    """Obstacle of a lossy mode, if errors are not allowed."""
    if mode not in backend.lossy_modes:
        return None
    bits = backend.weight_bits.get(mode, 0) if mode in backend.weight_only_modes else 0
    # Outputs of random weights are 1 to 3 % off in 8 bits and 10 to 35 % in 4 bits.
    allowed = "40%" if 0 < bits < 8 else "5%" if bits else "1%"
    reason = f"it is lossy, {backend.lossy_modes[mode]}: --max-error {allowed} would let it compete"
    return Obstacle(Status.UNSUPPORTED, reason)


def _sizes(entry: Entry, device_class: DeviceClass) -> list[dict[str, Scalar]]:
    """Parameters of every point in the entry's tables for this class of device."""
    return [point for table in _tables(entry, device_class) for point in points(table)]


def entry_plans(entry: Entry, case: Case) -> bool:
    """True if the entry plans this case, on any target and device."""
    if case.workload != entry.workload or case.dtype not in (entry.dtype or []):
        return False
    if case.cache not in entry.cache or (entry.mode and case.mode not in entry.mode):
        return False
    if entry.backend and case.backend not in entry.backend:
        return False
    if entry.threads and case.threads not in entry.threads:
        return False
    if not any(has_world(parse_world(world), case) for world in entry.world or entry_workload(entry).worlds):
        return False
    if case.placement.devices > 1 and entry.strategy and case.placement.strategy not in entry.strategy:
        return False
    sizes = _sizes(entry, class_of([case.device]))
    return any(workload_at(entry.workload, point).params == case.params for point in sizes)


def _device_obstacle(
    case: Case, workload: WorkloadKind, backend: type[Backend] | Backend, device: Device
) -> str:
    """Reason why the device does not run the case, or ""."""
    on_cpu = device.device_class is DeviceClass.CPU
    if case.params.get(STREAMS, 1) != 1 and not (backend.takes_streams and on_cpu):
        return "only ONNX Runtime and OpenVINO have streams, on CPUs"
    return workload.refused_on_cpu if on_cpu else ""


def support_obstacle(
    case: Case, workload: WorkloadKind, probe: Probe, device: Device, *, launched: bool = False
) -> Obstacle | None:
    """Obstacle of a valid case on an available device, if any."""
    backend, missing_modes = backend_of(probe), dict(probe.missing_modes)
    if not (backend.virtual or backend.computes(workload.frameworks())):
        unwritten = f"{case.workload} has no build_{backend.framework}"
        return Obstacle(Status.UNSUPPORTED, workload.unsupported.get(backend.framework, unwritten))
    if case.mode in backend.model_only_modes and not isinstance(workload, UserModel):
        return Obstacle(Status.UNSUPPORTED, f"{case.mode} is a mode for user models only")
    if reason_undivided := division_obstacle(case, workload, probe, device, launched=launched):
        return reason_undivided
    if reason := backend().refuses(device, case.computes_in, case.mode, workload.phase, case.cache):
        return Obstacle(Status.UNSUPPORTED, reason)
    if reason := _device_obstacle(case, workload, backend, device):
        return Obstacle(Status.UNSUPPORTED, reason)
    if backend.exports and isinstance(workload, type) and not workload.is_graph:
        return Obstacle(Status.UNSUPPORTED, NOT_A_GRAPH)
    work = sized(workload, case)
    if work.backward_passes > 1 and (reason := backend.single_backward_modes.get(case.mode, "")):
        return Obstacle(Status.UNSUPPORTED, reason)
    if reason := work.refuses(case.computes_in):
        return Obstacle(Status.UNSUPPORTED, reason)
    if isinstance(work, Workload) and (reason := work.lacks(probe.target.backend, case.computes_in)):
        return Obstacle(Status.UNSUPPORTED, reason)
    if case.mode in missing_modes:
        return Obstacle(Status.UNAVAILABLE, f"{case.mode}: {missing_modes[case.mode]}")
    return None


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend runs a workload in float32, on one CPU if possible.

    `reason`: why it does not; "" if it does. `condition`: what it needs besides the default parameters, such
    as `--world 2`. `exceptions`: parameters at which it does not run.
    """

    backend: str
    reason: str = ""
    condition: str = ""
    exceptions: tuple[str, ...] = ()


def support(name: str, workload: WorkloadKind, backend_name: str) -> Support:
    """Support of a workload by a backend, from the rules of `plan`. No framework is imported."""
    devices = [(DeviceClass.CPU, "cpu", ""), (DeviceClass.ACCELERATOR, "gpu", "with a GPU or TPU")]
    reason = ""
    for device_class, device_name, condition in devices:
        device = Device(name=device_name, device_class=device_class, model="")
        obstacle = _default_obstacle(name, workload, backend_name, device, {})
        if obstacle:
            reason = obstacle.reason
            continue
        count = workload.worlds[0]
        conditions = [f"--world {count}"] * (count > 1) + [condition] * bool(condition)
        flags = {key: value for key, value in workload.fields().items() if isinstance(value, bool)}
        exceptions = (
            f"{key}={str(not value).lower()}"
            for key, value in flags.items()
            if _default_obstacle(name, workload, backend_name, device, {key: not value})
        )
        return Support(backend_name, condition=", ".join(conditions), exceptions=tuple(exceptions))
    return Support(backend_name, reason=reason)


def _default_obstacle(
    name: str, workload: WorkloadKind, backend_name: str, device: Device, params: Mapping[str, Scalar]
) -> Obstacle | None:
    """Obstacle of a workload in float32 in a backend's default mode, at its defaults and these parameters."""
    backend = backend_class(backend_name)
    count = workload.worlds[0]
    devices = tuple(replace(device, name=f"{device.name}:{index}") for index in range(count))
    target = Target(name=backend_name, backend=backend_name, python="")
    probe = Probe(target=target, version=None, devices=devices)
    strategies = supported_strategies(workload, backend)
    strategy = Strategy.SINGLE if count == 1 else (strategies or [Strategy.DATA_PARALLEL])[0]
    case = Case(
        suite="",
        workload=name,
        params=workload_at(name, params).params,
        dtype=Dtype.FLOAT32,
        mode=backend.modes[0],
        phase=Phase(workload.phase),
        target=backend_name,
        backend=backend_name,
        device=device.name,
        placement=Placement(devices=count, strategy=strategy) if count > 1 else ONE_DEVICE,
    )
    return support_obstacle(case, workload, probe, device)
