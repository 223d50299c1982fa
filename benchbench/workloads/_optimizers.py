"""Optimizers: the published rule, each framework's implementation, and the gradient from the state.

A rule is written once for NumPy and JAX, as JAX users do. torch and TensorFlow have their own, fused if
available. t counts steps from 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    torch_class: ClassVar[str]  # in torch.optim
    capturable: ClassVar[bool] = False  # whether torch can keep t on the device, as CUDA graphs need
    kernel: ClassVar[str]  # TensorFlow's, in tf.raw_ops, unless `tensorflow` is overridden
    kernel_names: ClassVar[Mapping[str, str]]  # its arguments → g, a slot or a hyper-parameter

    @property
    def moves(self) -> int:
        """Transfers per parameter: gradient read, parameter and each slot read and written."""
        return 3 + 2 * len(self.slots)

    @abstractmethod
    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        """Return the next parameter and slots. `xp` is NumPy or JAX's NumPy."""

    @property
    def torch_settings(self) -> dict[str, Any]:
        """Arguments of the class in torch.optim besides the learning rate."""
        return {}

    def torch(self, parameters: Sequence[Any], *, fused: bool = True) -> Any:
        """An instance of torch.optim; with `fused`, its fused kernel if torch has one."""
        import torch

        settings = self.torch_settings
        if self.capturable:
            settings["capturable"] = _on_cuda(parameters)
        if fused and "torch" in self.fused_in and self.fuses(parameters):
            settings["fused"] = True
        return getattr(torch.optim, self.torch_class)(parameters, lr=self.learning_rate, **settings)

    def fuses(self, parameters: Sequence[Any]) -> bool:
        """True if torch's fused kernel works on the device of the parameters: a CPU or CUDA.

        XLA fuses by itself, and other accelerators lack some kernels. On the CPU, SGD's kernel skips 16-bit
        parameters (pytorch#191763).
        """
        kind = parameters[0].device.type
        return bool(kind == "cuda" or (kind == "cpu" and parameters[0].element_size() != 2))

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        """Assign the next values to the variables p and slots."""
        import tensorflow as tf

        tensors = {"g": g, **{name: slot.handle for name, slot in slots.items()}}
        operands = {
            name: tensors[ours] if ours in tensors else tf.constant(getattr(self, ours), p.dtype)
            for name, ours in self.kernel_names.items()
        }
        getattr(tf.raw_ops, self.kernel)(var=p.handle, **operands)

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


@dataclass(frozen=True)
class Sgd(Optimizer):
    """p ← p − ηg (Robbins & Monro 1951). It has no state: the gradient follows from the update."""

    learning_rate: float = 0.1
    averages = False
    torch_class, kernel = "SGD", "ResourceApplyGradientDescent"
    kernel_names: ClassVar = {"alpha": "learning_rate", "delta": "g"}

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        return p - self.learning_rate * g, {}


@dataclass(frozen=True)
class Momentum(Optimizer):
    """v ← μv + g, p ← p − ηv (Polyak 1964, in PyTorch's form)."""

    learning_rate: float = 0.001
    momentum: float = 0.9
    slots: ClassVar[Mapping[str, str]] = {"v": "momentum_buffer"}
    averages = False
    torch_class, kernel = "SGD", "ResourceApplyMomentum"
    kernel_names: ClassVar = {"accum": "v", "lr": "learning_rate", "momentum": "momentum", "grad": "g"}

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        v = self.momentum * slots["v"] + g
        return p - self.learning_rate * v, {"v": v}

    @property
    def torch_settings(self) -> dict[str, Any]:
        return {"momentum": self.momentum}

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
    torch_class, capturable = "Adam", True

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        m = self.beta1 * slots["m"] + (1 - self.beta1) * g
        v = self.beta2 * slots["v"] + (1 - self.beta2) * g * g
        mean, square = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        return p - self.learning_rate * mean / (xp.sqrt(square) + self.epsilon), {"m": m, "v": v}

    @property
    def torch_settings(self) -> dict[str, Any]:
        return {"betas": (self.beta1, self.beta2), "eps": self.epsilon}

    def tensorflow(self, t: Any, p: Any, g: Any, slots: Slots) -> None:
        """The fused kernel, whose epsilon is added before the bias is corrected: ε √(1 − β₂ᵗ)."""
        import tensorflow as tf

        settings = self.learning_rate, self.beta1, self.beta2, self.epsilon
        rate, beta1, beta2, epsilon = (tf.constant(value, p.dtype) for value in settings)
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
    torch_class = "AdamW"

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        """The decay is applied first, as in PyTorch."""
        return super().rule(xp, t, p * (1 - self.learning_rate * self.decay), g, slots)

    @property
    def torch_settings(self) -> dict[str, Any]:
        return super().torch_settings | {"weight_decay": self.decay}

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
    torch_class, kernel = "Adagrad", "ResourceApplyAdagradV2"
    kernel_names: ClassVar = {"accum": "s", "lr": "learning_rate", "epsilon": "epsilon", "grad": "g"}

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        s = slots["s"] + g * g
        return p - self.learning_rate * g / (xp.sqrt(s) + self.epsilon), {"s": s}

    @property
    def torch_settings(self) -> dict[str, Any]:
        return {"eps": self.epsilon}

    def fuses(self, parameters: Sequence[Any]) -> bool:
        """Before torch 2.12 the fused kernel's first step raises on CUDA."""
        import torch

        works = not _on_cuda(parameters) or _release(torch.__version__) >= FUSED_ADAGRAD_ON_CUDA
        return works and super().fuses(parameters)

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
    torch_class, capturable, kernel = "Adadelta", True, "ResourceApplyAdadelta"
    kernel_names: ClassVar = {
        "accum": "s", "accum_update": "d", "lr": "learning_rate", "rho": "rho", "epsilon": "epsilon",
        "grad": "g",
    }  # fmt: skip

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        s = self.rho * slots["s"] + (1 - self.rho) * g * g
        delta = xp.sqrt(slots["d"] + self.epsilon) / xp.sqrt(s + self.epsilon) * g
        d = self.rho * slots["d"] + (1 - self.rho) * delta * delta
        return p - self.learning_rate * delta, {"s": s, "d": d}

    @property
    def torch_settings(self) -> dict[str, Any]:
        return {"rho": self.rho, "eps": self.epsilon}

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
    torch_class, capturable = "RMSprop", True

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Slots) -> tuple[Any, dict[str, Any]]:
        s = self.rho * slots["s"] + (1 - self.rho) * g * g
        return p - self.learning_rate * g / (xp.sqrt(s) + self.epsilon), {"s": s}

    @property
    def torch_settings(self) -> dict[str, Any]:
        return {"alpha": self.rho, "eps": self.epsilon}

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


def _release(version: str) -> tuple[int, int]:
    """Major and minor version: (2, 12) for `2.12.1+cu130`."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _on_cuda(parameters: Sequence[Any]) -> bool:
    """True if a CUDA graph may capture the step, so that its count must be on the device."""
    return bool(parameters[0].device.type == "cuda")
