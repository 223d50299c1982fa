"""The first ten losses of one network, from the same weights on the same batch, in every framework.

`python -m tests.studies.losses` prints them side by side with float64's. A program, and what
test_losses.py checks.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from benchbench import registry
from benchbench.launch.pool import WorkerPool
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Dtype
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.workloads.base import Draw, Training, Workload
from benchbench.workloads.networks.resnet50 import Resnet50
from tests.factories import a_case

STEPS = 10
NETWORKS = ("convnet_train", "resnet50_train")


def network(name: str) -> Training:
    """Small images, but as deep as it is timed: verification trains a shallow ResNet-50."""
    work = registry.load_class("benchbench.workloads", name, Workload)()  # type: ignore[type-abstract]
    assert isinstance(work, Training)
    return replace(work, batch=2, image=64) if isinstance(work, Resnet50) else work.tiny()


def float64_losses(name: str) -> list[float]:
    """What the maths gives."""
    work = network(name)
    return [loss for loss, _ in work.reference(work.arrays(Draw(Dtype.FLOAT32)), STEPS)]


def losses(targets: list[Target], name: str, dtype: Dtype = Dtype.FLOAT32) -> dict[str, list[float]]:
    """Target → its losses, each in a process of its own; a target that is not installed has none."""
    settings = Settings(threads=usable_threads(), timeout_s=900)  # others may work here too
    found = {}
    with WorkerPool(targets, settings, sys.executable) as pool:
        for target in [probe.target for probe in pool.probe() if probe.status != "unavailable"]:
            answer = pool.ask(traced(target, name, dtype), {"kind": "trace", "steps": STEPS})[0]
            assert answer.reply is not None, answer
            found[target.name] = answer.reply["losses"]
    return found


def traced(target: Target, name: str, dtype: Dtype) -> Any:
    """The case of that training."""
    from benchbench.backends.base import Backend

    backend = registry.load_class("benchbench.backends", target.backend, Backend)  # type: ignore[type-abstract]
    work = network(name)
    return a_case(
        workload=name, params=work.params, dtype=dtype, mode=backend.modes[0], phase=work.phase,
        target=target.name, backend=target.backend,
    )  # fmt: skip


def table(found: dict[str, list[float]]) -> str:
    """Steps down, frameworks across."""
    lines = ["step  " + "".join(f"{name:>14}" for name in found)]
    for step, row in enumerate(zip(*found.values(), strict=True), 1):
        lines.append(f"{step:4}  " + "".join(f"{loss:14.8f}" for loss in row))
    return "\n".join(lines)


def main() -> None:
    """Print both networks' losses."""
    from benchbench.environments.targets import targets

    wanted = targets(sys.argv[1:] or ["torch", "tensorflow", "jax", "torch_xla"], {}, sys.executable)
    for name in NETWORKS:
        print(f"{name}, float32\n{table({'float64': float64_losses(name)} | losses(wanted, name))}\n")


if __name__ == "__main__":
    main()
