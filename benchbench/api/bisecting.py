"""The functions that search a row of versions for the one that brought a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from benchbench.analyse import metrics
from benchbench.environments.targets import absolute_interpreters
from benchbench.errors import UsageError
from benchbench.judging.bisection import CONFIRMING, LOOKS
from benchbench.judging.comparison import THRESHOLD, valid_threshold
from benchbench.launch.project import user_code
from benchbench.model import own
from benchbench.model.options import MeasureKeywords, MeasureOptions, Names, asked_of, several, takes_keywords
from benchbench.plan.versions import Version, releases, revisions
from benchbench.running.bisect_plan import BisectPlan, plan_bisection
from benchbench.running.bisecting import Bisection, BisectObserver, BisectOptions, bisect_versions
from benchbench.running.measure import model_specs
from benchbench.store.selectors import results_folder

MOST = 100  # pairs
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
    most: int = MOST,
    variant: str = "",
    profile: bool = True,
    resume: str = "",
    results: str | Path | None = None,
    observer: BisectObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> Bisection:
    """Find the version that brought a step, as `accelbench bisect` does.

    `backend` and `versions`: `"torch", "2.9..2.13"`, or a list; `good` and `bad` name targets before and
    after it. Or `rev`: a range of revisions of the user's own code, `"v1.0..HEAD"`. A step smaller than
    `threshold` is none; a version is named at `confidence`; `most`: pairs of processes. `variant`: the build
    of environments that are missing. `profile`: then profile the version and its predecessor. `resume`: the
    id of a bisection that was interrupted. The other keywords are those of `run`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    measure = asked_of(bisect, suite, given, options)
    row = _row(measure, backend, versions, rev, (good, bad))
    asked = _checked(measure, row, metric, threshold, confidence, most, variant)
    asked = replace(asked, profile=profile, resume=resume)
    return bisect_versions(asked, results_folder(results), observer or BisectObserver())


@takes_keywords(without=("max_error", "rounds", "budget_s"))
def plan_bisect(
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
    most: int = MOST,
    variant: str = "",
    results: str | Path | None = None,
    observer: BisectObserver | None = None,
    options: MeasureOptions | None = None,
    **given: Unpack[MeasureKeywords],
) -> BisectPlan:
    """What `bisect` would take: its versions, downloads, and the pairs expected; nothing is measured or kept.

    Raises UsageError, CannotWrite.
    """
    measure = asked_of(plan_bisect, suite, given, options)
    row = _row(measure, backend, versions, rev, (good, bad))
    asked = _checked(measure, row, metric, threshold, confidence, most, variant)
    return plan_bisection(asked, results_folder(results), observer or BisectObserver())


def _checked(
    measure: MeasureOptions,
    row: list[Version],
    metric: str,
    threshold: float,
    confidence: float,
    most: int,
    variant: str,
) -> BisectOptions:
    """What was asked for, with each value checked. Raises UsageError."""
    return BisectOptions(
        versions=row,
        measure=measure,
        metric=metrics.metric_named(metric),
        threshold=valid_threshold(threshold),
        confidence=_valid_confidence(confidence),
        most=_valid_most(most),
        variant=variant,
    )


def _row(
    options: MeasureOptions, backend: str, versions: Names, rev: str, ends: tuple[str, str]
) -> list[Version]:
    """The versions asked for, those of a backend or of the user's code. Raises UsageError."""
    if rev:
        if backend or versions or any(ends):
            named = "A row is of a backend's versions, or of revisions."
            raise UsageError(named, "accelbench bisect --rev v1.0..HEAD -w my_workload")
        return revisions(rev, user_code(), [own.folder_of(spec) for spec in model_specs(options)])
    if not backend:
        hint = (
            "accelbench bisect torch 2.9..2.13 -w resnet50_infer; accelbench bisect --rev v1.0..HEAD -w mine"
        )
        raise UsageError("Nothing says which versions to search.", hint)
    if options.backends:
        raise UsageError("The row names its backend, and so does --backend.", "Leave -b out.")
    return releases(backend, ",".join(several(versions)), absolute_interpreters(options.pythons), *ends)


def _valid_confidence(value: float) -> float:
    if not 0.5 < value < 1:
        raise UsageError(f"A confidence of {value!r} names nothing.", "Write 95% or 0.95.")
    return value


def _valid_most(value: int) -> int:
    least = LOOKS[0] + CONFIRMING
    if value < least:
        raise UsageError(f"{value} pairs are too few.", f"The ends and the confirmation take {least}.")
    return value
