"""Optimizers: the published rule, each framework's implementation, and the gradient from the state.

A rule is written once for NumPy and JAX, as JAX users do. torch and TensorFlow have their own, fused if
available. t counts steps from 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from benchbench.errors import UsageError, unknown
from benchbench.model.case import Dtype, Scalar

FUSED_ADAGRAD_ON_CUDA = (2, 12)  # first torch release whose fused torch.optim.Adagrad works on CUDA
NARROW = (Dtype.FLOAT16, Dtype.BFLOAT16)
Slots = Mapping[str, Any]  # an optimizer's state of one parameter, by name


@dataclass(frozen=True)
class Optimizer(ABC):
    """The fields are hyper-parameters, with PyTorch's defaults unless noted."""

    learning_rate: float
    slots: ClassVar[Mapping[str, str]] = {}  # name → PyTorch's name; the initial value is 0
    counts: ClassVar[bool] = False  # whether the rule depends on t
    is_signed: ClassVar[bool] = True  # False: the state determines only the magnitude of the gradient
    averages: ClassVar[bool] = True  # whether it has slow averages of squares, which need more than 16 bits
    fused_in: ClassVar[frozenset[str]] = frozenset({"torch", "tensorflow"})  # frameworks with a kernel for it

    @property
    def moves(self) -> int:
        """Transfers per parameter: gradient read, parameter and each slot read and written."""
        return 3 + 2 * len(self.slots)

    @abstractmethod
    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        """Return the next parameter and slots. `xp` is NumPy or JAX's NumPy."""

    @abstractmethod
    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        """An instance of torch.optim; with `fused`, its fused kernel if torch has one."""

    @abstractmethod
    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        """Assign the next values to the variables p and slots."""

    def tensorflow_plainly(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        """Assign the next values by plain operations, following the published rule."""
        import tensorflow as tf

        next_parameter, next_slots = self.rule(tf, None if t is None else tf.cast(t, p.dtype), p, g, slots)
        p.assign(next_parameter)
        for name, value in next_slots.items():
            slots[name].assign(value)

    def gradient(self, slots: Slots) -> Any:
        """Gradient of the first step, computed from the slots after it; its magnitude if not `is_signed`."""
        return None

    def scalars(self, like: Any) -> list[Any]:
        """Hyper-parameters in field order, as TensorFlow constants with the dtype of `like`."""
        import tensorflow as tf

        return [tf.constant(getattr(self, field.name), like.dtype) for field in fields(self)]


@dataclass(frozen=True)
class Sgd(Optimizer):
    """p ← p − ηg (Robbins & Monro 1951). It has no state: the gradient follows from the update."""

    learning_rate: float = 0.1
    averages = False

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        return p - self.learning_rate * g, {}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        import torch

        return torch.optim.SGD(parameters, lr=self.learning_rate, **_fused(parameters, fused))

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        import tensorflow as tf

        (rate,) = self.scalars(p)
        tf.raw_ops.ResourceApplyGradientDescent(var=p.handle, alpha=rate, delta=g)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """v ← μv + g, p ← p − ηv (Polyak 1964, in PyTorch's form)."""

    learning_rate: float = 0.001
    momentum: float = 0.9
    slots: ClassVar[Mapping[str, str]] = {"v": "momentum_buffer"}
    averages = False

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        v = self.momentum * slots["v"] + g
        return p - self.learning_rate * v, {"v": v}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        import torch

        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=self.momentum, **_fused(parameters, fused)
        )

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        import tensorflow as tf

        rate, momentum = self.scalars(p)
        tf.raw_ops.ResourceApplyMomentum(
            var=p.handle, accum=slots["v"].handle, lr=rate, grad=g, momentum=momentum
        )

    def gradient(self, slots: Slots) -> Any:
        """After the first step v = g."""
        return slots["v"]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma & Ba 2015, algorithm 1."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[Mapping[str, str]] = {"m": "exp_avg", "v": "exp_avg_sq"}
    counts = True

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        m = self.beta1 * slots["m"] + (1 - self.beta1) * g
        v = self.beta2 * slots["v"] + (1 - self.beta2) * g * g
        mean, square = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        return p - self.learning_rate * mean / (xp.sqrt(square) + self.epsilon), {"m": m, "v": v}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        import torch

        betas = self.beta1, self.beta2
        settings = {"betas": betas, "eps": self.epsilon, "capturable": _on_cuda(parameters)}
        return torch.optim.Adam(parameters, lr=self.learning_rate, **settings, **_fused(parameters, fused))

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        """The fused kernel, whose epsilon is added before the bias is corrected: ε √(1 − β₂ᵗ)."""
        import tensorflow as tf

        rate, beta1, beta2, epsilon = self.scalars(p)[:4]
        power1, power2 = beta1 ** tf.cast(t, p.dtype), beta2 ** tf.cast(t, p.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=p.handle, m=slots["m"].handle, v=slots["v"].handle, beta1_power=power1, beta2_power=power2,
            lr=rate, beta1=beta1, beta2=beta2, epsilon=epsilon * tf.sqrt(1 - power2), grad=g,
        )  # fmt: skip

    def gradient(self, slots: Slots) -> Any:
        """After the first step m = (1 − β₁) g."""
        return slots["m"] / (1 - self.beta1)


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov & Hutter 2019, algorithm 2: the decay is not part of the gradient."""

    decay: float = 0.01

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        """The decay is applied first, as in PyTorch."""
        return super().rule(xp, t, p * (1 - self.learning_rate * self.decay), g, slots)

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        import torch

        betas = self.beta1, self.beta2
        settings = {"betas": betas, "eps": self.epsilon, "capturable": _on_cuda(parameters)}
        settings |= {"weight_decay": self.decay, **_fused(parameters, fused)}
        return torch.optim.AdamW(parameters, lr=self.learning_rate, **settings)

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        p.assign(p * (1 - self.learning_rate * self.decay))
        super().tensorflow(t, p, g, slots)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s ← s + g², p ← p − ηg / (√s + ε) (Duchi et al. 2011, the diagonal form)."""

    learning_rate: float = 0.01
    epsilon: float = 1e-10
    slots: ClassVar[Mapping[str, str]] = {"s": "sum"}
    is_signed = False

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        s = slots["s"] + g * g
        return p - self.learning_rate * g / (xp.sqrt(s) + self.epsilon), {"s": s}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        """Before torch 2.12 the fused kernel's first step raises on CUDA."""
        import torch

        works = not _on_cuda(parameters) or _release(torch.__version__) >= FUSED_ADAGRAD_ON_CUDA
        settings = _fused(parameters, fused and works)
        return torch.optim.Adagrad(parameters, lr=self.learning_rate, eps=self.epsilon, **settings)

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        import tensorflow as tf

        rate, epsilon = self.scalars(p)
        tf.raw_ops.ResourceApplyAdagradV2(
            var=p.handle, accum=slots["s"].handle, lr=rate, epsilon=epsilon, grad=g
        )

    def gradient(self, slots: Slots) -> Any:
        """After the first step |g| = √s."""
        return slots["s"] ** 0.5


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Zeiler 2012, algorithm 1: the step size follows the ratio of past updates to past gradients."""

    learning_rate: float = 1.0
    rho: float = 0.9
    epsilon: float = 1e-6
    slots: ClassVar[Mapping[str, str]] = {"s": "square_avg", "d": "acc_delta"}
    is_signed = False
    fused_in = frozenset({"tensorflow"})

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        s = self.rho * slots["s"] + (1 - self.rho) * g * g
        delta = xp.sqrt(slots["d"] + self.epsilon) / xp.sqrt(s + self.epsilon) * g
        d = self.rho * slots["d"] + (1 - self.rho) * delta * delta
        return p - self.learning_rate * delta, {"s": s, "d": d}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        import torch

        settings = {"rho": self.rho, "eps": self.epsilon, "capturable": _on_cuda(parameters)}
        return torch.optim.Adadelta(parameters, lr=self.learning_rate, **settings)

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        import tensorflow as tf

        rate, rho, epsilon = self.scalars(p)
        tf.raw_ops.ResourceApplyAdadelta(
            var=p.handle, accum=slots["s"].handle, accum_update=slots["d"].handle,
            lr=rate, rho=rho, epsilon=epsilon, grad=g,
        )  # fmt: skip

    def gradient(self, slots: Slots) -> Any:
        """After the first step |g| = √(s / (1 − ρ))."""
        return (slots["s"] / (1 - self.rho)) ** 0.5


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """s ← ρs + (1 − ρ)g², p ← p − ηg / (√s + ε) (Hinton 2012, lecture 6e, in PyTorch's form)."""

    learning_rate: float = 0.01
    rho: float = 0.99
    epsilon: float = 1e-8
    slots: ClassVar[Mapping[str, str]] = {"s": "square_avg"}
    is_signed = False
    fused_in = frozenset()

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        s = self.rho * slots["s"] + (1 - self.rho) * g * g
        return p - self.learning_rate * g / (xp.sqrt(s) + self.epsilon), {"s": s}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        import torch

        settings = {"alpha": self.rho, "eps": self.epsilon, "capturable": _on_cuda(parameters)}
        return torch.optim.RMSprop(parameters, lr=self.learning_rate, **settings)

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        """Plain operations, since the fused kernel has its epsilon under the root."""
        import tensorflow as tf

        s = slots["s"].assign(self.rho * slots["s"] + (1 - self.rho) * g * g)
        p.assign_sub(self.learning_rate * g / (tf.sqrt(s) + self.epsilon))

    def gradient(self, slots: Slots) -> Any:
        """After the first step |g| = √(s / (1 − ρ))."""
        return (slots["s"] / (1 - self.rho)) ** 0.5


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(),
    "momentum": Momentum(),
    "adam": Adam(),
    "adamw": AdamW(),
    "adagrad": Adagrad(),
    "adadelta": Adadelta(),
    "rmsprop": RmsProp(),
}


