"""NVIDIA's management library: the part that is needed, and an adapter for `pynvml` (nvidia-ml-py).

Everything that asks about a GPU takes an `Nvml`, so that tests need none. A value is None where the GPU or
its driver does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any, Protocol

POWER_CAP = "power cap"
THROTTLED = {  # bits of nvmlClocksEventReasons (nvml.h): what takes a clock below what was asked for
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}

CUDA = ("cuda", "gpu", "tensorrt")  # what frameworks call NVIDIA's devices
MIG = "NVML's counters are the whole GPU's, not a MIG slice's"
LOST = ""  # the name of a GPU that the driver has lost (Xid 79: it fell off the bus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One moment. `reasons`: the bits of nvmlClocksEventReasons; `busy` is a fraction."""

    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    reasons: int | None
    busy: float | None
    processes: int | None  # that compute on it
    energy_j: float | None  # since the driver was loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """What does not move by itself. `set_sm_mhz`: the clock that was asked for when work is there."""

    name: str
    uuid: str
    max_sm_mhz: int | None
    set_sm_mhz: int | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    slowdown_c: int | None  # the temperature at which the hardware slows itself down
    persistent: bool | None
    ecc: bool | None
    mig: bool | None


class Nvml(Protocol):
    """GPUs are named by their index, in the order of their PCI addresses."""

    def count(self) -> int:
        """How many GPUs there are."""

    def settings(self, index: int) -> GpuSettings:
        """The settings of one GPU."""

    def state(self, index: int) -> GpuState:
        """The state of one GPU, now."""

    def process_names(self, index: int) -> tuple[str, ...]:
        """Names of what computes on one GPU; without folders, `?` where it may not be known."""

    def close(self) -> None:
        """Let the driver go: afterwards nothing may be asked."""


def connect(load: Callable[[], Any] | None = None) -> Nvml | str:
    """NVML, or why there is none. Without a driver that is an answer, not an error."""
    try:
        module = load() if load else import_module("pynvml")
    except ImportError:
        return "no NVML: nvidia-ml-py is not installed"
    try:
        module.nvmlInit()
        return Pynvml(module)
    except module.NVMLError_LibraryNotFound:
        return "no NVML: there is no NVIDIA driver"
    except module.NVMLError as error:
        return f"no NVML: {error}"


def gpu_index(device: str, gpus: Sequence[GpuSettings], environment: Mapping[str, str]) -> int | str:
    """Which GPU of NVML's a framework's device (`cuda:0`, `gpu:1`) is, or why it cannot be told.

    CUDA numbers the GPUs that CUDA_VISIBLE_DEVICES leaves, the fastest first unless CUDA_DEVICE_ORDER says
    otherwise (CUDA programming guide, environment variables). Where a GPU is in MIG mode, as it is seen in a
    container that no variable was set in, CUDA computes on slices of it.
    """
    kind, _, digits = device.partition(":")
    if kind not in CUDA:
        return f"NVML does not know {device}"
    number = digits or "0"
    if "CUDA_VISIBLE_DEVICES" in environment:
        visible = [each.strip() for each in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        number = visible[int(number)] if int(number) < len(visible) else ""
    named = [index for index, gpu in enumerate(gpus) if number and gpu.uuid.startswith(number)]
    if len(named) == 1:
        return MIG if gpus[named[0]].mig else named[0]
    if number.startswith("MIG-"):
        return MIG
    if any(gpu.name == LOST for gpu in gpus):
        return f"cannot tell which GPU is {device}: the driver has lost one, so CUDA numbers them otherwise"
    if not number.isdecimal() or int(number) >= len(gpus):
        return f"NVML has no GPU that is {device}"
    alike = len({gpu.name for gpu in gpus}) == 1
    if alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return MIG if gpus[int(number)].mig else int(number)
    return f"cannot tell which GPU is {device} without CUDA_DEVICE_ORDER=PCI_BUS_ID"


class Pynvml:
    """`Nvml` by `pynvml`. What a GPU or a driver does not support is None."""

    def __init__(self, module: Any) -> None:
        """`module` is pynvml, initialised."""
        self._nvml = module
        self._gpus = [self._handle(index) for index in range(module.nvmlDeviceGetCount())]

    def _handle(self, index: int) -> Any:
        """None for a GPU that the driver has lost: the others can be asked."""
        with suppress(self._nvml.NVMLError):
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        return None

    def count(self) -> int:
        return len(self._gpus)

    def settings(self, index: int) -> GpuSettings:
        gpu, nvml, ask = self._gpus[index], self._nvml, self._ask
        modes = {
            "persistent": ask("GetPersistenceMode", gpu),
            "ecc": ask("GetEccMode", gpu),
            "mig": ask("GetMigMode", gpu),
        }
        current = {name: mode[0] if isinstance(mode, list | tuple) else mode for name, mode in modes.items()}
        return GpuSettings(
            name=ask("GetName", gpu) or LOST,
            uuid=ask("GetUUID", gpu) or "",
            max_sm_mhz=ask("GetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM),
            set_sm_mhz=ask("GetApplicationsClock", gpu, nvml.NVML_CLOCK_SM),
            power_limit_w=_scaled(ask("GetEnforcedPowerLimit", gpu), 1e-3),
            default_power_limit_w=_scaled(ask("GetPowerManagementDefaultLimit", gpu), 1e-3),
            slowdown_c=ask("GetTemperatureThreshold", gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            **{name: None if mode is None else bool(mode) for name, mode in current.items()},
        )

    def state(self, index: int) -> GpuState:
        gpu, nvml, ask = self._gpus[index], self._nvml, self._ask
        use = ask("GetUtilizationRates", gpu)
        processes = ask("GetComputeRunningProcesses", gpu)
        reasons = ask("GetCurrentClocksEventReasons", gpu)
        if reasons is None:  # drivers before 535 know it by its old name
            reasons = ask("GetCurrentClocksThrottleReasons", gpu)
        return GpuState(
            sm_mhz=ask("GetClockInfo", gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=ask("GetClockInfo", gpu, nvml.NVML_CLOCK_MEM),
            power_w=_scaled(ask("GetPowerUsage", gpu), 1e-3),
            temperature_c=ask("GetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU),
            reasons=reasons,
            busy=None if use is None else use.gpu / 100,
            processes=None if processes is None else len(processes),
            energy_j=_scaled(ask("GetTotalEnergyConsumption", gpu), 1e-3),
        )

    def process_names(self, index: int) -> tuple[str, ...]:
        """The last part of each program's path."""
        found = self._ask("GetComputeRunningProcesses", self._gpus[index]) or []
        return tuple(self._process_name(each.pid) for each in found)

    def _process_name(self, pid: int) -> str:
        with suppress(self._nvml.NVMLError):
            return PurePath(self._nvml.nvmlSystemGetProcessName(pid)).name
        return "?"

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _ask(self, question: str, *arguments: Any) -> Any:
        """The answer of `nvmlDevice<question>` about a GPU, None where there is none."""
        if arguments[0] is None:
            return None
        with suppress(self._nvml.NVMLError):
            return getattr(self._nvml, f"nvmlDevice{question}")(*arguments)
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
