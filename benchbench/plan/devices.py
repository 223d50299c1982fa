"""Which devices a case is planned on, and how several of them divide its step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.errors import UsageError, unknown
from benchbench.launch.catalogue import WorkloadKind
from benchbench.model.case import Case
from benchbench.model.device import NOT_MEASURED, Device, DeviceClass, Probe
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from benchbench.model.status import Status
from benchbench.model.world import Spread
from benchbench.plan.suite import Entry, WorldSpec, names_apart, parse_world

KINDS = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "tpu": "tpu", "sim": "sim", "xla": "tpu"}


class Obstacle(NamedTuple):
    """Why a case cannot run."""

    status: Status
    reason: str


def chosen_devices(probe: Probe, wanted: Sequence[str]) -> list[tuple[Device, Obstacle | None]]:
    """The devices to measure on: those wanted, else the first accelerator, else the CPU."""
    if probe.status != "ready":
        absent = f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
        device = Device(name=wanted[0] if wanted else "cpu", device_class=class_of(wanted), model="")
        return [(device, Obstacle(Status.UNAVAILABLE, absent))]
    if not wanted:
        first = next(
            (d for d in probe.devices if d.device_class is DeviceClass.ACCELERATOR), probe.devices[0]
        )
        return [(first, None)]
    return [chosen for want in wanted for chosen in devices_named(probe, want)]


def devices_named(probe: Probe, want: str) -> list[tuple[Device, Obstacle | None]]:
    """The device that a kind, class or name means on this target, and why it is not there, if so."""
    matches = [device for device in probe.devices if _matches(device, want)]
    if matches:
        exact = [device for device in matches if device.name == want]
        return [(exact[0] if exact else matches[0], None)]
    kind = KINDS.get(want.partition(":")[0], want)
    known = {KINDS.get(name, name): reason for name, reason in probe.missing}
    absent = NOT_MEASURED.get(kind, f"{probe.target.name} has no device {want!r}")
    reason = known.get(kind, absent)
    device = Device(name=want, device_class=class_of([want]), model="")
    return [(device, Obstacle(Status.UNAVAILABLE, reason))]


def _matches(device: Device, want: str) -> bool:
    if want in (device.name, device.device_class):
        return True
    kind, _, index = want.partition(":")
    same_kind = KINDS.get(kind, kind) == KINDS.get(device.name.partition(":")[0])
    return same_kind and (not index or index == device.name.partition(":")[2])


def class_of(wanted: Sequence[str]) -> DeviceClass:
    """The class that the first word of those wanted means; without any, the CPU."""
    accelerated = wanted and not wanted[0].startswith("cpu")
    return DeviceClass.ACCELERATOR if accelerated else DeviceClass.CPU


def devices_asked(entries: Sequence[tuple[str, Entry]], chosen: Sequence[str]) -> list[str]:
    """Every word that names a device or a kind of device: chosen ones, and those in worlds."""
    worlds = [parse_world(world) for _, entry in entries for world in entry.world or []]
    return [*chosen, *dict.fromkeys(each for spec in worlds for each in (*spec.names, spec.kind) if each)]


def check_devices(wanted: Sequence[str], probes: Sequence[Probe]) -> None:
    """Raise UsageError for a device word that is no kind, class or name of a device."""
    names = {device.name for probe in probes for device in probe.devices}
    valid = sorted({*KINDS, *DeviceClass, *names} - {"sim", "xla"})
    for want in wanted:
        if want not in names and want.partition(":")[0] not in {*KINDS, *DeviceClass, *NOT_MEASURED}:
            raise UsageError(f"No device named {want!r}.", unknown("devices", want, valid))


def placements(
    spec: WorldSpec, entry: Entry, workload: WorkloadKind, backend: type[Backend], hosts: int
) -> list[Placement]:
    """A placement for each strategy that is asked for, else for each that the framework offers.

    Where it offers none, one is planned all the same, to be left out with the reason.
    """
    if spec.devices == 1:
        return [ONE_DEVICE]
    offered = offered_strategies(workload, backend)
    chosen = [each for each in entry.strategy or offered if each is not Strategy.SINGLE]
    return [
        Placement(hosts=hosts, devices=spec.devices, names=names_apart(spec.names), strategy=each)
        for each in chosen or [Strategy.DATA_PARALLEL]
    ]


def world_on(
    spec: WorldSpec, probe: Probe, chosen: tuple[Device, Obstacle | None], wanted: Sequence[str]
) -> tuple[WorldSpec, Device, Obstacle | None] | None:
    """The world in this target's names of devices, its first device, and why that is not there, if so.

    `chosen`: the device of a world that names none. None for a world that names devices other than `wanted`.
    """
    if not spec.first:
        return spec, *chosen
    if probe.status != "ready":
        device, reason = chosen
        return spec, replace(device, name=spec.first, device_class=class_of([spec.first])), reason
    device, reason = devices_named(probe, spec.first)[0]
    if wanted and not any(_matches(device, want) for want in wanted):
        return None
    names = tuple(devices_named(probe, name)[0][0].name for name in spec.names)
    return replace(spec, names=names), device, reason


def is_of(spec: WorldSpec, case: Case) -> bool:
    """Whether a case runs on the devices that the world asks for."""
    if spec.devices != case.placement.devices:
        return False
    first = Device(name=case.device, device_class=class_of([case.device]), model="")
    apart = tuple(name.partition(":")[2] for name in names_apart(spec.names)) if spec.names else ()
    own = tuple(name.partition(":")[2] for name in case.placement.names)
    return apart == own and (not spec.first or _matches(first, spec.first))


def undivided(
    case: Case, workload: WorkloadKind, probe: Probe, device: Device, *, launched: bool = False
) -> Obstacle | None:
    """Why its devices cannot compute the case together, if so.

    `launched`: by a launcher's processes, which have devices that the probe of the first does not see.
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
    offered = offered_strategies(workload, backend)
    if placement.strategy not in offered:
        known = f"; there is {', '.join(offered)}" if offered else ""
        return Obstacle(
            Status.UNSUPPORTED, f"it has no {placement.strategy} step on {probe.target.name}{known}"
        )
    kind, _, first = device.name.partition(":")
    present = {each.name for each in probe.devices}
    if lacking := [name for name in placement.names if name not in present]:
        return Obstacle(Status.UNAVAILABLE, f"{probe.target.name} has no device {lacking[0]!r}")
    there = sum(each.name.partition(":")[0] == kind for each in probe.devices) - int(first or 0)
    counted = device.device_class is DeviceClass.ACCELERATOR and not (
        backend.virtual or placement.names or (launched and backend.spread is Spread.PROCESSES)
    )
    if counted and there < placement.devices:
        return Obstacle(
            Status.UNAVAILABLE, f"{placement.devices} {kind} devices are asked for, {there} are available"
        )
    return None


def offered_strategies(workload: WorkloadKind, backend: type[Backend]) -> list[Strategy]:
    """How the backend can divide the workload; a virtual backend has the strategies of all frameworks."""
    frameworks = workload.frameworks() if backend.virtual else [backend.framework]
    known = dict.fromkeys(each for name in frameworks for each in workload.strategies(name))
    return [each for each in known if each not in backend.undividable]


def backend_of(probe: Probe) -> type[Backend]:
    return registry.load_class("benchbench.backends", probe.target.backend, Backend)  # type: ignore[type-abstract]
