"""JAX on CPUs, GPUs, TPUs and the platforms of other plug-ins."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

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
from benchbench.machine.kernel import tpu_chips
from benchbench.machine.peaks import LARGEST_CACHE
from benchbench.model.case import AMP, Cache, Dtype, Phase
from benchbench.model.device import ROCM, Device, DeviceClass, StartUp, is_verified, kind_of
from benchbench.model.measurement import Memory
from benchbench.model.placement import Spread, World
from benchbench.model.profile import Profile
from benchbench.model.run import Settings
from benchbench.model.user_model import JAX, KERAS
from benchbench.traces import xla

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Program, Workload

# Dtype → jax_default_matmul_precision. On GPU and TPU the default multiplies float32 in fewer bits.
MATMUL_PRECISION = {Dtype.FLOAT64: "highest", Dtype.FLOAT32: "highest", Dtype.TF32: "tensorfloat32"}
PLATFORMS = ("cpu", "gpu", "tpu")
# Vendor in the version of JAX's platform `gpu` → kind of device here; without one it is NVIDIA's.
OTHER_VENDORS = {"rocm": ROCM, "oneapi": "xpu"}
COMPILATION_EVENT = "/jax/core/compile/backend_compile_duration"  # of jax.monitoring
PINNED = "pinned_host"  # JAX's name for pinned memory
USED_BY_COMPILING = (
    "jax.experimental.multihost_utils",
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
)


class Jax(Backend):
    """Runs every step under jax.jit."""

    summary = "JAX: jax.jit"
    framework = "jax"
    modes = ("jit",)
    model_code = MappingProxyType(
        {
            (KERAS, "jit"): 'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport jax\n'
            "def call(weights, inputs):\n"
            "    return model.stateless_call(*weights, <CALL>, training=False)[0]\n"
            "weights = [[variable.value for variable in variables] for variables in "
            "(model.trainable_variables, model.non_trainable_variables)]\n"
            "run = jax.jit(call)\noutput = run(weights, inputs)",
            (JAX, "jit"): "run = jax.jit(model)\noutput = run(params, <CALL>)",
        }
    )
    dtypes = (*Backend.dtypes, Dtype.FLOAT8)
    device_kinds = ("cpu", "gpu", "tpu", ROCM, "xpu", "metal")
    caches = tuple(Cache)
    refused_modes: ClassVar[dict[str, str]] = {
        "eager": "JAX users run steps under jax.jit; operation by operation, its dispatch would be measured"
    }
    distributions = ("jax",)
    requirements = ("jax", "numpy")
    builds = MappingProxyType(
        {
            "cpu": requirements,
            "cuda": ("jax[cuda13]", "numpy"),
            "cuda12": ("jax[cuda12]", "numpy"),  # also runs with drivers older than 580
            "cuda13": ("jax[cuda13]", "numpy"),
            "tpu": ("jax[tpu]", "numpy"),
        }
    )
    extra = "jax"
    start_up = StartUp(import_s=1.5, call_s=0.08, layer_s=0.02, warm_fraction=0.25, profile_s=3.0)
    spread = Spread.DEVICES
    full_memory = (*FULL_MEMORY, "RESOURCE_EXHAUSTED")  # XLA's status code
    statistics_per_device = False  # a sharded batch is one array

    def join(self, world: World, device: str) -> None:
        """Split the host into several devices before JAX starts."""
        import jax

        if device.startswith("cpu"):
            jax.config.update("jax_num_cpu_devices", world.devices)

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Set XLA's threads by NPROC, and cache all compiled programs, even if they compile fast."""
        return {
            "JAX_COMPILATION_CACHE_DIR": f"{cache}/jax",
            "NPROC": str(settings.threads),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # other frameworks use the same GPU
        }

    def load(self) -> str:
        """Import jax. Its devices start with the first operation."""
        import jax
        import jax.numpy as jnp  # noqa: F401 - imported before the fork

        return str(jax.__version__)

    def preload(self, phase: Phase, mode: str) -> None:
        """Import the modules of the first compilation."""
        with suppress(ImportError):  # if a module was moved, each case imports it
            for name in USED_BY_COMPILING:
                import_module(name)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """Every device of every platform that this JAX can start."""
        import jax

        devices, reasons = [], {}
        for platform in (*PLATFORMS, *_other_platforms()):
            try:
                platform_devices = jax.devices(platform)
            except RuntimeError as error:  # JAX's error for a missing platform
                reasons[platform] = _reason(platform, error)
                continue
            devices += [_describe(index, device) for index, device in enumerate(platform_devices)]
        if vendors := {kind_of(device.name) for device in devices} & {*OTHER_VENDORS.values()}:
            reasons["gpu"] = f"this JAX has no CUDA; its GPUs are called {', '.join(sorted(vendors))}"
        return devices, reasons

    def refuses(self, device: Device, dtype: Dtype, mode: str, phase: Phase, cache: Cache = Cache.HOT) -> str:
        """Refuse caches other than hot on TPUs: programs manage the memories on the chip."""
        if reason := super().refuses(device, dtype, mode, phase, cache):
            return reason
        if cache is not Cache.HOT and device.name.startswith("tpu"):
            return "a TPU has no cache that stays warm between steps"
        return ""

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Set precision and default device before the first operation."""
        import jax

        if dtype is Dtype.TF32 and not device.startswith("gpu"):
            raise Unsupported(f"TF32 needs NVIDIA tensor cores of Ampere or later; {device} has none")
        kind = kind_of(device)
        if kind == "cpu":  # otherwise JAX opens accelerators, too, and a TPU allows only one process
            jax.config.update("jax_platforms", "cpu")
        jax_device = _find(device)
        if dtype is Dtype.FLOAT8 and not (kind == "gpu" and float(jax_device.compute_capability) >= 8.9):
            raise Unsupported(f"float8 needs NVIDIA tensor cores of Ada, Hopper or later; {device} has none")
        jax.config.update("jax_default_device", jax_device)
        jax.config.update("jax_enable_x64", dtype is Dtype.FLOAT64)
        jax.config.update("jax_default_matmul_precision", MATMUL_PRECISION.get(dtype))
        return JaxSession(jax_device, dtype)

    def attach(self, device: str | None, result: Any = None) -> tuple[Device, Session]:
        """Attach to an accelerator of the result, else to its device, else to JAX's default device."""
        import jax

        arrays = [part for part in parts_of(result) if isinstance(part, jax.Array)]
        holders = sorted({holder for array in arrays for holder in array.devices()}, key=_cpu_last)
        default = next(iter(holders or jax.devices()))
        name = device or f"{_kind_of(default)}:{default.id}"
        try:
            jax_device = _find(name)
        except (RuntimeError, IndexError, ValueError) as error:
            raise Unsupported(f"JAX has no device {device!r}") from error
        leaves = set(map(id, jax.tree.leaves(result))) if arrays else set()
        is_tree = all(id(array) in leaves for array in arrays)
        session = SharedJaxSession(jax_device, Dtype.FLOAT32, is_tree=is_tree)
        return _describe(int(name.partition(":")[2] or 0), jax_device), session

    def program(self, session: Session, workload: Workload, arrays: Arrays) -> Program:
        """Commit the first state to the device like later ones, so that the second step is not recompiled."""
        import jax

        assert isinstance(session, JaxSession)
        program = super().program(session, workload, arrays)
        first = partial(jax.tree.map, session.committed)
        again = program.restart
        return replace(
            program,
            state=first(program.state),
            restart=again and (lambda arrays: first(again(arrays))),
        )


