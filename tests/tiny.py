"""Every workload at its tiny size, as tests take it."""

from __future__ import annotations

from benchbench import registry
from benchbench.workloads.base import Workload

EVERY = {
    name: registry.load_class("benchbench.workloads", name, Workload)  # type: ignore[type-abstract]
    for name in registry.entry_names("benchbench.workloads")
}
NAMES = [name for name, kind in EVERY.items() if 1 in kind.worlds]  # the others need several devices
COLLECTIVES = [name for name in EVERY if name not in NAMES]


def tiny(name: str) -> Workload:
    """The workload of that name."""
    return EVERY[name]().tiny()


def variants(name: str) -> list[Workload]:
    """The tiny workload, and with every truth value it has turned."""
    work = tiny(name)
    flags = [key for key, value in work.params.items() if isinstance(value, bool)]
    return [work] + [type(work)(**{**work.params, flag: not work.params[flag]}) for flag in flags]


def flags(work: Workload) -> str:
    """`-causal`, of the truth values that are set."""
    return "".join(f"-{key}" for key, value in work.params.items() if value is True)


WORKS = [(f"{name}{flags(work)}", name, work) for name in NAMES for work in variants(name)]  # by id
