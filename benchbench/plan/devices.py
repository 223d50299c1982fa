"""Which devices a case is planned on, and how several of them divide its step. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.errors import UsageError, unknown
from benchbench.launch.catalogue import WorkloadKind
from benchbench.model.case import Case
from benchbench.model.device import NOT_MEASURED, Device, DeviceClass, Probe
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy
from benchbench.model.status import Status
from benchbench.model.world import Spread
from benchbench.plan.suite import Entry

KINDS = {"cpu": "cpu", "cuda": "gpu", "gpu": "gpu", "tpu": "tpu", "sim": "sim", "xla": "tpu"}
Reason = tuple[Status, str] | None


def chosen_devices(probe: Probe, wanted: Sequence[str]) -> list[tuple[Device, Reason]]:
    """The devices to measure on: those wanted, else the first accelerator, else the CPU."""
    if probe.status != "ready":
        absent = f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
        device = Device(name=wanted[0] if wanted else "cpu", device_class=class_of(wanted), model="")
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
    device = Device(name=want, device_class=class_of([want]), model="")
    return [(device, (Status.UNAVAILABLE, reason))]


def _matches(device: Device, want: str) -> bool:
    if want in (device.name, device.device_class):
        return True
    kind, _, index = want.partition(":")
    same_kind = KINDS.get(kind, kind) == KINDS.get(device.name.partition(":")[0])
    return same_kind and (not index or index == device.name.partition(":")[2])


def class_of(wanted: Sequence[str]) -> DeviceClass:
    accelerated = wanted and not wanted[0].startswith("cpu")
    return DeviceClass.ACCELERATOR if accelerated else DeviceClass.CPU


def check_devices(wanted: Sequence[str], probes: Sequence[Probe]) -> None:
    """Raise UsageError for a device word that is no kind, class or name of a device."""
    names = {device.name for probe in probes for device in probe.devices}
    valid = sorted({*KINDS, *DeviceClass, *names} - {"sim", "xla"})
    for want in wanted:
        if want not in names and want.partition(":")[0] not in {*KINDS, *DeviceClass, *NOT_MEASURED}:
            raise UsageError(f"No device named {want!r}.", unknown("devices", want, valid))


def placements(entry: Entry, workload: WorkloadKind, backend: type[Backend], hosts: int) -> list[Placement]:
    """Of each world; of one of several devices every strategy asked for, else every one that there is.

    One that nobody asked for and that does not exist is planned too, so that it is told why it is left out.
    """
    offered = offered_strategies(workload, backend)
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


def undivided(case: Case, workload: WorkloadKind, probe: Probe, device: Device) -> Reason:
    """Why it cannot be computed by that many devices, if so."""
    backend, placement = backend_of(probe), case.placement
    if placement.devices not in workload.worlds and placement.devices == 1:
        return Status.UNSUPPORTED, "nothing passes between devices where there is one; add --world 2"
    if placement.devices == 1:
        return None
    if backend.spread is Spread.NONE:
        return Status.UNSUPPORTED, f"{probe.target.name} is measured on one device only"
    offered = offered_strategies(workload, backend)
    if placement.strategy not in offered:
        known = f"; there is {', '.join(offered)}" if offered else ""
        return Status.UNSUPPORTED, f"it has no {placement.strategy} step on {probe.target.name}{known}"
    kind, _, first = device.name.partition(":")
    there = sum(each.name.partition(":")[0] == kind for each in probe.devices) - int(first or 0)
    if device.device_class is DeviceClass.ACCELERATOR and not backend.virtual and there < placement.devices:
        return Status.UNAVAILABLE, f"{placement.devices} {kind} devices are asked for, {there} can be had"
    return None


def offered_strategies(workload: WorkloadKind, backend: type[Backend]) -> list[Strategy]:
    """A virtual backend pretends whatever any framework does."""
    frameworks = workload.frameworks() if backend.virtual else [backend.framework]
    return list(dict.fromkeys(each for name in frameworks for each in workload.strategies(name)))


def backend_of(probe: Probe) -> type[Backend]:
    return registry.load_class("benchbench.backends", probe.target.backend, Backend)  # type: ignore[type-abstract]