class JaxSession(Session):
    """An XLA device."""

    compiler = "jax.jit"

    def __init__(self, device: Any, dtype: Dtype) -> None:
        """Open a jax.Device."""
        import jax.numpy as jnp

        self.device = device
        self.dtype = jnp.dtype(dtype.storage.value)
        self.compute = jnp.dtype(dtype.compute.value) if dtype in AMP else None
        if dtype is Dtype.FLOAT8:
            self.compute = jnp.dtype("float8_e4m3fn")
        self._dtype = dtype
        self.keeps_peak = device.platform == "gpu"  # XLA tries algorithms while it compiles
        self.waits_every_step = device.platform == "cpu"  # the CPU's client may run queued steps in parallel
        self._compiled: list[Any] = []
        self._clearing: tuple[Callable[[Any], Any], Any] | None = None

    def put(self, array: Array) -> Any:
        """Commit an array to the device. Integers become int32, JAX's default."""
        import jax

        return jax.device_put(self._typed(array), self.device)

    def committed(self, array: Any) -> Any:
        """Commit an array to its device: uncommitted arrays of jax.numpy follow others."""
        import jax

        follows = isinstance(array, jax.Array) and not array.committed
        return jax.device_put(array, self.device) if follows else array

    def put_on_devices(self, rows: Array) -> Any:
        """An array sharded along its first axis."""
        import jax

        from benchbench.workloads._programs.jax import mesh_of, sharding_along

        return jax.device_put(self._typed(rows), sharding_along(mesh_of(self), 0))

    def _typed(self, array: Array) -> Array:
        import numpy as np

        floating = np.issubdtype(array.dtype, np.floating)
        return array.astype(self.dtype if floating else np.int32)

    def put_on_host(self, array: Array, *, pinned: bool = False) -> Any:
        """A NumPy array, or an array in the device's pinned memory."""
        import jax

        values = self._typed(array)
        if not pinned:
            return values
        if PINNED not in {memory.kind for memory in self.device.addressable_memories()}:
            raise Unsupported(f"{self.device.platform} has no pinned host memory")
        sharding = jax.sharding.SingleDeviceSharding(self.device, memory_kind=PINNED)
        return jax.device_put(values, sharding)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """Apply jax.jit, donating the memory of the old state to the new one."""
        import jax

        compiled = jax.jit(step, donate_argnums=tuple(range(state)))
        self._compiled.append(compiled)
        return compiled  # type: ignore[no-any-return]

    def compilations(self) -> int:
        """Entries in the caches of compiled functions: one per kind of arguments."""
        return sum(int(compiled._cache_size()) for compiled in self._compiled)

    def wait(self, output: Any) -> None:
        """Wait for asynchronous dispatch, on every platform."""
        import jax

        jax.block_until_ready(output)

    def take(self, output: Any, index: Indices) -> Floats:
        """Gather on the device; where NumPy can read the memory, without compiling anything."""
        import numpy as np

        if self.device.platform == "cpu" or output.sharding.memory_kind == PINNED:
            output = np.asarray(output)
        return self.fetch(output[tuple(index.T)])

    def finished(self, output: Any) -> Any:
        """Zeros on the output's device."""
        import jax
        import numpy as np

        zeros = jax.device_put(np.zeros(output.shape, output.dtype), output.sharding)
        return jax.block_until_ready(zeros)

    def fetch(self, output: Any) -> Floats:
        import numpy as np

        return np.asarray(output).astype(np.float64)

    def precision(self) -> dict[str, str]:
        """Read the default precision of dot and convolution, and the dtype of a new array."""
        import jax
        import numpy as np

        expected, actual = MATMUL_PRECISION.get(self._dtype), jax.config.jax_default_matmul_precision
        if expected != actual:
            raise PrecisionMismatch(f"requested matmul precision {expected}, JAX reports {actual}")
        precision = {
            "float32_multiply": "tf32" if self._dtype is Dtype.TF32 else "ieee",
            "storage": str(jax.device_put(np.zeros((), self.dtype)).dtype),  # float32 for float64 without x64
        }
        if precision["storage"] != str(self.dtype):
            raise PrecisionMismatch(f"asked for {self.dtype}, JAX gives {precision['storage']}")
        if not is_verified(_kind_of(self.device)):  # a plug-in may ignore the setting
            require_precise_product(
                self._dtype, lambda left, right: self.fetch(self.put(left) @ self.put(right))
            )
        return precision | ({"multiply": str(self.compute)} if self.compute else {})

    def no_op(self) -> Callable[[], Any]:
        """Add two numbers. Not needed on the CPU, where every step is waited for."""
        if self.waits_every_step:
            return super().no_op()
        import jax
        import jax.numpy as jnp

        return partial(jax.jit(lambda x: x + 1), jax.device_put(jnp.zeros(()), self.device))

    def cache_bytes(self) -> int:
        """Size of the CPU's cache, or the largest of any GPU, since JAX does not report it."""
        return host_cache_bytes() if self.device.platform == "cpu" else LARGEST_CACHE

    def flush(self) -> Any:
        import jax
        import jax.numpy as jnp

        if self._clearing is None:
            size = self.cleared_bytes() // 4
            values = jax.device_put(jnp.zeros(size, jnp.int32), self.device)
            self._clearing = jax.jit(lambda x: x + 1, donate_argnums=0), values
        bump, values = self._clearing
        self._clearing = bump, bump(values)
        return self._clearing[1]

    def nbytes(self, array: Any) -> int:
        """Total size of the arrays in a tree."""
        import jax

        return sum(int(leaf.nbytes) for leaf in jax.tree.leaves(array))

    def profile(self, step: Callable[[], Any], iterations: int, count: int, folder: Path) -> Profile:
        """Use jax.profiler without Python tracing. Fusions get names from the compiled modules."""
        import jax

        with _tracing(folder):
            self.wait(step())
            name = f"jax.profiler {jax.__version__}"
            recording = self.record(name, step, iterations, count, jax.profiler.TraceAnnotation)
        modules = [executable.hlo_modules()[0] for executable in self.device.client.live_executables()]
        labels = {
            (module.name, instruction): label
            for module in modules
            for instruction, label in xla.labels(module.to_string()).items()
        }
        return xla.parse_profile(folder, recording, labels)

    def events_of(self, step: Callable[[], Any]) -> int:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            with _tracing(Path(folder)):
                self.wait(step())
            return xla.count_events(Path(folder))

    def reset_peak(self) -> None:
        """JAX cannot reset it. Each case has its own process, so the peak is that of the case with its first
        call.
        """

    def peak_device(self) -> Memory:
        """Peak of bytes in use since the process started."""
        stats = self.device.memory_stats()
        if not stats or "peak_bytes_in_use" not in stats:
            return Memory(bytes=None, reason=f"JAX keeps no memory statistics on {self.device.platform}")
        return Memory(bytes=int(stats["peak_bytes_in_use"]))