def optimizer_named(name: str) -> Optimizer:
    """The optimizer with this name. Raises UsageError."""
    if name not in OPTIMIZERS:
        hint = unknown("optimizers", name, list(OPTIMIZERS))
        raise UsageError(f"No optimizer named {name!r}.", hint)
    return OPTIMIZERS[name]


def refusal(name: str, dtype: Dtype) -> str:
    """Reason why the optimizer's state does not fit `dtype`, or "".

    In 16 bits, slow averages of squares lose 1 − 0.999 in bfloat16, and small squares in float16.
    """
    if optimizer_named(name).averages and dtype in NARROW:
        return f"{name} keeps averages that {dtype} cannot represent: use mixed precision"
    return ""


def refuses_to_train(sizes: Mapping[str, Scalar], dtype: Dtype) -> str:
    """Reason why a user's training step cannot use the dtype, or ""."""
    if dtype is Dtype.AMP_FP16:
        return "user models train in amp-bf16, which needs no gradient scaling"
    name = sizes.get("optimizer")
    return refusal(name, dtype) if isinstance(name, str) else ""


def _fused(parameters: Sequence[Any], fused: bool) -> dict[str, bool]:
    """Arguments for torch's fused kernel, if it works on the device of the parameters: a CPU or CUDA.

    XLA fuses by itself, and other accelerators lack some kernels. On the CPU, SGD's kernel skips 16-bit
    parameters (pytorch#191763).
    """
    kind = parameters[0].device.type
    works = kind == "cuda" or (kind == "cpu" and parameters[0].element_size() != 2)
    return {"fused": True} if fused and works else {}


def _release(version: str) -> tuple[int, int]:
    """Major and minor version: (2, 12) for `2.12.1+cu130`."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _on_cuda(parameters: Sequence[Any]) -> bool:
    """True if a CUDA graph may capture the step, so that its count must be on the device."""
    return bool(parameters[0].device.type == "cuda")
