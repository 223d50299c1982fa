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
    LARGEST_CACHE,
    Backend,
    PrecisionMismatch,
    Session,
    host_cache_bytes,
)
from benchbench.errors import Unsupported
from benchbench.model.case import AMP, Cache, Dtype, Phase
from benchbench.model.device import NOT_MEASURED, Device, DeviceClass
from benchbench.model.measurement import Memory
from benchbench.model.placement import Strategy
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.model.startup import StartUp
from benchbench.model.world import Spread, World
from benchbench.traces import xla as _xspans

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload

# What `import tensorflow` would import and no step needs, half a second and more each: JAX for TFLite's
# converter, with whatever is wrong with it, and Matplotlib for Keras's galleries of images.
UNUSED = ("jax", "matplotlib")
# Dtype → TF-TRT's precision_mode. Weights and inputs stay float32; the converter narrows the layers.
TENSORRT_PRECISION = {Dtype.FLOAT32: "FP32", Dtype.FLOAT16: "FP16"}


class TensorFlow(Backend):
    """`function` is tf.function, `xla` the same with jit_compile=True, `tensorrt` TF-TRT's conversion."""

    summary = "TensorFlow: tf.function, XLA, eager, or converted by TensorRT"
    framework = "tensorflow"
    modes = ("function", "xla", "eager", "tensorrt")
    own_modes = ("function", "xla", "eager")
    kind_code = MappingProxyType(
        {
            ("keras", "eager"): "run = lambda *x: model(*x, training=False)  # with KERAS_BACKEND=tensorflow",
            ("keras", "function"): "run = tf.function(lambda *x: model(*x, training=False))  "
            "# with KERAS_BACKEND=tensorflow",
            ("keras", "xla"): "run = tf.function(lambda *x: model(*x, training=False), jit_compile=True)  "
            "# with KERAS_BACKEND=tensorflow",
        }
    )
    runs_unused = frozenset({"eager"})
    not_measured = ("mps", "rocm", "xpu")
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
    full_memory = (*FULL_MEMORY, "OOM when allocating", "ran out of memory")  # its kernels, its allocator
    undividable = MappingProxyType({Strategy.PIPELINE: "TensorFlow has no schedule of stages"})

    def join(self, world: World, device: str) -> None:
        """The host as several logical devices, which TensorFlow must be told before it starts."""
        import tensorflow as tf

        if device == "cpu":
            (cpu,) = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration() for _ in range(world.devices)]
            tf.config.set_logical_device_configuration(cpu, logical)

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Threads of the operations' pool; logs of warnings and above only."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(settings.threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # other frameworks use the same GPU in their turn
        }

    def load(self) -> str:
        with _without(*UNUSED):
            import tensorflow as tf

        return str(tf.__version__)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        import tensorflow as tf

        found, missing = [Device(name="cpu", device_class=DeviceClass.CPU, model="")], _not_measured(tf)
        if not tf.test.is_built_with_cuda():
            build = "is not built for CUDA" if missing else "is a CPU build"
            return found, {"gpu": f"this TensorFlow {build}", **missing}
        for index, gpu in enumerate(tf.config.list_physical_devices("GPU")):
            details = tf.config.experimental.get_device_details(gpu)
            model = str(details.get("device_name", "GPU"))
            found.append(Device(name=f"gpu:{index}", device_class=DeviceClass.ACCELERATOR, model=model))
        if len(found) == 1:
            missing = {"gpu": "no GPU is visible to TensorFlow", **missing}
        return found, missing

    def missing_modes(self) -> dict[str, str]:
        """TensorRT is chosen when TensorFlow is built."""
        import tensorflow as tf

        built = tf.sysconfig.get_build_info().get("is_tensorrt_build", False)
        return {} if built else {"tensorrt": f"TensorFlow {tf.__version__} is built without TensorRT"}

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """TensorRT converts inference in float32 and float16."""
        if reason := super().refuses(device, dtype, mode, phase, cache):
            return reason
        if mode == "tensorrt" and device.device_class is DeviceClass.CPU:
            return "TensorRT needs an NVIDIA GPU"
        if mode == "tensorrt" and (phase is not Phase.FORWARD or dtype not in TENSORRT_PRECISION):
            return f"TensorRT converts inference in {' and '.join(TENSORRT_PRECISION)}"
        return ""

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Threads and TF32 must be fixed before the first operation."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        if device == "cpu" and tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")  # else their memory would be taken too
        if dtype is Dtype.TF32:
            _require_tensor_cores(device)
        tf.config.experimental.enable_tensor_float_32_execution(dtype is Dtype.TF32)
        return TensorFlowSession(device, dtype, mode)

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Constants and variables of the builder, too, are on the session's device.

        Of several devices, it is built in the scope of a MirroredStrategy: tf.distribute.get_strategy().
        """
        import tensorflow as tf

        assert isinstance(session, TensorFlowSession)
        if session.world.devices > 1 and workload.phase is Phase.TRAIN and session.mode == "xla":
            raise Unsupported("XLA compiles for one device, and replicas have their variables on several")
        with session.strategy.scope() if session.world.devices > 1 else tf.device(session.device):
            return super().program(session, workload, arrays)

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Session]:
        """An accelerator that the result is on, else the first GPU where TensorFlow has one, else the CPU."""
        known = {found.name: found for found in self.devices()[0]}
        holders = _accelerators_of(result)
        name = device or next(iter([*holders, *(each for each in known if each != "cpu")]), "cpu")
        for each in (name, *holders):
            if each not in known:
                raise Unsupported(f"TensorFlow has no device {each!r}, only {', '.join(known)}")
        session = TensorFlowSession(name, Dtype.FLOAT32, "eager")
        session.is_asynchronous = bool(holders) or name != "cpu"
        return known[name], session

    def out_of_memory(self, error: BaseException) -> bool:
        """TensorFlow raises ResourceExhaustedError on any device, unless a library of CUDA's speaks first."""
        import tensorflow as tf

        return isinstance(error, tf.errors.ResourceExhaustedError) or super().out_of_memory(error)


