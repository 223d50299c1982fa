"""Choose devices for cases, and placements of steps on several devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchbench.backends.base import Backend, backend_class
from benchbench.errors import UsageError, unknown
from benchbench.launch.catalogue import WorkloadKind
from benchbench.model.case import Case
from benchbench.model.device import NOT_MEASURED, Device, DeviceClass, Probe
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from benchbench.model.status import Status
from benchbench.model.world import Spread
from benchbench.plan.suite import Entry, WorldSpec, nonadjacent_names, parse_world

KINDS = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "tpu": "tpu", "sim": "sim", "xla": "tpu"}


class Obstacle(NamedTuple):
    """Status and reason of a case that cannot run."""

    status: Status
    reason: str


def chosen_devices(probe: Probe, requested: Sequence[str]) -> list[tuple[Device, Obstacle | None]]:
    """Devices to measure on: the requested ones, else the first accelerator, else the CPU."""
    if probe.status != "ready":
        reason = f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
        device = Device(name=requested[0] if requested else "cpu", device_class=class_of(requested), model="")
        return [(device, Obstacle(Status.UNAVAILABLE, reason))]
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
    kind = KINDS.get(word.partition(":")[0], word)
    known_reasons = {KINDS.get(name, name): reason for name, reason in probe.missing}
    default_reason = NOT_MEASURED.get(kind, f"{probe.target.name} has no device {word!r}")
    reason = known_reasons.get(kind, default_reason)
    device = Device(name=word, device_class=class_of([word]), model="")
    return [(device, Obstacle(Status.UNAVAILABLE, reason))]


def _matches(device: Device, word: str) -> bool:
    if word in (device.name, device.device_class):
        return True
    kind, _, index = word.partition(":")
    same_kind = KINDS.get(kind, kind) == KINDS.get(device.name.partition(":")[0])
    return same_kind and (not index or index == device.name.partition(":")[2])


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
    valid = sorted({*KINDS, *DeviceClass, *names} - {"sim", "xla"})
    for word in words:
        if word not in names and word.partition(":")[0] not in {*KINDS, *DeviceClass, *NOT_MEASURED}:
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
