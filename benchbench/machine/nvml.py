"""NVIDIA's management library: a protocol of the needed functions, and an adapter for `pynvml`.

Code that queries GPUs takes an `Nvml`, so tests need no GPU. Values that the GPU or driver does not support
are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any, Protocol

POWER_CAP = "power cap"
THROTTLED = {  # bits of nvmlClocksEventReasons (nvml.h) that lower the clock
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "thermal slowdown",
    0x80: "power brake",
}

CUDA = ("cuda", "gpu", "tensorrt")  # names of NVIDIA devices in frameworks
MIG = "NVML's counters are the whole GPU's, not a MIG slice's"
LOST = ""  # name of a GPU that the driver has lost (Xid 79: it fell off the bus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """State of a GPU. `reasons` are bits of nvmlClocksEventReasons; `busy` is a fraction."""

    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    reasons: int | None
    busy: float | None
    processes: int | None  # number of processes computing on it
    energy_j: float | None  # since the driver was loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings of a GPU. `set_sm_mhz` is the clock requested for load."""

    name: str
    uuid: str
    max_sm_mhz: int | None
    set_sm_mhz: int | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    slowdown_c: int | None  # temperature at which the hardware slows down
    persistent: bool | None
    mig: bool | None


class Nvml(Protocol):
    """Interface to the GPUs, numbered in the order of their PCI addresses."""

    def count(self) -> int:
        """Number of GPUs."""

    def settings(self, index: int) -> GpuSettings:
        """Settings of a GPU."""

    def state(self, index: int) -> GpuState:
        """Current state of a GPU."""

    def process_names(self, index: int) -> tuple[str, ...]:
        """Names of the programs computing on a GPU, without folders; `?` if unknown."""

    def close(self) -> None:
        """Release the driver. No method may be called afterwards."""


def connect(load: Callable[[], Any] | None = None) -> Nvml | str:
    """Connect to NVML, or return the reason why it is not available."""
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
    """NVML index of a framework's device (`cuda:0`, `gpu:1`), or the reason why it is unknown.

    CUDA numbers the GPUs in CUDA_VISIBLE_DEVICES, fastest first unless CUDA_DEVICE_ORDER is set (CUDA
    programming guide, environment variables). If a GPU is in MIG mode, CUDA computes on slices of it.
    """
    kind, _, digits = device.partition(":")
    if kind not in CUDA:
        return f"NVML does not know {device}"
    number = digits or "0"
    if "CUDA_VISIBLE_DEVICES" in environment:
        visible = [uuid.strip() for uuid in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        number = visible[int(number)] if int(number) < len(visible) else ""
    matches = [index for index, gpu in enumerate(gpus) if number and gpu.uuid.startswith(number)]
    if len(matches) == 1:
        return MIG if gpus[matches[0]].mig else matches[0]
    if number.startswith("MIG-"):
        return MIG
    if any(gpu.name == LOST for gpu in gpus):
        return f"cannot tell which GPU is {device}: the driver has lost one, so CUDA numbers them otherwise"
    if not number.isdecimal() or int(number) >= len(gpus):
        return f"NVML has no GPU that is {device}"
    is_uniform = len({gpu.name for gpu in gpus}) == 1
    if is_uniform or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return MIG if gpus[int(number)].mig else int(number)
    return f"cannot tell which GPU is {device} without CUDA_DEVICE_ORDER=PCI_BUS_ID"


class Pynvml:
    """`Nvml` based on `pynvml`. Unsupported values are None."""

    def __init__(self, module: Any) -> None:
        """`module` is pynvml, initialised."""
        self._nvml = module
        self._gpus = [self._handle(index) for index in range(module.nvmlDeviceGetCount())]

    def _handle(self, index: int) -> Any:
        """Handle of a GPU; None if the driver has lost it."""
        with suppress(self._nvml.NVMLError):
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        return None

    def count(self) -> int:
        return len(self._gpus)

    def settings(self, index: int) -> GpuSettings:
        gpu, nvml, query = self._gpus[index], self._nvml, self._query
        modes = {
            "persistent": query("GetPersistenceMode", gpu),
            "mig": query("GetMigMode", gpu),
        }
        current = {name: mode[0] if isinstance(mode, list | tuple) else mode for name, mode in modes.items()}
        return GpuSettings(
            name=query("GetName", gpu) or LOST,
            uuid=query("GetUUID", gpu) or "",
            max_sm_mhz=query("GetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM),
            set_sm_mhz=query("GetApplicationsClock", gpu, nvml.NVML_CLOCK_SM),
            power_limit_w=_scaled(query("GetEnforcedPowerLimit", gpu), 1e-3),
            default_power_limit_w=_scaled(query("GetPowerManagementDefaultLimit", gpu), 1e-3),
            slowdown_c=query("GetTemperatureThreshold", gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            **{name: None if mode is None else bool(mode) for name, mode in current.items()},
        )

    def state(self, index: int) -> GpuState:
        gpu, nvml, query = self._gpus[index], self._nvml, self._query
        use = query("GetUtilizationRates", gpu)
        processes = query("GetComputeRunningProcesses", gpu)
        reasons = query("GetCurrentClocksEventReasons", gpu)
        if reasons is None:  # drivers before 535 know it by its old name
            reasons = query("GetCurrentClocksThrottleReasons", gpu)
        return GpuState(
            sm_mhz=query("GetClockInfo", gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=query("GetClockInfo", gpu, nvml.NVML_CLOCK_MEM),
            power_w=_scaled(query("GetPowerUsage", gpu), 1e-3),
            temperature_c=query("GetTemperature", gpu, nvml.NVML_TEMPERATURE_GPU),
            reasons=reasons,
            busy=None if use is None else use.gpu / 100,
            processes=None if processes is None else len(processes),
            energy_j=_scaled(query("GetTotalEnergyConsumption", gpu), 1e-3),
        )

    def process_names(self, index: int) -> tuple[str, ...]:
        """Names of the programs' files."""
        processes = self._query("GetComputeRunningProcesses", self._gpus[index]) or []
        return tuple(self._process_name(process.pid) for process in processes)

    def _process_name(self, pid: int) -> str:
        with suppress(self._nvml.NVMLError):
            return PurePath(self._nvml.nvmlSystemGetProcessName(pid)).name
        return "?"

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _query(self, function: str, *arguments: Any) -> Any:
        """Result of `nvmlDevice<function>` for a GPU; None if it fails."""
        if arguments[0] is None:
            return None
        with suppress(self._nvml.NVMLError):
            return getattr(self._nvml, f"nvmlDevice{function}")(*arguments)
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
