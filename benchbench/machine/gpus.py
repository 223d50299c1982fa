"""Management libraries of NVIDIA's and AMD's GPUs: a protocol, and adapters for `pynvml` and `amdsmi`.

Code that queries GPUs takes an `Nvml`, so tests need no GPU. Values that the GPU or driver does not support
are None. The package `amdsmi` belongs to ROCm (/opt/rocm/share/amd_smi).
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
AMD_UNKNOWN = "power, clocks and energy of AMD's GPUs are unknown"
HIP_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # HIP reads the second if the first is not set
ROCR_VISIBLE = "ROCR_VISIBLE_DEVICES"  # hides GPUs from HIP, which then numbers the others


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


def connect_to_amd(load: Callable[[], Any] | None = None) -> Nvml | str:
    """Connect to amdsmi, or return the reason why it is not available."""
    try:
        module = load() if load else import_module("amdsmi")
    except (ImportError, KeyError, OSError):  # it raises KeyError without the library of ROCm
        return f"{AMD_UNKNOWN}: amdsmi is not installed"
    try:
        module.amdsmi_init()
        return Amdsmi(module)
    except module.AmdSmiException as error:
        return f"{AMD_UNKNOWN}: amdsmi does not start: {error}"


def amd_gpu_index(device: str, gpus: Sequence[GpuSettings], environment: Mapping[str, str]) -> int | str:
    """Index in amdsmi of a device such as `rocm:0`, or the reason why it is unknown.

    HIP numbers the visible GPUs (ROCm's guide "GPU isolation techniques").
    """
    number = device.partition(":")[2] or "0"
    for name in (next((name for name in HIP_VISIBLE if name in environment), ""), ROCR_VISIBLE):
        if name in environment:
            visible = [entry.strip() for entry in environment[name].split(",")]
            number = visible[int(number)] if number.isdecimal() and int(number) < len(visible) else ""
    matches = [index for index, gpu in enumerate(gpus) if number and gpu.uuid == number]
    if len(matches) == 1:
        return matches[0]
    if not number.isdecimal() or int(number) >= len(gpus):
        return f"amdsmi has no GPU that is {device}"
    if len({gpu.name for gpu in gpus}) > 1:
        return f"cannot tell which GPU is {device}: several kinds are installed"
    return int(number)


class Amdsmi:
    """`Nvml` based on `amdsmi`."""

    def __init__(self, module: Any) -> None:
        """`module` is amdsmi, initialised."""
        self._module = module
        self._gpus = list(module.amdsmi_get_processor_handles())

    def count(self) -> int:
        return len(self._gpus)

    def settings(self, index: int) -> GpuSettings:
        cap = self._query("get_power_cap_info", index)
        return GpuSettings(
            name=str(self._query("get_gpu_asic_info", index).get("market_name", LOST)),
            uuid=self._uuid(index),
            max_sm_mhz=_number(self._clock(index, "GFX").get("max_clk")),
            set_sm_mhz=None,
            power_limit_w=_scaled(cap.get("power_cap"), 1e-6),
            default_power_limit_w=_scaled(cap.get("default_power_cap"), 1e-6),
            slowdown_c=None,
            persistent=None,
            mig=None,
        )

    def state(self, index: int) -> GpuState:
        power = self._query("get_power_info", index)
        watts = (_number(power.get(name)) for name in ("current_socket_power", "average_socket_power"))
        energy = self._query("get_energy_count", index)
        joules = _scaled(energy.get("counter_resolution"), 1e-6)  # of one count of the accumulator
        return GpuState(
            sm_mhz=self._current_mhz(index, "GFX"),
            memory_mhz=self._current_mhz(index, "MEM"),
            power_w=next((value for value in watts if value is not None), None),
            temperature_c=self._temperature(index),
            reasons=None,
            busy=_scaled(self._query("get_gpu_activity", index).get("gfx_activity"), 0.01),
            processes=self._process_count(index),
            energy_j=_scaled(energy.get("energy_accumulator"), joules) if joules else None,
        )

    def process_names(self, index: int) -> tuple[str, ...]:
        processes = self._call("get_gpu_process_list", index) or []
        return tuple(
            str(process.get("name", "?")) if isinstance(process, dict) else "?" for process in processes
        )

    def close(self) -> None:
        with suppress(self._module.AmdSmiException):
            self._module.amdsmi_shut_down()

    def _uuid(self, index: int) -> str:
        return str(self._call("get_gpu_device_uuid", index) or "")

    def _clock(self, index: int, kind: str) -> Mapping[str, Any]:
        return self._query("get_clock_info", index, getattr(self._module.AmdSmiClkType, kind))

    def _current_mhz(self, index: int, kind: str) -> int | None:
        clock = self._clock(index, kind)
        return _number(clock.get("clk", clock.get("cur_clk")))  # its name before ROCm 6.2

    def _temperature(self, index: int) -> int | None:
        kinds, metric = self._module.AmdSmiTemperatureType, self._module.AmdSmiTemperatureMetric.CURRENT
        values = (
            self._call("get_temp_metric", index, getattr(kinds, kind), metric) for kind in ("HOTSPOT", "EDGE")
        )
        return next((number for value in values if (number := _number(value)) is not None), None)

    def _process_count(self, index: int) -> int | None:
        processes = self._call("get_gpu_process_list", index)
        return None if processes is None else len(processes)

    def _query(self, function: str, index: int, *arguments: Any) -> Mapping[str, Any]:
        """Result of a function that returns a dictionary; empty if it fails."""
        result = self._call(function, index, *arguments)
        return result if isinstance(result, dict) else {}

    def _call(self, function: str, index: int, *arguments: Any) -> Any:
        """Result of `amdsmi_<function>` for a GPU; None if it fails."""
        with suppress(self._module.AmdSmiException, AttributeError):
            return getattr(self._module, f"amdsmi_{function}")(self._gpus[index], *arguments)
        return None


def _number(value: Any) -> int | None:
    """An integer; None for `N/A`, and for the largest one, which means that the value is not supported."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value not in (0xFFFF, 0xFFFFFFFF) else None


def _scaled(value: Any, factor: float) -> float | None:
    return value * factor if isinstance(value, int | float) and not isinstance(value, bool) else None
