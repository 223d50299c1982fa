"""TensorFlow on CPU and GPU."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Array, Floats, Indices
from benchbench.backends._results import parts_of
from benchbench.backends.base import (
    FULL_MEMORY,
    Backend,
    PrecisionMismatch,
    Session,
    host_cache_bytes,
    require_precise_product,
)
from benchbench.errors import Unsupported
from benchbench.machine.peaks import LARGEST_CACHE
from benchbench.model.case import AMP, Cache, Dtype, Phase
from benchbench.model.device import ROCM, Device, DeviceClass, StartUp, is_verified, kind_of
from benchbench.model.measurement import Memory
from benchbench.model.placement import Spread, Strategy, World
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.model.user_model import KERAS
from benchbench.traces import xla as _xspans

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload

# Modules that `import tensorflow` imports without need, half a second or more each: JAX for TFLite's
# converter, even if it is broken, and Matplotlib for Keras's image galleries.
UNUSED = ("jax", "matplotlib")

KERAS_CODE = 'import os\nos.environ["KERAS_BACKEND"] = "tensorflow"'  # lines of `Backend.model_code`


class TensorFlow(Backend):
    """`function` is tf.function, and `xla` adds jit_compile=True."""

    summary = "TensorFlow: tf.function, XLA, or eager"
    framework = "tensorflow"
    modes = ("function", "xla", "eager")
    model_modes = modes
    model_code = MappingProxyType(
        {
            (KERAS, "eager"): f"{KERAS_CODE}\noutput = model(<CALL>, training=False)",
            (KERAS, "function"): f"{KERAS_CODE}\nimport tensorflow as tf\n"
            "run = tf.function(lambda inputs: model(<CALL>, training=False))\noutput = run(inputs)",
            (KERAS, "xla"): f"{KERAS_CODE}\nimport tensorflow as tf\n"
            "run = tf.function(lambda inputs: model(<CALL>, training=False), jit_compile=True)\n"
            "output = run(inputs)",
        }
    )
    runs_unused = frozenset({"eager"})
    device_kinds = ("cpu", "gpu", ROCM, "metal", "xpu")
    caches = tuple(Cache)
    distributions = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos")
    requirements = ("tensorflow", "numpy")
    builds = MappingProxyType(
        {
            "cpu": ("tensorflow-cpu", "numpy"),
            "cuda": ("tensorflow[and-cuda]", "numpy"),
        }
    )
    extra = "tensorflow"
    start_up = StartUp(import_s=4.0, call_s=0.06, layer_s=0.005, profile_s=0.4)
    spread = Spread.DEVICES
    full_memory = (
        *FULL_MEMORY,
        "OOM when allocating",
        "ran out of memory",
    )  # messages of kernels and of the allocator
    undividable = MappingProxyType({Strategy.PIPELINE: "TensorFlow has no schedule of stages"})

    def join(self, world: World, device: str) -> None:
        """Split the host into several logical devices before TensorFlow starts."""
        import tensorflow as tf

        if device == "cpu":
            (cpu,) = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration() for _ in range(world.devices)]
            tf.config.set_logical_device_configuration(cpu, logical)

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Set the operations' threads, and log only warnings and errors."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(settings.threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # other frameworks use the same GPU
        }

    def load(self) -> str:
        with _import_blocked(*UNUSED):
            import tensorflow as tf

        return str(tf.__version__)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        import tensorflow as tf

        devices = [Device(name="cpu", device_class=DeviceClass.CPU, model="")]
        kinds = _kinds_of(tf)
        for kind, tf_kind in kinds.items():
            for index, found in enumerate(tf.config.list_physical_devices(tf_kind)):
                details = tf.config.experimental.get_device_details(found)
                model = str(details.get("device_name", tf_kind))
                name = f"{kind}:{index}"
                devices.append(Device(name=name, device_class=DeviceClass.ACCELERATOR, model=model))
        if any(kind_of(device.name) == "gpu" for device in devices):
            return devices, {}
        if "gpu" in kinds:
            return devices, {"gpu": "no GPU is visible to TensorFlow"}
        build = "is not built for CUDA" if len(devices) > 1 else "is a CPU build"
        return devices, {"gpu": f"this TensorFlow {build}"}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Set threads and TF32 before the first operation."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        if device == "cpu" and tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")  # otherwise TensorFlow reserves their memory, too
        if dtype is Dtype.TF32:
            _require_tensor_cores(device)
        tf.config.experimental.enable_tensor_float_32_execution(dtype is Dtype.TF32)
        return TensorFlowSession(device, dtype, mode)

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Build the program with constants and variables on the session's device.

        For several devices, it is built in the scope of a MirroredStrategy: tf.distribute.get_strategy().
        """
        import tensorflow as tf

        assert isinstance(session, TensorFlowSession)
        if session.world.devices > 1 and workload.phase is Phase.TRAIN and session.mode == "xla":
            raise Unsupported("XLA compiles for one device, and replicas have their variables on several")
        with session.strategy.scope() if session.world.devices > 1 else tf.device(session.device):
            return super().program(session, workload, arrays)

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Session]:
        """Attach to an accelerator of the result, else to TensorFlow's first GPU, else to the CPU."""
        devices_by_name = {known_device.name: known_device for known_device in self.devices()[0]}
        holders = _accelerators_of(result)
        name = device or next(
            iter([*holders, *(candidate for candidate in devices_by_name if candidate != "cpu")]), "cpu"
        )
        for candidate in (name, *holders):
            if candidate not in devices_by_name:
                raise Unsupported(
                    f"TensorFlow has no device {candidate!r}, only {', '.join(devices_by_name)}"
                )
        session = SharedTensorFlowSession(name, Dtype.FLOAT32, "eager")
        session.is_asynchronous = bool(holders) or name != "cpu"
        return devices_by_name[name], session

    def out_of_memory(self, error: BaseException) -> bool:
        """True for ResourceExhaustedError on any device, and for errors of CUDA's libraries."""
        import tensorflow as tf

        return isinstance(error, tf.errors.ResourceExhaustedError) or super().out_of_memory(error)


