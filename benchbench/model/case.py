"""Cases, the points of the measured matrix; their enumerations, outcomes and verdicts.

Standard library only, since workers under foreign interpreters import this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from benchbench.model.placement import ONE_DEVICE, Placement, check_environment, suffix


class Verdict(StrEnum):
    """Verdict on a case. For metrics other than times, slower means worse and faster better."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    PROVISIONAL = "provisional"  # slower, but the baseline has too few sessions to be sure
    INCONCLUSIVE = "inconclusive"  # too much noise for the threshold
    INSUFFICIENT = "insufficient"  # too few values, or not steady: not tested
    INCOMPARABLE = "incomparable"  # measured under other conditions
    NEW = "new"
    GONE = "gone"
    BROKEN = "broken"  # worked before, fails now


class Status(StrEnum):
    """Outcome of a case."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    WRONG_RESULT = "wrong_result"
    UNVERIFIED = "unverified"  # the result could not be verified; measured unless a later call failed
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"
    INCOMPARABLE = "incomparable"  # not measured, since the inputs or outputs of the two sides differ
    LOST = "lost"  # its machine or device was lost before its last round


Scalar = int | bool | float | str


class Dtype(StrEnum):
    """Number type of a case.

    `float32` is strict IEEE; `tf32` stores float32 and multiplies in TF32; `amp-…` keeps float32 parameters
    and multiplies in 16 bits; `int8` quantises float32 inputs and weights before multiplication; `float8`
    multiplies E4M3 numbers (Micikevicius et al. 2022, "FP8 formats for deep learning") and returns bfloat16.
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    AMP_BF16 = "amp-bf16"
    AMP_FP16 = "amp-fp16"
    INT8 = "int8"
    FLOAT8 = "float8"

    @classmethod
    def _missing_(cls, value: object) -> Dtype | None:
        """Resolve common short names: `fp32`, `half`, `bf16`."""
        return cls(name) if (name := ALIASES.get(str(value).lower())) else None

    @property
    def storage(self) -> Dtype:
        """Type of outputs, inputs and weights, except those that are multiplied in float8."""
        if self is Dtype.FLOAT8:
            return Dtype.BFLOAT16
        return Dtype.FLOAT32 if self in (Dtype.TF32, Dtype.INT8, *AMP) else self

    @property
    def compute(self) -> Dtype:
        """Type of the multiplied numbers: half as wide as the storage under mixed precision."""
        return AMP.get(self, self)

    @property
    def is_narrow(self) -> bool:
        """True if the multiplied numbers have less precision than float32, so rounding may hide an error."""
        return self not in (Dtype.FLOAT64, Dtype.FLOAT32)

    @property
    def itemsize(self) -> int:
        """Bytes per multiplied element."""
        return {Dtype.FLOAT64: 8, Dtype.INT8: 1, Dtype.FLOAT8: 1}.get(
            self, 2 if self.compute in AMP.values() else 4
        )


ALIASES = {
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("amp", "amp_bf16", "amp-bfloat16"), "amp-bf16"),
    **dict.fromkeys(("amp_fp16", "amp-float16"), "amp-fp16"),
    **dict.fromkeys(("i8", "qint8"), "int8"),
    **dict.fromkeys(("fp8", "f8", "e4m3"), "float8"),
}
AMP = {
    Dtype.AMP_BF16: Dtype.BFLOAT16,
    Dtype.AMP_FP16: Dtype.FLOAT16,
}  # multiplied type


class Phase(StrEnum):
    """Part of training that a step computes: outputs, also gradients, or also an optimizer update."""

    FORWARD = "forward"
    BACKWARD = "backward"
    TRAIN = "train"


class Cache(StrEnum):
    """State of the device's caches when a step begins.

    `hot`: as the previous step left them. `cold`: overwritten before each step. `rotate`: without the inputs,
    since each step uses the next of more copies than fit into the cache.
    """

    HOT = "hot"
    COLD = "cold"
    ROTATE = "rotate"


STREAMS = "streams"  # parameter of inference: parts of the batch that are computed at the same time


def streams_obstacle(batch: object, streams: object) -> str:
    """Reason why a batch cannot be divided among streams, or ""."""
    if not isinstance(streams, int) or streams < 1:
        return f"streams={streams} is no number of parts"
    if streams > 1 and (not isinstance(batch, int) or batch % streams):
        return f"streams={streams} divide no batch of {batch}: -p batch={streams}"
    return ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of the matrix: workload, parameters, dtype, mode, phase, cache, target, device, placement.

    For a user's function, `workload` is its name, and dtype and phase are None.
    """

    suite: str
    workload: str
    params: dict[str, Scalar]
    dtype: Dtype | None
    mode: str
    phase: Phase | None
    target: str
    backend: str
    device: str  # the kind of device if there are several
    cache: Cache = Cache.HOT
    placement: Placement = ONE_DEVICE
    environment: dict[str, str] = field(default_factory=dict)  # additional variables of its process
    threads: int = 0  # of its process, if the run compares numbers of threads; 0: those of the settings

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid environment variable or number of threads."""
        check_environment(self.environment)
        if self.threads < 0:
            raise ValueError(f"{self.threads} threads compute nothing")

    @property
    def computes_in(self) -> Dtype:
        """The dtype. Raises ValueError if it is not known."""
        if self.dtype is None:
            raise ValueError(f"the dtype of {self.workload} is not known")
        return self.dtype

    @classmethod
    def of_call(cls, suite: str, name: str, backend: str, device: str) -> Case:
        """Case for a user's function, or for a result of another tool, with unknown sizes and dtype."""
        return cls(
            suite=suite,
            workload=name,
            params={},
            dtype=None,
            mode="",
            phase=None,
            target=backend,
            backend=backend,
            device=device,
        )

    @property
    def is_call(self) -> bool:
        """True for a user's function."""
        return self.dtype is None

    @property
    def hardware_count(self) -> int:
        """Number of accelerators, or of hosts if CPUs compute the case."""
        return self.placement.hosts if self.device.startswith("cpu") else self.placement.devices

    @cached_property
    def work(self) -> str:
        """The computation without its implementation: `gemm(m=64,n=64,k=64)/float32`."""
        if self.dtype is None:
            return self.workload
        inner = ",".join(f"{name}={str(value).lower()}" for name, value in self.params.items())
        return f"{self.workload}({inner})/{self.dtype}"

    @cached_property  # cached: most tables use it as key
    def id(self) -> str:
        """Stable, readable id; its grammar is in model/placement.py."""
        cache = "" if self.cache is Cache.HOT else self.cache
        path = "/".join(filter(None, (self.work, self.mode, cache)))
        return f"{path}@{self.target}:{self.device}{suffix(self.placement, self.environment, self.threads)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A requested case that cannot run here, and the reason."""

    case: Case
    status: Status
    reason: str
