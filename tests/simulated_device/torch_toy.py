"""A simulated accelerator of torch, the device `toy`: asynchronous, with memory of its own.

Operators are computed on the CPU at once. The device takes OPERATOR_S for each, one after another:
`synchronize` and copies to the host sleep until it is done. Without waiting, a timer measures the launch.

With this folder in PYTHONPATH, `import torch` registers the device, as it does for the package of a vendor.
These variables change it:
- TOY_BYTES: the size of its memory;
- TOY_LOST: the number of operators after which the device is lost;
- TOY_HUNG: the number of operators after which the device never finishes;
- TOY_COARSE: if it is 1, products are computed in bfloat16;
- TOY_QUEUES: a folder of files, one per process, with the time at which its queue is empty.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

NAME = "toy"
OPERATOR_S = 1e-3
FOREVER_S = 1e6
READING = frozenset({"aten::_local_scalar_dense", "aten::equal", "aten::nonzero"})  # results are on the host
PRODUCTS = frozenset({"aten::mm", "aten::bmm", "aten::addmm"})
TIME = struct.Struct("d")


class Queue:
    """Work in flight, by the time of `time.monotonic` at which it is done."""

    def __init__(self) -> None:
        self.done_s = 0.0
        self.operators = 0
        self._shared: mmap.mmap | None = None
        self._pid = 0  # of the process that opened `_shared`: a fork has another file

    def add(self, seconds: float) -> None:
        self.operators += 1
        if 0 < int(os.environ.get("TOY_LOST", "0")) < self.operators:
            raise RuntimeError("toy: the device is lost")
        if 0 < int(os.environ.get("TOY_HUNG", "0")) < self.operators:
            seconds = FOREVER_S
        self.done_s = max(self.done_s, time.monotonic()) + seconds
        if folder := os.environ.get("TOY_QUEUES"):
            self._publish(Path(folder))

    def wait(self) -> None:
        if (remaining_s := self.done_s - time.monotonic()) > 0:
            time.sleep(remaining_s)

    def _publish(self, folder: Path) -> None:
        if self._shared is None or self._pid != os.getpid():
            self._pid = os.getpid()
            path = folder / str(self._pid)
            path.write_bytes(TIME.pack(0.0))
            with path.open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), TIME.size)
        TIME.pack_into(self._shared, 0, self.done_s)


class Memory:
    """Bytes of the storages on the device."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self._storages: set[int] = set()

    def hold(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage until it is freed. Raises RuntimeError if the memory is full."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._storages:
            return
        capacity = int(os.environ.get("TOY_BYTES", str(2**40)))
        if self.used + storage.nbytes() > capacity:
            raise RuntimeError(f"toy: out of memory: {self.used} of {capacity} bytes are used")
        self._storages.add(storage._cdata)
        self.used += storage.nbytes()
        self.peak = max(self.peak, self.used)
        weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.used -= size


QUEUE, MEMORY = Queue(), Memory()


class Module:
    """The module `torch.toy`."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return "Simulated accelerator"

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        QUEUE.wait()

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        MEMORY.peak = MEMORY.used

    @staticmethod
    def max_memory_allocated(device: Any = None) -> int:
        return MEMORY.peak


class DeviceTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor on the device; `values` holds its numbers."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, requires_grad: bool = False) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(),
            dtype=values.dtype, device=torch.device(NAME, 0), requires_grad=requires_grad,
        )  # fmt: skip
        MEMORY.hold(values)
        tensor.values = values
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(operator, args, kwargs or {})


def execute(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; results that stay on the device are ready when its queue is empty."""
    name, device = operator._schema.name, kwargs.get("device")
    to_host = name == "aten::_to_copy" and device is not None and torch.device(device).type == "cpu"
    into_host = name == "aten::copy_" and not isinstance(args[0], DeviceTensor)
    if to_host or into_host or name in READING:
        QUEUE.wait()
    host_kwargs = {
        key: "cpu" if key == "device" else value for key, value in kwargs.items() if key != "pin_memory"
    }
    tensors = {id(argument.values): argument for argument in args if isinstance(argument, DeviceTensor)}
    host_args, host_kwargs = tree_map_only(DeviceTensor, lambda tensor: tensor.values, (args, host_kwargs))
    result = _product(operator, host_args) if _is_coarse(name) else operator(*host_args, **host_kwargs)
    if to_host or into_host:
        return result
    QUEUE.add(OPERATOR_S)

    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        return tensors[id(tensor)] if id(tensor) in tensors else DeviceTensor(tensor)

    return tree_map_only(torch.Tensor, on_device, result)


def _is_coarse(name: str) -> bool:
    return name in PRODUCTS and os.environ.get("TOY_COARSE") == "1"


def _product(operator: Any, args: Any) -> torch.Tensor:
    dtype = args[-1].dtype
    result: torch.Tensor = operator(*(argument.to(torch.bfloat16) for argument in args)).to(dtype)
    return result


def _factory(operator: Any) -> Any:
    def create(*args: Any, **kwargs: Any) -> DeviceTensor:
        options = {
            key: value for key, value in kwargs.items() if key not in ("device", "pin_memory", "layout")
        }
        return DeviceTensor(operator(*args, **options, device="cpu"))

    return create


LIBRARIES: list[Any] = []  # operators are registered as long as their library exists


def register() -> None:
    """Entry point `torch.backends`."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    torch.__future__.set_swap_module_params_on_conversion(True)
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _factory(torch.ops.aten.empty.memory_format), "PrivateUse1")
    library.impl("empty_strided", _factory(torch.ops.aten.empty_strided.default), "PrivateUse1")
    LIBRARIES.append(library)