def _accelerators_of(result: Any) -> list[str]:
    """The accelerators that tensors of a result are on, as `gpu:0`."""
    parts = list(parts_of(result))
    if not parts:
        return []
    import tensorflow as tf

    tensors = [part for part in parts if isinstance(part, tf.Tensor | tf.Variable)]
    names = [tensor.device.rpartition("device:")[2].lower() for tensor in tensors]
    return [name for name in names if name and not name.startswith("cpu")]


class TensorFlowSession(Session):
    """One device; every operation of the case is placed on it."""

    def __init__(self, device: str, dtype: Dtype, mode: str) -> None:
        """`device` is a name such as `cpu`, `gpu:0`."""
        import tensorflow as tf

        self.device = device
        self._precision_mode = TENSORRT_PRECISION.get(dtype)
        self.dtype = tf.float32 if mode == "tensorrt" else tf.as_dtype(dtype.storage.value)
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
        """The MirroredStrategy over the devices of the world."""
        import tensorflow as tf

        kind, _, first = self.device.partition(":")
        numbers = self.world.numbers(int(first or 0))
        return tf.distribute.MirroredStrategy([f"{kind.upper()}:{number}" for number in numbers])

    def put_on_devices(self, rows: Array) -> Any:
        """A value per replica."""
        import numpy as np
        import tensorflow as tf

        floating = np.issubdtype(rows.dtype, np.floating)

        def own(replica: Any) -> Any:
            row = tf.constant(rows[replica.replica_id_in_sync_group])
            return tf.cast(row, self.dtype) if floating else row

        return self.strategy.experimental_distribute_values_from_function(own)

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
        """tf.function, with or without XLA, or the step itself."""
        import tensorflow as tf

        placed = step if self.world.devices > 1 else self._placed(step)
        if self.mode == "eager":
            return placed
        if self.mode == "tensorrt":
            return convert_by_tensorrt(placed, self._precision_mode)
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
        """Traces of what `compile` gave, each a program; none where operations run one by one."""
        if self.mode not in ("function", "xla"):
            return None
        return sum(int(compiled.experimental_get_tracing_count()) for compiled in self._compiled)

    def wait(self, output: Any) -> None:
        """CPU operations have finished when they return; GPUs are told to finish."""
        if self.is_asynchronous:
            import tensorflow as tf

            tf.test.experimental.sync_devices()

    def take(self, output: Any, index: Indices) -> Floats:
        """Gathered on the device; a number is none to gather from."""
        import tensorflow as tf

        if not hasattr(output, "dtype"):  # a value for each replica; a parameter is the same in all
            return self._take_of_replicas(output, index)
        with tf.device(self.device):
            return self.fetch(tf.gather_nd(output, index) if output.shape.rank else output)

    def _take_of_replicas(self, output: Any, index: Indices) -> Floats:
        import numpy as np
        import tensorflow as tf

        taken = np.empty(len(index))
        for replica, tensor in enumerate(self.strategy.experimental_local_results(output)):
            own = index[:, 0] == replica
            taken[own] = self.fetch(tf.gather_nd(tensor, index[own, 1:]))
        return taken

    def is_finite(self, output: Any) -> bool:
        """The elements of each replica's part, where there are several replicas."""
        parts = self.strategy.experimental_local_results(output) if self.world.devices > 1 else (output,)
        return all(super(TensorFlowSession, self).is_finite(part) for part in parts)

    def finished(self, output: Any) -> Any:
        """Zeros; of replicas the output itself."""
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
        """TensorFlow has one switch for matrix products and convolutions."""
        import tensorflow as tf

        enabled = bool(tf.config.experimental.tensor_float_32_execution_enabled())
        if enabled != self._tf32:
            raise PrecisionMismatch(f"asked for TF32 {self._tf32}, TensorFlow reports {enabled}")
        precision = {"float32_multiply": "tf32" if enabled else "ieee", "storage": self.dtype.name}
        return precision | ({"multiply": self.compute.name} if self.compute else {})

    def no_op(self) -> Callable[[], Any]:
        """One number and another; XLA's and a function's calls begin alike."""
        if not self._accelerator:
            return super().no_op()
        import tensorflow as tf

        with tf.device(self.device):
            one = tf.constant(1.0)
        return partial(tf.function(lambda x: x + 1.0, autograph=False), one)

    def cache_bytes(self) -> int:
        """The CPU's alone; TensorFlow does not tell a GPU's."""
        return LARGEST_CACHE if self._accelerator else host_cache_bytes()

    def flush(self) -> Any:
        """One read, another written; integers of 32 bits would be kept on the host."""
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
        """The TensorFlow profiler; XLA's instructions have names of TensorFlow's operators."""
        import tensorflow as tf

        with _traced(folder):
            self.wait(step())
            name = f"tf.profiler {tf.__version__}"
            recording = self.record(name, step, iterations, count, tf.profiler.experimental.Trace)
        return _xspans.parse_profile(folder, recording, {})

    def events_of(self, step: Callable[[], Any]) -> int:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            with _traced(Path(folder)):
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
def _traced(folder: Path) -> Iterator[None]:
    import tensorflow as tf

    # At its default, 2, kernels that TensorFlow has come to think cheap are not in the trace.
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
def _without(*modules: str) -> Iterator[None]:
    """Meanwhile these cannot be imported, unless they have been."""
    absent = [module for module in modules if module not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: importing it fails
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module]


