"""TensorFlow on CPU and GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchbench.backends.base import Backend, Session, Unsupported
from benchbench.model import Device, DeviceClass, Dtype, Memory, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TensorFlow(Backend):
    """`function` is tf.function, `xla` is tf.function(jit_compile=True)."""

    summary = "TensorFlow: tf.function, XLA or eager"
    framework = "tensorflow"
    modes = ("function", "xla", "eager")
    distributions = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos")
    install = "pip install 'accelbench[tensorflow]'"

    def environment(self, settings: Settings, cache: str) -> dict[str, str]:
        """Threads of the operations' pool; logs of warnings and above only."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(settings.threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def load(self) -> str:
        """Import TensorFlow."""
        import tensorflow as tf

        return str(tf.__version__)

    def devices(self) -> tuple[list[Device], dict[str, str]]:
        """`cpu`, and every GPU."""
        import tensorflow as tf

        found = [Device(name="cpu", device_class=DeviceClass.CPU, model="")]
        for index, gpu in enumerate(tf.config.list_physical_devices("GPU")):
            details = tf.config.experimental.get_device_details(gpu)
            model = str(details.get("device_name", "GPU"))
            found.append(Device(name=f"gpu:{index}", device_class=DeviceClass.ACCELERATOR, model=model))
        if len(found) > 1:
            return found, {}
        if not tf.test.is_built_with_cuda():
            return found, {"gpu": "this TensorFlow is a CPU build"}
        return found, {"gpu": "no GPU is visible to TensorFlow"}

    def open(self, device: str, dtype: Dtype, mode: str, threads: int) -> Session:
        """Threads and TF32 must be fixed before the first operation."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        if dtype is Dtype.TF32:
            _require_tensor_cores(device)
        tf.config.experimental.enable_tensor_float_32_execution(dtype is Dtype.TF32)
        return TensorFlowSession(device, dtype, mode)

    def attach(self, device: str | None) -> tuple[Device, Session]:
        """The first GPU where TensorFlow has one, else the CPU."""
        if device is None:
            import tensorflow as tf

            device = "gpu:0" if tf.config.list_physical_devices("GPU") else "cpu"
        known = {found.name: found for found in self.devices()[0]}
        if device not in known:
            raise Unsupported(f"TensorFlow has no device {device!r}, only {', '.join(known)}")
        return known[device], TensorFlowSession(device, Dtype.FLOAT32, "eager")

    def out_of_memory(self, error: BaseException) -> bool:
        """ResourceExhaustedError, on any device."""
        import tensorflow as tf

        return isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)


class TensorFlowSession(Session):
    """One device; every operation of the case is placed on it."""

    def __init__(self, device: str, dtype: Dtype, mode: str) -> None:
        """`device` as in `cpu`, `gpu:0`."""
        import tensorflow as tf

        self.device = device
        self.dtype = tf.as_dtype("float32" if dtype is Dtype.TF32 else dtype.value)
        self._mode = mode
        self._tf32 = dtype is Dtype.TF32
        self._accelerator = device != "cpu"

    def put(self, array: NDArray[np.generic]) -> Any:
        """A tensor on the device."""
        import numpy as np
        import tensorflow as tf

        floating = np.issubdtype(array.dtype, np.floating)
        with tf.device(self.device):
            return tf.cast(tf.constant(array), self.dtype) if floating else tf.constant(array)

    def compile(self, step: Callable[..., Any], state: int) -> Callable[..., Any]:
        """tf.function, with or without XLA, or the step itself."""
        import tensorflow as tf

        def placed(*arguments: Any) -> Any:
            with tf.device(self.device):
                return step(*arguments)

        if self._mode == "eager":
            return placed
        xla = True if self._mode == "xla" else None
        compiled: Callable[..., Any] = tf.function(placed, jit_compile=xla, autograph=False)
        return compiled

    def wait(self, output: Any) -> None:
        """CPU operations have finished when they return; GPUs are told to finish."""
        if self._accelerator:
            import tensorflow as tf

            tf.test.experimental.sync_devices()

    def take(self, output: Any, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Gathered on the device."""
        import tensorflow as tf

        with tf.device(self.device):
            return self.fetch(tf.gather_nd(output, index))

    def fetch(self, output: Any) -> NDArray[np.float64]:
        """Widened on the host."""
        import numpy as np

        return np.asarray(output.numpy(), dtype=np.float64)

    def precision(self) -> dict[str, str]:
        """TensorFlow has one switch for matrix products and convolutions."""
        import tensorflow as tf

        enabled = bool(tf.config.experimental.tensor_float_32_execution_enabled())
        if enabled != self._tf32:
            raise Unsupported(f"asked for TF32 {self._tf32}, TensorFlow reports {enabled}")
        return {"float32_multiply": "tf32" if enabled else "ieee", "storage": self.dtype.name}

    def reset_peak(self) -> None:
        """Of the device's allocator."""
        if self._accelerator:
            import tensorflow as tf

            tf.config.experimental.reset_memory_stats(self.device.upper())

    def peak_device(self) -> Memory:
        """Bytes in use at the peak."""
        if not self._accelerator:
            return Memory(
                bytes=None, reason="TensorFlow keeps no statistics of CPU memory; see the host's peak"
            )
        import tensorflow as tf

        return Memory(bytes=int(tf.config.experimental.get_memory_info(self.device.upper())["peak"]))


def _require_tensor_cores(device: str) -> None:
    import tensorflow as tf

    capability: tuple[int, int] = (0, 0)
    if device.startswith("gpu"):
        gpu = tf.config.list_physical_devices("GPU")[int(device.partition(":")[2])]
        capability = tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
    if capability[0] < 8:
        raise Unsupported(f"TF32 needs NVIDIA tensor cores of Ampere or later; {device} has none")
