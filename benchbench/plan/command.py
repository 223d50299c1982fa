"""Command that measures one case again. Pure."""

from __future__ import annotations

import shlex

from benchbench.model.case import Cache, Case
from benchbench.model.options import Weights
from benchbench.model.placement import Strategy
from benchbench.model.run import RunInfo


def command_of(case: Case, info: RunInfo | None = None) -> str:
    """Command such as `accelbench run -w gemm -p m=64 … --dtype float32 -b torch --mode eager -d cpu`.

    `info`: the run's head, for the location of a user's model. The command is empty for a function of a
    user's test, which only its test can measure, and for values with commas, which cannot be typed.
    """
    values = [*map(str, case.params.values()), *case.environment.values()]
    if case.dtype is None or any("," in value for value in values) or case.placement.hosts > 1:
        return ""
    words = ["accelbench", "run", *(_model(case, info) if info else ()), "-w", case.workload]
    for name, value in case.params.items():
        words += ["-p", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    words += ["--dtype", case.dtype, "-b", case.target, "--mode", case.mode]
    words += _place(case)
    if case.cache is not Cache.HOT:
        words += ["--cache", case.cache]
    for name, text in case.environment.items():
        words += ["--env", f"{name}={text}"]
    if case.threads:
        words += ["--threads", str(case.threads)]
    return shlex.join(words)


def _model(case: Case, info: RunInfo) -> list[str]:
    """Options for a user's model, its inputs and weights; none for workloads of accelbench."""
    if case.workload not in info.models:
        return []
    settings, words = info.settings, ["--model", info.models[case.workload]]
    words += ["--input", settings.input] if settings.input else []
    words += ["--weights", settings.weights] if settings.weights is not Weights.DRAWN else []
    return words + (["--max-error", f"{settings.max_error:g}"] if settings.max_error is not None else [])


def _place(case: Case) -> list[str]:
    placement = case.placement
    names = "+".join(placement.names)
    words = ["-d", case.device]
    if placement.devices > 1:
        words += ["--world", names or str(placement.devices)]
    if placement.strategy not in (Strategy.SINGLE, Strategy.COLLECTIVE):
        words += ["--strategy", placement.strategy]
    return words