def _not_measured(tf: Any) -> dict[str, str]:
    """The kinds of devices that this TensorFlow would compute on and that are not measured, with the reason.

    Apple's plug-in calls its device GPU, as TensorFlow does those of CUDA.
    """
    gpus = bool(tf.config.list_physical_devices("GPU"))
    there = {
        "mps": gpus and not tf.test.is_built_with_cuda() and not tf.test.is_built_with_rocm(),
        "rocm": tf.test.is_built_with_rocm(),
        "xpu": bool(tf.config.list_physical_devices("XPU")),
    }
    return {kind: NOT_MEASURED[kind] for kind, present in there.items() if present}


def convert_by_tensorrt(step: Callable[..., Any], precision: str | None) -> Callable[..., Any]:
    """`step` through TF-TRT, engines built at the first call for the shapes it is given."""
    converted: list[Callable[..., Any]] = []

    def run(*inputs: Any) -> Any:
        if not converted:
            converted.append(_convert(step, precision, inputs))
        (output,) = converted[0](*inputs)
        return output

    return run


def _convert(step: Callable[..., Any], precision: str | None, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    import tempfile

    import tensorflow as tf
    from tensorflow.python.compiler.tensorrt import trt_convert

    module = tf.Module()
    module.step = tf.function(step, autograph=False)
    concrete = module.step.get_concrete_function(*(tf.TensorSpec(each.shape, each.dtype) for each in inputs))
    module.held = list(concrete.graph.variables)  # a saved model keeps only what its module can reach
    with tempfile.TemporaryDirectory(prefix="tensorrt-", dir=".") as folder:
        tf.saved_model.save(module, folder, signatures=concrete)
        converter = trt_convert.TrtGraphConverterV2(input_saved_model_dir=folder, precision_mode=precision)
        function = converter.convert()
        converter.build(input_fn=lambda: [inputs])
    found: Callable[..., Any] = function
    return found