class SharedJaxSession(JaxSession):
    """Session in a shared process. A peak belongs to it only if it exceeds all earlier ones."""

    def __init__(self, device: Any, dtype: Dtype, *, is_tree: bool) -> None:
        """Open a device. `is_tree`: JAX finds all arrays of a result; otherwise some are attributes of
        objects.
        """
        super().__init__(device, dtype)
        self._is_tree = is_tree

    def wait(self, output: Any) -> None:
        import jax

        is_array = jax.Array
        arrays = (
            output if self._is_tree else [part for part in parts_of(output) if isinstance(part, is_array)]
        )
        jax.block_until_ready(arrays)

    def reset_peak(self) -> None:
        """Remember the peak so far, since it cannot be reset."""
        self._before = super().peak_device().bytes or 0

    def peak_device(self) -> Memory:
        peak = super().peak_device()
        if peak.bytes is None or peak.bytes > self._before:
            return peak
        return Memory(bytes=None, reason="JAX cannot reset its peak, and an earlier one was as high")

    def compilations(self) -> int:
        return len(_compilation_times())


@cache
def _compilation_times() -> list[float]:
    """Seconds of each compilation in this process since the first call of this function."""
    import jax

    seconds: list[float] = []

    def record(event: str, duration_s: float, **_: Any) -> None:
        if event == COMPILATION_EVENT:
            seconds.append(duration_s)

    jax.monitoring.register_event_duration_secs_listener(record)
    return seconds


