"""Accelerators of torch besides NVIDIA's: `mps`, `xpu`, `npu`, AMD's, and those of separate packages.

They are driven by the functions that every torch device module has. AMD's are `rocm:0` here and `cuda:0` in
torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from benchbench.errors import Unsupported
from benchbench.model.device import ROCM, Device, DeviceClass, kind_of

KNOWN_KINDS = ("mps", "xpu")  # of torch itself, also before `torch.accelerator` (2.6)
UNNAMED = "privateuseone"  # torch's name for an accelerator of a separate package that is not installed
# Kind → activity of torch.profiler. Accelerators of separate packages use the one of PrivateUse1.
ACTIVITIES = {ROCM: "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}


def is_rocm() -> bool:
    """True if torch is built for AMD's GPUs, which it calls `cuda`."""
    import torch

    return getattr(torch.version, "hip", None) is not None


def torch_device(name: str) -> str:
    """Name of a device in torch: `cuda:0` for `rocm:0`."""
    return name.replace(ROCM, "cuda", 1) if kind_of(name) == ROCM else name


def device_name(torch_name: str) -> str:
    """Name of a device of torch here: `rocm:0` for `cuda:0` if torch is built for AMD's GPUs."""
    return torch_name.replace("cuda", ROCM, 1) if torch_name.startswith("cuda") and is_rocm() else torch_name


def other_accelerators() -> list[Device]:
    """Devices of every accelerator that torch finds, except NVIDIA's."""
    return [
        Device(
            name=f"{kind}:{index}",
            device_class=DeviceClass.ACCELERATOR,
            model=model_of(f"{kind}:{index}"),
            note=_version_note(kind),
        )
        for kind in _kinds()
        for index in range(_device_count(kind))
    ]


def _kinds() -> list[str]:
    import torch

    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    private = torch._C._get_privateuse1_backend_name()
    names = [ROCM] if is_rocm() else []
    names += [*KNOWN_KINDS, *([current.type] if current is not None else []), private]
    return [name for name in dict.fromkeys(names) if name not in ("cuda", UNNAMED)]


def device_module(name: str) -> Any:
    """Torch's module for the kind of a device, such as `torch.xpu`; None if it has none."""
    import torch

    try:
        return torch.get_device_module(kind_of(torch_device(name)))
    except (RuntimeError, AttributeError):
        return None


def _device_count(kind: str) -> int:
    module = device_module(kind)
    if module is None or not getattr(module, "is_available", lambda: True)():
        return 0
    return int(getattr(module, "device_count", lambda: 1)())


def model_of(name: str) -> str:
    """Name of a device's hardware, or "" if torch does not know it."""
    import torch

    if kind_of(name) == "mps":
        return str(getattr(torch.backends.mps, "get_name", str)())
    get_name = getattr(device_module(name), "get_device_name", None)
    return str(get_name(int(name.partition(":")[2] or 0))) if get_name else ""


def _version_note(kind: str) -> str:
    import torch

    return f"ROCm {torch.version.hip}" if kind == ROCM else ""


def waiting_for(name: str) -> Callable[[], None]:
    """Function that waits for a device. Raises Unsupported."""
    import torch

    synchronize = getattr(device_module(name), "synchronize", None)
    if synchronize is None:
        raise Unsupported(f"torch has no way to wait for the device {name}")
    takes_device = bool(inspect.signature(synchronize).parameters)
    return partial(synchronize, torch.device(torch_device(name))) if takes_device else synchronize


def require_compiler(kind: str) -> None:
    """Raise Unsupported if inductor, the compiler of torch.compile, has no code generator for the kind."""
    from torch._inductor.codegen import common

    common.init_backend_registration()
    if common.get_scheduling_for_device(torch_device(kind)) is None:
        raise Unsupported(f"torch.compile's inductor generates no code for {kind}")


def turn_off_reduced_precision(name: str) -> None:
    """Turn off the switches of a device's own libraries that multiply float32 in fewer bits.

    Ascend's convolutions use HF32 by default (torch_npu, `torch.npu.conv.allow_hf32`).
    """
    import torch

    kind = kind_of(name)
    for parent in (device_module(name), getattr(torch.backends, kind, None)):
        for library in (getattr(parent, "matmul", None), getattr(parent, "conv", None)):
            for switch in ("allow_hf32", "allow_tf32"):
                if hasattr(library, switch):
                    setattr(library, switch, False)


def profiler_activity(name: str) -> Any:
    """Activity of torch.profiler that records this kind of device. Raises Unsupported."""
    import torch

    activity = getattr(torch.profiler.ProfilerActivity, ACTIVITIES.get(kind_of(name), "PrivateUse1"), None)
    if activity is None or activity not in torch.profiler.supported_activities():
        raise Unsupported(f"torch's profiler, as installed, records nothing on {name}")
    return activity
