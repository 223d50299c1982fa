"""A step of adversarial training: the discriminator's update, then the generator's.

Goodfellow et al. 2014, "Generative adversarial nets", algorithm 1 with k = 1: noise is drawn for each
update, and the generator makes large what the discriminator, as updated, takes for real (section 3).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchbench.model.placement import Strategy
from benchbench.workloads._layers import Passes
from benchbench.workloads._losses import Adversarial, Objective
from benchbench.workloads.steps import TrainingStep

GENERATOR, DISCRIMINATOR = "generator", "discriminator"  # what the names of their weights begin with


@dataclass(frozen=True)
class AdversarialStep(TrainingStep):
    """The forward functions of the network that it is derived with are the generator's.

    A file adds the discriminator's, which give logits of images, and its layers after the generator's.
    """

    input_names: ClassVar[tuple[str, ...]] = ("images", "noise", "new_noise")
    objectives = (
        Objective(Adversarial(real=(True, False)), DISCRIMINATOR),
        Objective(Adversarial(real=(True,)), GENERATOR),
    )

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:  # noqa: ARG003 - none, whoever computes it
        """None: two updates of one module are beyond what replicas of it can reduce."""
        return ()

    def passes(self) -> Passes:
        """4 G + 8 D − g₁ − 2 d₁, of the forward passes G and D and their first layers g₁ and d₁.

        The discriminator's update makes images (G) and takes three passes over real and made ones (6 D); the
        generator's makes images, judges them, and goes back to its own weights (3 G + 2 D). First layers need
        no gradient of their inputs, but for the discriminator's while the generator learns.
        """
        made, judged = self._layers_of(GENERATOR), self._layers_of(DISCRIMINATOR)
        whole = [*((4, layer) for layer in made), *((8, layer) for layer in judged)]
        return [*whole, (-1, made[0]), (-2, judged[0])]

    def _layers_of(self, player: str) -> list[Any]:
        return [layer for layer in self.layers() if any(name.startswith(player) for name in layer.weights())]

    @abstractmethod
    def judge_tensorflow(self, weights: dict[str, Any], images: Any) -> Any:
        """Logits of whether the images are real."""

    @abstractmethod
    def judge_jax(self, weights: dict[str, Any], images: Any) -> Any:
        """Logits of whether the images are real."""

    @abstractmethod
    def judge_numpy(self, ops: Any, weights: dict[str, Any], images: Any) -> Any:
        """Logits of whether the images, NCHW, are real."""

    def tensorflow(self, weights: dict[str, Any], *inputs: Any, learner: str, **training: Any) -> Any:
        """A tuple of logits: of real and of made images, or of new ones."""
        import tensorflow as tf

        images, noise, new_noise = inputs
        if learner == GENERATOR:
            made = super().tensorflow(weights, new_noise, **training)  # type: ignore[safe-super]
            return (self.judge_tensorflow(weights, made),)
        made = super().tensorflow(weights, noise, **training)  # type: ignore[safe-super]
        made = tf.stop_gradient(made)
        return self.judge_tensorflow(weights, images), self.judge_tensorflow(weights, made)

    def jax(self, weights: dict[str, Any], *inputs: Any, learner: str, **training: Any) -> Any:
        """A tuple of logits: of real and of made images, or of new ones."""
        import jax

        images, noise, new_noise = inputs
        if learner == GENERATOR:
            made = super().jax(weights, new_noise, **training)  # type: ignore[safe-super]
            return (self.judge_jax(weights, made),)
        made = jax.lax.stop_gradient(super().jax(weights, noise, **training))  # type: ignore[safe-super]
        return self.judge_jax(weights, images), self.judge_jax(weights, made)

    def numpy(self, ops: Any, weights: dict[str, Any], *inputs: Any, learner: str, **training: Any) -> Any:
        """A tuple of logits: of real and of made images, or of new ones."""
        images, noise, new_noise = inputs
        given = new_noise if learner == GENERATOR else noise
        made = super().numpy(ops, weights, given, **training)  # type: ignore[safe-super]
        made = ops.np.transpose(made, (0, 3, 1, 2))
        if learner == GENERATOR:
            return (self.judge_numpy(ops, weights, made),)
        return self.judge_numpy(ops, weights, images), self.judge_numpy(ops, weights, made)


def torch_adversaries(generator: Any, discriminator: Any) -> Any:
    """The module of both, which is told who learns."""
    import torch
    from torch import Tensor, nn

    class Adversaries(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = generator, discriminator

        def forward(
            self, images: Tensor, noise: Tensor, new_noise: Tensor, learner: str
        ) -> tuple[Tensor, ...]:
            if learner == GENERATOR:
                return (self.discriminator(self.generator(new_noise)),)
            with torch.no_grad():
                made = self.generator(noise)
            return self.discriminator(images), self.discriminator(made)

    return Adversaries()