@contextmanager
def _tracing(folder: Path) -> Iterator[None]:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(folder), profiler_options=options)
    try:
        yield
    finally:
        jax.profiler.stop_trace()


def _cpu_last(device: Any) -> tuple[bool, int]:
    return device.platform == "cpu", int(device.id)


def _describe(index: int, device: Any) -> Device:
    kind = _kind_of(device)
    if kind == "cpu":
        return Device(name="cpu" if index == 0 else f"cpu:{index}", device_class=DeviceClass.CPU, model="")
    return Device(name=f"{kind}:{index}", device_class=DeviceClass.ACCELERATOR, model=str(device.device_kind))


def _kind_of(device: Any) -> str:
    """Kind of a device: its platform, or for a GPU that is not NVIDIA's, its vendor's name."""
    platform = str(device.platform).lower()
    version = str(device.client.platform_version).lower() if platform == "gpu" else ""
    return next((kind for vendor, kind in OTHER_VENDORS.items() if vendor in version), platform)


def _find(name: str) -> Any:
    """JAX's device with a name such as `cpu`, `rocm:1` or `metal:0`. Raises RuntimeError or IndexError."""
    import jax

    kind, _, index = name.partition(":")
    if kind in OTHER_VENDORS.values():
        kind = "gpu"
    elif kind not in PLATFORMS:  # looked up in the order of registration: METAL is written in capitals
        kind = next((platform for platform in _other_platforms() if platform.lower() == kind), kind)
    return jax.devices(kind)[int(index or 0)]


def _other_platforms() -> list[str]:
    """JAX's names of the platforms of plug-ins, such as METAL, besides CPUs, GPUs and TPUs."""
    from jax.extend import backend

    known = (*PLATFORMS, "cuda", *OTHER_VENDORS)
    return [name for name in backend.backends() if name.lower() not in known]


def _reason(platform: str, error: Exception) -> str:
    """Reason why a platform is missing, in plain words; JAX's message if it is present but does not work."""
    text = str(error).strip()
    if text.startswith("Unknown backend") or "libtpu.so: cannot open" in text:
        extra = {"gpu": "cuda13"}.get(platform, platform)
        chips = tpu_chips(Path("/")) if platform == "tpu" else 0
        presence = f"{chips} TPU chips are present, but " if chips else ""
        return f"{presence}this JAX has no {platform.upper()} plug-in (pip install 'jax[{extra}]')"
    return text.splitlines()[0].split(". ")[0]
