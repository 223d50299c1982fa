"""Python API: the search for the version that caused a step."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from benchbench.analyse import metrics
from benchbench.environments.interpreters import absolute_interpreters
from benchbench.errors import UsageError
from benchbench.judging.bisection import LOOKS, MIN_CONFIRMING_PAIRS
from benchbench.judging.comparison import THRESHOLD, valid_threshold
from benchbench.launch.project import user_code
from benchbench.model import user_model
from benchbench.model.options import (
    MeasureKeywords,
    MeasureOptions,
    Names,
    requested_options,
    several,
    takes_keywords,
)
from benchbench.plan.revision import Version, releases, revisions
from benchbench.running.bisecting import Bisection, BisectOptions, bisect_versions
from benchbench.running.measure import model_specs
from benchbench.running.observer import RunObserver
from benchbench.store.selectors import results_folder

MAX_PAIRS = 100  # of processes
CONFIDENCE = 0.95


@takes_keywords(without=("max_error", "rounds", "budget_s"))
def bisect(
    backend: str = "",
    versions: Names = (),
    *,
    rev: str = "",
    good: str = "",
    bad: str = "",
    suite: Names = "quick",
    metric: str = "latency_s",
    threshold: float = THRESHOLD,
    confidence: float = CONFIDENCE,
    most: int = MAX_PAIRS,
    variant: str = "",
    profile: bool = True,
    results: str | Path | None = None,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Bisection:
    """Find the version that caused a step, as `accelbench bisect` does.

    `backend` and `versions`: `"torch", "2.9..2.13"`, or a list; `good` and `bad`: names of targets before the
    first and after the last version. Alternatively `rev`: a range of revisions of your code, `"v1.0..HEAD"`.
    Changes below `threshold` do not count. The search ends at `confidence`, or after `most` pairs of
    processes. `variant`: the build of environments to create. `profile`: afterwards, profile the version and
    its predecessor. The other keywords are those of `run`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    measure = requested_options(bisect, suite, keywords, options)
    request = BisectOptions(
        versions=_version_row(measure, backend, versions, rev, (good, bad)),
        measure=measure,
        metric=metrics.metric_named(metric),
        threshold=valid_threshold(threshold),
        confidence=_valid_confidence(confidence),
        most=_valid_most(most),
        variant=variant,
        profile=profile,
    )
    return bisect_versions(request, results_folder(results), observer or RunObserver())


def _version_row(
    options: MeasureOptions, backend: str, versions: Names, rev: str, ends: tuple[str, str]
) -> list[Version]:
    """The versions to search: releases of a backend, or revisions of the user's code. Raises UsageError."""
    if rev:
        if backend or versions or any(ends):
            message = "Search either a backend's versions or revisions, not both."
            raise UsageError(message, "accelbench bisect --rev v1.0..HEAD -w my_workload")
        return revisions(rev, user_code(), [user_model.folder_of(spec) for spec in model_specs(options)])
    if not backend:
        hint = (
            "accelbench bisect torch 2.9..2.13 -w resnet50_infer; accelbench bisect --rev v1.0..HEAD -w mine"
        )
        raise UsageError("There are no versions to search.", hint)
    if options.backends:
        raise UsageError("The backend is already part of the versions.", "Leave -b out.")
    return releases(backend, ",".join(several(versions)), absolute_interpreters(options.pythons), *ends)


def _valid_confidence(value: float) -> float:
    if not 0.5 < value < 1:
        raise UsageError(f"A confidence of {value!r} is not between 50% and 100%.", "Write 95% or 0.95.")
    return value


def _valid_most(value: int) -> int:
    minimum = LOOKS[0] + MIN_CONFIRMING_PAIRS
    if value < minimum:
        raise UsageError(f"{value} pairs are too few.", f"The ends and the confirmation take {minimum}.")
    return value
