"""Does every framework train each network to the same losses, from the same weights on the same batch?

`python -m studies.losses [FRAMEWORK]…` prints the losses of the first ten steps beside those of float64.
tests/test_losses.py checks the same losses.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.model.case import Dtype
from benchbench.model.device import Probe, Target
from benchbench.workloads.base import Draw, Training, Workload
from benchbench.workloads.networks.residual_networks import R3d18, Resnet50
from benchbench.workloads.steps import AdversarialStep, TrainingStep
from benchbench.workloads.transfers.input_pipeline import InputPipeline
from tests.factories import a_case, real_settings
from tests.tiny import NAMES, tiny
from tests.verifying import OpenPools

STEPS = 10
FRAMEWORKS = ("torch", "tensorflow", "jax", "torch_xla")
# In an adversarial step each update raises the other loss. An input pipeline never repeats a batch.
NETWORKS = tuple(
    name
    for name in NAMES
    if isinstance(tiny(name), TrainingStep) and not isinstance(tiny(name), AdversarialStep | InputPipeline)
)


def network(name: str) -> Training:
    """The network with small images but at full depth; `tiny()` has a shallow ResNet-50 and R3D-18."""
    work = registry.load_class("benchbench.workloads", name, Workload)()  # type: ignore[type-abstract]
    assert isinstance(work, Training)
    if isinstance(work, R3d18):
        return replace(work.tiny(), depth=18)
    return replace(work, batch=2, image=64) if isinstance(work, Resnet50) else work.tiny()


def float64_losses(name: str) -> list[float]:
    """Losses of the float64 reference."""
    work = network(name)
    return [loss for loss, _ in work.reference(work.arrays(Draw(Dtype.FLOAT32)), STEPS)]


class Frameworks:
    """A template process per framework, which imports it once; each training runs in a fork of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._pools = OpenPools(stack, real_settings())

    def probe(self, name: str) -> Probe:
        """Return whether the framework is installed, and its device."""
        return self._pools.of(name)[1]

    def losses(self, framework: str, name: str, steps: int, dtype: Dtype = Dtype.FLOAT32) -> list[float]:
        """Losses of the first `steps` steps of a network."""
        pool, probe = self._pools.of(framework)
        answer = pool.run_case(training_case(probe.target, name, dtype), {"kind": "trace", "steps": steps})[0]
        assert answer.reply is not None, answer
        assert "losses" in answer.reply, answer.reply
        values: list[float] = answer.reply["losses"]
        return values


def training_case(target: Target, name: str, dtype: Dtype) -> Any:
    """The case that trains this network on this target."""
    backend = backend_class(target.backend)
    work = network(name)
    return a_case(
        workload=name, params=work.params, dtype=dtype, mode=backend.modes[0], phase=work.phase,
        target=target.name, backend=target.backend,
    )  # fmt: skip


def table(losses: dict[str, list[float]]) -> str:
    """A row for each step, a column for each framework."""
    lines = ["step  " + "".join(f"{name:>14}" for name in losses)]
    for step, row in enumerate(zip(*losses.values(), strict=True), 1):
        lines.append(f"{step:4}  " + "".join(f"{loss:14.8f}" for loss in row))
    return "\n".join(lines)


def main() -> None:
    """Print the losses of every network."""
    with ExitStack() as stack:
        frameworks = Frameworks(stack)
        installed = [name for name in sys.argv[1:] or FRAMEWORKS if frameworks.probe(name).status == "ready"]
        for name in NETWORKS:
            losses = {framework: frameworks.losses(framework, name, STEPS) for framework in installed}
            print(f"{name}, float32\n{table({'float64': float64_losses(name)} | losses)}\n")


if __name__ == "__main__":
    main()
