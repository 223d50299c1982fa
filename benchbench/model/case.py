"""One point of the matrix, and the enumerations that name it.

Standard library only: workers under foreign interpreters import this too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from benchbench.model.placement import ONE_DEVICE, Placement, check_environment, suffix
from benchbench.model.status import Status

Scalar = int | bool | float | str


class Dtype(StrEnum):
    """What a case computes in.

    `float32` is strict IEEE; `tf32` stores float32 and multiplies in TF32; `amp-…` keeps float32
    parameters and multiplies in 16 bits; `int8` quantises what float32 inputs and weights are multiplied;
    `float8` multiplies E4M3 numbers (Micikevicius et al. 2022, "FP8 formats for deep learning"), and gives
    bfloat16.
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
        """What the field's shorter names mean: `fp32`, `half`, `bf16`."""
        return cls(name) if (name := ALIASES.get(str(value).lower())) else None

    @property
    def storage(self) -> Dtype:
        """What outputs are stored in, and inputs and weights but those that are multiplied in float8."""
        if self is Dtype.FLOAT8:
            return Dtype.BFLOAT16
        return Dtype.FLOAT32 if self in (Dtype.TF32, Dtype.INT8, *AMP) else self

    @property
    def compute(self) -> Dtype:
        """What is multiplied: half the width of the storage under mixed precision."""
        return AMP.get(self, self)

    @property
    def is_narrow(self) -> bool:
        """Whether less than float32 is multiplied: rounding may then hide a mistake."""
        return self not in (Dtype.FLOAT64, Dtype.FLOAT32)

    @property
    def itemsize(self) -> int:
        """Bytes of one element that is multiplied."""
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
AMP = {Dtype.AMP_BF16: Dtype.BFLOAT16, Dtype.AMP_FP16: Dtype.FLOAT16}  # mixed precision → what it multiplies


class Phase(StrEnum):
    """`forward`: outputs from inputs. `backward`: their gradients too. `train`: an optimizer's update too."""

    FORWARD = "forward"
    BACKWARD = "backward"
    TRAIN = "train"


class Cache(StrEnum):
    """What the device's caches hold when a step begins.

    `hot`: what the step before left there. `cold`: nothing of the step's; they are overwritten before each.
    `rotate`: not its inputs, which are the next of more copies than fit.
    """

    HOT = "hot"
    COLD = "cold"
    ROTATE = "rotate"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of the matrix: workload, parameters, dtype, mode, phase, cache, target, device, placement.

    Of somebody's function, `workload` is the name, and dtype, mode and phase are not known.
    """

    suite: str
    workload: str
    params: dict[str, Scalar]
    dtype: Dtype | None
    mode: str
    phase: Phase | None
    target: str
    backend: str
    device: str  # of several, the kind of each
    cache: Cache = Cache.HOT
    placement: Placement = ONE_DEVICE
    environment: dict[str, str] = field(default_factory=dict)  # variables that its process has besides
    threads: int = 0  # of its process, where the run compares several numbers; 0: as many as the settings say
    formerly: str = ""  # the name that the workload had before

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be an environment variable or a number of threads."""
        check_environment(self.environment)
        if self.threads < 0:
            raise ValueError(f"{self.threads} threads compute nothing")

    @property
    def computes_in(self) -> Dtype:
        """The dtype, where it is known; else raises ValueError."""
        if self.dtype is None:
            raise ValueError(f"nobody knows the dtype of {self.workload}")
        return self.dtype

    @classmethod
    def of_call(cls, suite: str, name: str, backend: str, device: str) -> Case:
        """A case that calls somebody's function, or one of another tool, of unknown sizes and dtype."""
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
        """Whether it calls somebody's function, and is no computation of a workload."""
        return self.dtype is None

    @property
    def hardware_count(self) -> int:
        """How many pieces of hardware compute it: the accelerators, or the hosts whose CPUs do."""
        return self.placement.hosts if self.device.startswith("cpu") else self.placement.devices

    @cached_property
    def work(self) -> str:
        """What is computed, whoever computes it: `gemm(m=64,n=64,k=64)/float32`."""
        if self.dtype is None:
            return self.workload
        inner = ",".join(f"{name}={str(value).lower()}" for name, value in self.params.items())
        return f"{self.workload}({inner})/{self.dtype}"

    @cached_property  # the key of most tables
    def id(self) -> str:
        """Stable and readable; `device` may hold a colon, `target` an @. The grammar: model/placement.py."""
        cache = "" if self.cache is Cache.HOT else self.cache
        how = "/".join(filter(None, (self.work, self.mode, cache)))
        return f"{how}@{self.target}:{self.device}{suffix(self.placement, self.environment, self.threads)}"


def present_id(case: str, names: Mapping[str, str]) -> str:
    """The id of a case under its workload's present name; `names`: former name → present one."""
    name, bracket, rest = case.partition("(")
    return f"{names[name]}({rest}" if bracket and name in names else case


def present_names(cases: Iterable[Case | None]) -> dict[str, str]:
    """A workload's former name → the one it has now, as the cases say."""
    return last_names({case.formerly: case.workload for case in cases if case and case.formerly})


def last_names(names: Mapping[str, str]) -> dict[str, str]:
    """Former names → the last of what was renamed twice."""
    found = dict(names)
    for former in names:
        passed = {former}
        while (present := found[former]) in names and present not in passed:
            passed.add(present)
            found[former] = names[present]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A case that was asked for and cannot run here, and why."""

    case: Case
    status: Status
    reason: str
