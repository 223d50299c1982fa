"""What the shell can complete: names of what there is, several by commas. Imports no framework, runs no code.

A mistake in a file of the user's is none of completion's business: it then knows fewer names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from benchbench.errors import AccelbenchError

Words = Callable[[Path], Iterable[str]]  # of the results folder
Completion = Callable[[typer.Context, str], list[str]]


def completing(words: Words) -> Completion:
    """A completion of a list of words that are separated by commas."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        with suppress(AccelbenchError, OSError):
            return [f"{before}{comma}{word}" for word in words(_results(ctx)) if _fits(word, last, taken)]
        return []

    return complete


def _fits(word: str, last: str, taken: list[str]) -> bool:
    return word.startswith(last) and word not in taken


def _results(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("results") or os.environ.get("ACCELBENCH_RESULTS") or "results")


def _suites(_: Path) -> Iterable[str]:
    from benchbench.plan.suite import suite_names

    return suite_names()


def _workloads(_: Path) -> Iterable[str]:
    from benchbench.launch import catalogue

    return catalogue.names_without_importing()


def _backends(_: Path) -> Iterable[str]:
    from benchbench import registry
    from benchbench.environments.interpreters import environment_names

    return dict.fromkeys([*registry.entry_names("benchbench.backends"), *environment_names()])


def _environments(_: Path) -> Iterable[str]:
    from benchbench.environments.interpreters import environment_names

    return environment_names()


def _modes(_: Path) -> Iterable[str]:
    from benchbench import registry
    from benchbench.backends.base import Backend

    package = "benchbench.backends"
    kinds = [
        registry.load_class(package, name, Backend)  # type: ignore[type-abstract]
        for name in registry.entry_names(package)
    ]
    return dict.fromkeys(mode for kind in kinds for mode in kind.modes)


def _dtypes(_: Path) -> Iterable[str]:
    from benchbench.model.case import Dtype

    return map(str, Dtype)


def _caches(_: Path) -> Iterable[str]:
    from benchbench.model.case import Cache

    return map(str, Cache)


def _strategies(_: Path) -> Iterable[str]:
    from benchbench.model.placement import Strategy

    return [str(each) for each in Strategy if each not in (Strategy.SINGLE, Strategy.COLLECTIVE)]


def _devices(_: Path) -> Iterable[str]:
    return "cpu", "gpu", "tpu", "accelerator", "cuda:0"


def _metrics(_: Path) -> Iterable[str]:
    from benchbench.analyse.metrics import METRICS

    return [metric.name for metric in METRICS]


def _columns(_: Path) -> Iterable[str]:
    from benchbench.documents.run_table import choices

    return choices()


def _hardware_columns(_: Path) -> Iterable[str]:
    from benchbench.documents.hardware import column_names

    return column_names()


def _axes(_: Path) -> Iterable[str]:
    from benchbench.documents.run_table import AXES

    return AXES


def _verdicts(_: Path) -> Iterable[str]:
    from benchbench.model.status import Verdict

    return map(str, Verdict)


def _runs(results: Path) -> Iterable[str]:
    """The newest first."""
    from benchbench.store import selectors

    return ["latest", "latest~1", *reversed(selectors.run_ids(results))]


def _baselines(results: Path) -> Iterable[str]:
    from benchbench.gate.baselines import baseline_names

    return baseline_names(results)


suites, workloads, backends, environments = map(completing, (_suites, _workloads, _backends, _environments))
metrics, columns, axes, verdicts = map(completing, (_metrics, _columns, _axes, _verdicts))
runs, baselines, hardware_columns = map(completing, (_runs, _baselines, _hardware_columns))
OF_FIELDS: dict[str, Any] = {  # of MeasureOptions
    "suites": suites,
    "workloads": workloads,
    "backends": backends,
    "devices": completing(_devices),
    "dtypes": completing(_dtypes),
    "modes": completing(_modes),
    "caches": completing(_caches),
    "strategies": completing(_strategies),
}
