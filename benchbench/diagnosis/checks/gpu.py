"""Check the GPUs: other programs that use them, and limits. One observation per GPU; none without NVML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchbench.diagnosis.checks.base import Host, Level, Observation, graded, unknown_result
from benchbench.format import count_of
from benchbench.machine import kernel
from benchbench.machine.nvml import THROTTLED, GpuSettings, GpuState, Nvml

# Packages of NVIDIA whose major version is that of CUDA.
VERSIONED = ("cuda-toolkit", "nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
MAX_NAMED = 3  # packages per version of CUDA


def present(host: Host) -> Sequence[Observation]:
    """Check that NVML answers, and list the GPUs."""
    if isinstance(host.nvml, str):
        return unknown_result(host.nvml)
    count = host.nvml.count()
    names = ", ".join(f"{index}: {host.nvml.settings(index).name}" for index in range(count))
    return (Observation(Level.OK, names or "none", count, "GPUs"),)


def cuda_libraries(host: Host) -> Sequence[Observation]:
    """Check that the packages with CUDA's libraries are of one major version. No result without any."""
    packages: dict[str, list[str]] = {}
    for name, version in sorted(host.packages.items()):
        if major := _cuda_major(name, version):
            packages.setdefault(major, []).append(name)
    texts = [
        f"CUDA {major} ({', '.join(names[:MAX_NAMED])}{', …' if len(names) > MAX_NAMED else ''})"
        for major, names in sorted(packages.items())
    ]
    level = Level.WARNING if len(packages) > 1 else Level.OK
    return (Observation(level, " and ".join(texts), len(packages), "versions"),) if packages else ()


def _cuda_major(package: str, version: str) -> str:
    """Major version of CUDA that a package contains or is built for, or "".

    Packages for CUDA 12 have it in their name. Those for CUDA 13 do not, and some of their libraries have
    other version numbers.
    """
    if named := re.fullmatch(r"(?:nvidia-.*-cu|jax-cuda)([0-9]{2})(?:-.*)?", package):
        return named[1]
    if package == "torch":
        built = re.search(r"\+cu([0-9]{2})[0-9]$", version)
        return built[1] if built else ""
    return version.partition(".")[0] if package in VERSIONED else ""


def of_amd(host: Host) -> Sequence[Observation]:
    """Warn about AMD GPUs, counted by the nodes of their compute driver."""
    nodes = (host.root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    count = sum(bool(kernel.read_number(node)) for node in nodes)  # 0 for a CPU
    return (Observation(Level.WARNING, f"{count} of AMD", count, "GPUs"),) if count else ()


def processes(host: Host) -> Sequence[Observation]:
    """Check for processes that compute on a GPU before the measurement."""

    def look(nvml: Nvml, index: int) -> Observation:
        count = nvml.state(index).processes
        if count is None:
            return Observation(Level.UNKNOWN, "its processes are not shown")
        names = f": {', '.join(nvml.process_names(index))}" if count else ""
        text = f"{count_of(count, 'process')} {'computes' if count == 1 else 'compute'} on it{names}"
        return Observation(graded(count, 1), text, count, "processes")

    return _observe_gpus(host, look)


def clocks(host: Host) -> Sequence[Observation]:
    """Compare the requested SM clock with the highest, and show the current one."""

    def judge(gpu: GpuSettings, now: GpuState) -> Observation:
        if gpu.max_sm_mhz is None:
            return Observation(Level.UNKNOWN, "its clocks are not shown")
        text = f"SM clock at most {gpu.max_sm_mhz} MHz"
        if now.sm_mhz is not None:
            text += f", now {now.sm_mhz}"
        if gpu.set_sm_mhz is None:
            return Observation(Level.OK, text, gpu.max_sm_mhz, "MHz")
        level = graded(gpu.max_sm_mhz / gpu.set_sm_mhz, 1.01) if gpu.set_sm_mhz else Level.WARNING
        return Observation(level, f"{text}, set to {gpu.set_sm_mhz}", gpu.set_sm_mhz, "MHz")

    return _judge_gpus(host, judge)


def power(host: Host) -> Sequence[Observation]:
    """Compare the power limit with its default."""

    def judge(gpu: GpuSettings, _now: GpuState) -> Observation:
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if not limit or not default:
            return Observation(Level.UNKNOWN, "its power limit is not shown")
        level = graded(default / limit, 1.01)
        return Observation(level, f"power limit {limit:.0f} W of {default:.0f} W", limit, "W")

    return _judge_gpus(host, judge)


def heat(host: Host) -> Sequence[Observation]:
    """Check for reasons that slow an idle GPU down, and the distance to its slow-down temperature."""

    def judge(gpu: GpuSettings, now: GpuState) -> Observation:
        if now.temperature_c is None:
            return Observation(Level.UNKNOWN, "its temperature is not shown")
        reasons = dict.fromkeys(name for bit, name in THROTTLED.items() if (now.reasons or 0) & bit)
        text = f"{now.temperature_c} °C" + (f", limited by {', '.join(reasons)}" if reasons else "")
        if gpu.slowdown_c:
            text += f"; slows itself at {gpu.slowdown_c} °C"
        close = gpu.slowdown_c is not None and now.temperature_c >= gpu.slowdown_c - 10
        level = Level.PROBLEM if reasons else Level.WARNING if close else Level.OK
        return Observation(level, text, now.temperature_c, "°C")

    return _judge_gpus(host, judge)


def persistence(host: Host) -> Sequence[Observation]:
    """Check that the driver stays loaded while the GPU is idle."""
    return _switch(host, "persistence mode", lambda gpu: gpu.persistent, good=True)


def slices(host: Host) -> Sequence[Observation]:
    """Check whether the GPU is divided."""
    return _switch(host, "MIG", lambda gpu: gpu.mig, good=False)


def ecc(host: Host) -> Sequence[Observation]:
    """Report error correction, which reduces the bandwidth of some GPUs. Always ok."""
    return _switch(host, "ECC", lambda gpu: gpu.ecc, good=None)


def _switch(
    host: Host, name: str, value: Callable[[GpuSettings], bool | None], good: bool | None
) -> Sequence[Observation]:
    def judge(gpu: GpuSettings, _now: GpuState) -> Observation:
        is_on = value(gpu)
        if is_on is None:
            return Observation(Level.OK, f"it has no {name}")
        level = Level.OK if good in (None, is_on) else Level.WARNING
        return Observation(level, f"{name} is {'on' if is_on else 'off'}")

    return _judge_gpus(host, judge)


def _judge_gpus(host: Host, judge: Callable[[GpuSettings, GpuState], Observation]) -> Sequence[Observation]:
    return _observe_gpus(host, lambda nvml, index: judge(nvml.settings(index), nvml.state(index)))


def _observe_gpus(host: Host, look: Callable[[Nvml, int], Observation]) -> Sequence[Observation]:
    if isinstance(host.nvml, str):
        return ()
    observations = [look(host.nvml, index) for index in range(host.nvml.count())]
    return [
        replace(observation, text=f"GPU {index}: {observation.text}")
        for index, observation in enumerate(observations)
    ]
