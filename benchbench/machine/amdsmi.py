"""AMD's management library, through its Python package `amdsmi`, as an `Nvml`.

The package belongs to ROCm (/opt/rocm/share/amd_smi). Unsupported values are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from benchbench.machine.nvml import LOST, GpuSettings, GpuState, Nvml

UNKNOWN = "power, clocks and energy of AMD's GPUs are unknown"
VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # HIP reads the second if the first is not set
OF_RUNTIME = "ROCR_VISIBLE_DEVICES"  # hides GPUs from HIP, which then numbers the others


def connect(load: Callable[[], Any] | None = None) -> Nvml | str:
    """Connect to amdsmi, or return the reason why it is not available."""
    try:
        module = load() if load else import_module("amdsmi")
    except (ImportError, KeyError, OSError):  # it raises KeyError without the library of ROCm
        return f"{UNKNOWN}: amdsmi is not installed"
    try:
        module.amdsmi_init()
        return Amdsmi(module)
    except module.AmdSmiException as error:
        return f"{UNKNOWN}: amdsmi does not start: {error}"


def gpu_index(device: str, gpus: Sequence[GpuSettings], environment: Mapping[str, str]) -> int | str:
    """Index in amdsmi of a device such as `rocm:0`, or the reason why it is unknown.

    HIP numbers the visible GPUs (ROCm's guide "GPU isolation techniques").
    """
    number = device.partition(":")[2] or "0"
    for name in (next((name for name in VISIBLE if name in environment), ""), OF_RUNTIME):
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