def _accelerators_of(result: Any) -> list[str]:
    """Accelerators of the tensors in a result, such as `gpu:0`."""
    parts = list(parts_of(result))
    if not parts:
        return []
    import tensorflow as tf

    tensors = [part for part in parts if isinstance(part, tf.Tensor | tf.Variable)]
    names = [tensor.device.rpartition("device:")[2].lower() for tensor in tensors]
    kinds = {tf_kind.lower(): kind for kind, tf_kind in _kinds_of(tf).items()}
    return [
        f"{kinds.get(kind_of(name), kind_of(name))}{name[len(kind_of(name)) :]}"
        for name in names
        if name and not name.startswith("cpu")
    ]


class TensorFlowSession(Session):
    """A device; every operation of the case is placed on it."""

    def __init__(self, device: str, dtype: Dtype, mode: str) -> None:
        """Open a device such as `cpu` or `gpu:0`."""
        import tensorflow as tf

        self._name, self._dtype = device, dtype
        self.device = _placement(device)
        self.dtype = tf.as_dtype(dtype.storage.value)
        self.compute = tf.as_dtype(dtype.compute.value) if dtype in AMP else None
        self.mode = mode
        self.compiler = "tf.function" if mode in ("function", "xla") else ""
        self._tf32 = dtype is Dtype.TF32
        self._accelerator = self.is_asynchronous = device != "cpu"
        self._compiled: list[Any] = []
        self._clearing: Any = None

    def put(self, array: Array) -> Any:
        import numpy as np
        import tensorflow as tf

        floating = np.issubdtype(array.dtype, np.floating)
        with tf.device(self.device):
            return tf.cast(tf.constant(array), self.dtype) if floating else tf.constant(array)

    @cached_property
    def strategy(self) -> Any:
        """MirroredStrategy over the devices of the world."""
        import tensorflow as tf

        kind, _, first = self.device.partition(":")
        numbers = self.world.numbers(int(first or 0))
        return tf.distribute.MirroredStrategy([f"{kind.upper()}:{number}" for number in numbers])

    def put_on_devices(self, rows: Array) -> Any:
        """A value per replica."""
        import numpy as np
        import tensorflow as tf

        floating = np.issubdtype(rows.dtype, np.floating)

        def replica_row(replica: Any) -> Any:
            row = tf.constant(rows[replica.replica_id_in_sync_group])
            return tf.cast(row, self.dtype) if floating else row

        return self.strategy.experimental_distribute_values_from_function(replica_row)

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """A tensor on the CPU, in pageable memory."""
        import numpy as np
        import tensorflow as tf

        if pinned:
            raise Unsupported("TensorFlow decides by itself what memory to pin")
        floating = np.issubdtype(array.dtype, np.floating)
        with tf.device("CPU:0"):
            return tf.cast(tf.constant(array), self.dtype) if floating else tf.constant(array)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Apply tf.function, with or without XLA, or only place the step."""
        import tensorflow as tf

        placed = step if self.world.devices > 1 else self._placed(step)
        if self.mode == "eager":
            return placed
        xla = True if self.mode == "xla" else None
        compiled = tf.function(placed, jit_compile=xla, autograph=False)
        self._compiled.append(compiled)
        return compiled  # type: ignore[no-any-return]

    def _placed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        def placed(*arguments: Any) -> Any:
            with tf.device(self.device):
                return step(*arguments)

        return placed

    def compilations(self) -> int | None:
        """Number of traces of compiled functions; None if operations run one by one."""
        if self.mode not in ("function", "xla"):
            return None
        return sum(int(compiled.experimental_get_tracing_count()) for compiled in self._compiled)

    def wait(self, output: Any) -> None:
        """Wait for GPUs; CPU operations are complete when they return."""
        if self.is_asynchronous:
            import tensorflow as tf

            tf.test.experimental.sync_devices()

    def take(self, output: Any, index: Indices) -> Floats:
        """Gather on the device; a scalar is fetched."""
        import tensorflow as tf

        if not hasattr(output, "dtype"):  # a value per replica; a parameter is equal in all replicas
            return self._take_of_replicas(output, index)
        with tf.device(self.device):
            return self.fetch(tf.gather_nd(output, index) if output.shape.rank else output)

    def _take_of_replicas(self, output: Any, index: Indices) -> Floats:
        import numpy as np
        import tensorflow as tf

        elements = np.empty(len(index))
        for replica, tensor in enumerate(self.strategy.experimental_local_results(output)):
            of_replica = index[:, 0] == replica
            elements[of_replica] = self.fetch(tf.gather_nd(tensor, index[of_replica, 1:]))
        return elements

    def is_finite(self, output: Any) -> bool:
        """True if the parts of all replicas are finite."""
        parts = self.strategy.experimental_local_results(output) if self.world.devices > 1 else (output,)
        return all(super(TensorFlowSession, self).is_finite(part) for part in parts)

    def finished(self, output: Any) -> Any:
        """Zeros; with replicas, the output itself."""
        import tensorflow as tf

        if self.world.devices > 1:
            return output
        with tf.device(self.device):
            return tf.zeros(output.shape, output.dtype)

    def dtype_of(self, output: Any) -> str:
        (first, *_) = (
            self.strategy.experimental_local_results(output) if self.world.devices > 1 else (output,)
        )
        return str(first.dtype.name)

    def fetch(self, output: Any) -> Floats:
        import numpy as np

        return np.asarray(output.numpy(), dtype=np.float64)

    def precision(self) -> dict[str, str]:
        """Read the switch for matrix products and convolutions, and on devices that are not verified the
        precision of a product.
        """
        import tensorflow as tf

        enabled = bool(tf.config.experimental.tensor_float_32_execution_enabled())
        if enabled != self._tf32:
            raise PrecisionMismatch(f"requested TF32 {self._tf32}, TensorFlow reports {enabled}")
        if not is_verified(self._name):
            require_precise_product(self._dtype, self._multiply)
        precision = {"float32_multiply": "tf32" if enabled else "ieee", "storage": self.dtype.name}
        return precision | ({"multiply": self.compute.name} if self.compute else {})

    def _multiply(self, left: Array, right: Array) -> Floats:
        """Product of two matrices in the session's dtype, on the device."""
        import tensorflow as tf

        with tf.device(self.device):
            return self.fetch(tf.matmul(self.put(left), self.put(right)))

    def no_op(self) -> Callable[[], Any]:
        """Add two numbers in a function, whose calls start like XLA's."""
        if not self._accelerator:
            return super().no_op()
        import tensorflow as tf

        with tf.device(self.device):
            number = tf.constant(1.0)
        return partial(tf.function(lambda x: x + 1.0, autograph=False), number)

    def cache_bytes(self) -> int:
        """Size of the CPU's cache, or the largest of any GPU, since TensorFlow does not report it."""
        return LARGEST_CACHE if self._accelerator else host_cache_bytes()

    def flush(self) -> Any:
        """Read one array and write another. Integers of 32 bits would stay on the host."""
        import tensorflow as tf

        with tf.device(self.device):
            if self._clearing is None:
                self._clearing = tf.zeros(self.cleared_bytes() // 4, tf.float32)
            self._clearing = self._clearing + 1.0
        return self._clearing

    def nbytes(self, array: Any) -> int:
        parts = self.strategy.experimental_local_results(array) if self.world.devices > 1 else (array,)
        return sum(int(part.shape.num_elements()) * int(part.dtype.size) for part in parts)

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Use TensorFlow's profiler. XLA's instructions have the names of TensorFlow's operators."""
        import tensorflow as tf

        with _tracing(folder):
            self.wait(step())
            name = f"tf.profiler {tf.__version__}"
            recording = self.record(name, step, iterations, count, tf.profiler.experimental.Trace)
        return _xspans.parse_profile(folder, recording, {})

    def events_of(self, step: Callable[[], Any]) -> int:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            with _tracing(Path(folder)):
                self.wait(step())
            return _xspans.count_events(Path(folder))

    def reset_peak(self) -> None:
        if self._accelerator:
            import tensorflow as tf

            tf.config.experimental.reset_memory_stats(self.device.upper())

    def peak_device(self) -> Memory:
        if not self._accelerator:
            return Memory(
                bytes=None, reason="TensorFlow keeps no statistics of CPU memory; see the host's peak"
            )
        import tensorflow as tf

        return Memory(bytes=int(tf.config.experimental.get_memory_info(self.device.upper())["peak"]))


@contextmanager
def _tracing(folder: Path) -> Iterator[None]:
    import tensorflow as tf

    # The default, 2, omits kernels that TensorFlow considers cheap; 2.21 omits them at every level.
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
    tf.profiler.experimental.start(str(folder), options=options)
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


def _require_tensor_cores(device: str) -> None:
    import tensorflow as tf

    capability: tuple[int, int] = (0, 0)
    if device.startswith("gpu"):
        gpu = tf.config.list_physical_devices("GPU")[int(device.partition(":")[2])]
        capability = tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
    if capability[0] < 8:
        raise Unsupported(f"TF32 needs NVIDIA tensor cores of Ampere or later; {device} has none")


@contextmanager
def _import_blocked(*modules: str) -> Iterator[None]:
    """Prevent the import of these modules, unless they are already imported."""
    absent = [module for module in modules if module not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module]


def _kinds_of(tf: Any) -> dict[str, str]:
    """Kinds of accelerators that this TensorFlow may have → TensorFlow's name.

    AMD's build and Apple's plug-in call their devices GPU, like TensorFlow's CUDA devices.
    """
    other = ROCM if tf.test.is_built_with_rocm() else "metal"
    return {"gpu" if tf.test.is_built_with_cuda() else other: "GPU", "xpu": "XPU"}


def _placement(device: str) -> str:
    """TensorFlow's name of a device: `gpu:0` for `rocm:0`."""
    kind, colon, index = device.partition(":")
    return f"{'gpu' if kind in (ROCM, 'metal') else kind}{colon}{index}"


class SharedTensorFlowSession(TensorFlowSession):
    """Session for a user's function, which may trace functions of its own."""

    def compilations(self) -> int:
        """Number of functions traced so far."""
        from tensorflow.python.eager import context

        return len(context.context().list_function_names())
