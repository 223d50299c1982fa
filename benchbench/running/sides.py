"""Measurement of two sides as partner runs: both sides of a case take turns in the same heat."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from benchbench.analyse.digest import changed_params, work_mismatches
from benchbench.environments.interpreters import absolute_interpreters, targets
from benchbench.errors import NotComparable
from benchbench.launch import catalogue
from benchbench.launch.project import user_code
from benchbench.machine.environment import machine
from benchbench.model.case import Case, LeftOut, Status
from benchbench.model.device import Probe, Target
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Partner, Run, RunInfo, Settings
from benchbench.plan.cases import Obstacle, Plan, check_devices, plan, requested_devices, too_large
from benchbench.plan.estimates import planned_work
from benchbench.plan.rerun import Variant, apply_variant, obstacle_of, targets_of_variants
from benchbench.plan.revision import code_at
from benchbench.running.measure import (
    SIZES,
    Measurer,
    Side,
    described_models,
    measuring,
    models_of_revision,
    targets_of,
)
from benchbench.running.observer import RunObserver
from benchbench.running.recording import run_head
from benchbench.running.request import Request, Terms, request, with_project
from benchbench.store import runs
from benchbench.store.disk import COMMIT

Pair = tuple[Case, Case]
RunPair = tuple[RunInfo, RunInfo]
Pinned = Mapping[str, Collection[str]]  # case id → parameters with equal values on both sides


def measure_sides(
    sides: Sequence[Variant], options: MeasureOptions, results: Path, observer: RunObserver
) -> tuple[Run, Run]:
    """Measure the requested cases on both sides, and return them as two stored partner runs.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    with described_models(options, observer) as models:
        run_request, options = request(options, models), with_project(options)
        pythons = absolute_interpreters(options.pythons)
        requested = targets(options.backends, pythons) if options.backends else []
        side_targets = targets_of_variants(sides, requested, pythons)
        with _measuring(sides, side_targets, run_request, results, observer) as (variants, measurer):
            infos = plan_sides(measurer.probe(), run_request, variants)
            for line in changed_defaults(infos):
                observer.note(line)
            check_comparable(infos)
            measurer.record(infos)
    return _read_pair(infos, results)


def measure_cases_on(
    sides: tuple[Variant, Variant],
    cases: Sequence[Case],
    terms: Terms,
    pythons: Mapping[str, str],
    results: Path,
    observer: RunObserver,
    pinned: Pinned = MappingProxyType({}),
) -> tuple[Run, Run]:
    """Measure stored cases on both sides; see `measure_sides`. The second side is as they were measured.

    `pythons`: interpreter of each target, as typed. `pinned`: see `heads`.
    """
    new_targets = targets_of(cases, pythons)
    ref_targets = [sides[0].target] if sides[0].target else new_targets
    with _measuring(sides, (ref_targets, new_targets), terms, results, observer) as (variants, measurer):
        infos = heads(cases, measurer.probe(), terms, variants, pinned)
        check_comparable(infos)
        measurer.record(infos)
    return _read_pair(infos, results)


@contextmanager
def _measuring(
    variants: Sequence[Variant],
    side_targets: Sequence[Sequence[Target]],
    terms: Terms,
    results: Path,
    observer: RunObserver,
) -> Iterator[tuple[list[Variant], Measurer]]:
    """Yield the variants with their code, and the measurer of both sides."""
    with ExitStack() as stack:
        variants = [
            stack.enter_context(_with_code(variant, targets_of_side, terms.settings, observer))
            for variant, targets_of_side in zip(variants, side_targets, strict=True)
        ]
        sides = [
            Side(targets=targets_of_side, settings=variant.applied(terms.settings), code=variant.code)
            for variant, targets_of_side in zip(variants, side_targets, strict=True)
        ]
        yield variants, stack.enter_context(measuring(sides, terms.wait_s, results, observer))


@contextmanager
def _with_code(
    variant: Variant, targets: Sequence[Target], settings: Settings, observer: RunObserver
) -> Iterator[Variant]:
    """Yield the variant with the user's code. A revision is checked out, and its models are described."""
    code = user_code()
    if not variant.revision:
        yield dataclasses.replace(variant, code=code)
        return
    with (
        code_at(variant.revision, code) as checkout,
        models_of_revision(checkout, targets, settings, observer) as described_code,
    ):
        yield dataclasses.replace(variant, code=described_code)


def _read_pair(infos: RunPair, results: Path) -> tuple[Run, Run]:
    first, second = (runs.read_run(results / runs.RUNS / info.id) for info in infos)
    return first, second


def plan_sides(
    probes: Sequence[Sequence[Probe]], run_request: Request, variants: Sequence[Variant]
) -> RunPair:
    """Plan two partner runs: the first side's plan, as changed by each variant.

    Raises UsageError for a device or mode that does not exist.
    """
    check_devices(requested_devices(run_request.entries, run_request.selection.devices), probes[0])
    first_plan = plan(run_request.entries, run_request.selection, probes[0])
    cases = [*first_plan.cases, *(left_out.case for left_out in first_plan.left_out)]
    return heads(cases, probes, run_request, variants, first_plan.pinned)


def heads(
    cases: Sequence[Case],
    probes: Sequence[Sequence[Probe]],
    terms: Terms,
    variants: Sequence[Variant],
    pinned: Pinned = MappingProxyType({}),
) -> RunPair:
    """The heads of two partner runs of stored cases.

    A pair is left out of both runs if a side cannot run. `pinned`: as in `Plan`; all parameters of a case
    without an entry are pinned.
    """
    pairs = _pairs_and_obstacles(_pairs(cases, probes, variants, pinned), probes, variants)
    infos: list[RunInfo] = []
    for side, variant in enumerate(variants):
        left_out = tuple(_left_out(pair, obstacles, side) for pair, obstacles in pairs if any(obstacles))
        side_plan = Plan(tuple(pair[side] for pair, obstacles in pairs if not any(obstacles)), left_out)
        side_terms = Terms(
            policy=terms.policy,
            settings=variant.applied(terms.settings),
            seed=infos[0].seed if infos else terms.seed,
            command=terms.command,
        )
        info = run_head(probes[side], side_plan, side_terms)
        if variant.revision:  # its label names the measured commit; the tag would name the one checked out
            tags = {name: value for name, value in info.tags.items() if name != COMMIT}
            info = dataclasses.replace(info, tags=tags)
        infos.append(info)
    new_ids = {ref.id: new.id for (ref, new), _ in pairs}
    ref_ids = {new.id: ref.id for (ref, new), _ in pairs}
    return (
        dataclasses.replace(
            infos[0], partner=Partner(label=variants[0].text, run=infos[1].id, cases=new_ids)
        ),
        dataclasses.replace(
            infos[1], partner=Partner(label=variants[1].text, run=infos[0].id, cases=ref_ids)
        ),
    )


def changed_defaults(infos: RunPair) -> list[str]:
    """A line for each workload whose sides differ in defaults: `model: defaults differ: depth 6 → 8`."""
    pairs = zip(*(info.plan for info in infos), strict=True)
    changes = ((new.workload, changed_params(ref.params, new.params)) for ref, new in pairs)
    return list(
        dict.fromkeys(f"{name}: defaults differ: {', '.join(params)}" for name, params in changes if params)
    )


def check_comparable(infos: RunPair) -> None:
    """Raise NotComparable if no case is left since the sides of each cannot be compared."""
    incomparable = [left_out for left_out in infos[0].left_out if left_out.status is Status.INCOMPARABLE]
    if incomparable and not infos[0].plan:
        first = incomparable[0]
        raise NotComparable(
            f"{first.case.workload}: the two versions cannot be compared: {first.reason}.",
            f"Times are compared for equal inputs and outputs: {SIZES}",
        )


def _pairs(
    cases: Sequence[Case],
    probes: Sequence[Sequence[Probe]],
    variants: Sequence[Variant],
    pinned: Pinned,
) -> list[Pair]:
    """Both sides of each case. If a variant makes two cases equal, only the first remains."""
    pairs: dict[str, Pair] = {}
    new_ids: set[str] = set()
    for case in cases:
        ref, new = (
            apply_variant(case, variant, side_probes, pinned.get(case.id))
            for variant, side_probes in zip(variants, probes, strict=True)
        )
        if ref.id not in pairs and new.id not in new_ids:
            pairs[ref.id] = ref, new
            new_ids.add(new.id)
    return list(pairs.values())


def _pairs_and_obstacles(
    pairs: Sequence[Pair], probes: Sequence[Sequence[Probe]], variants: Sequence[Variant]
) -> list[tuple[Pair, tuple[Obstacle | None, ...]]]:
    """Each pair, with the obstacles of both sides or the obstacle to comparing them."""
    result: list[tuple[Pair, tuple[Obstacle | None, ...]]] = []
    for pair in pairs:
        obstacles = tuple(map(_obstacle_of_side, pair, probes, variants))
        result.append((pair, obstacles if any(obstacles) else (_comparison_obstacle(pair, variants), None)))
    return result


def _comparison_obstacle(pair: Pair, variants: Sequence[Variant]) -> Obstacle | None:
    """The obstacle to comparing two versions of a work, if any, before they are measured."""
    ref, new = (planned_work(case, variant.code) for case, variant in zip(pair, variants, strict=True))
    mismatches = work_mismatches(ref, new) if ref and new else []
    return Obstacle(Status.INCOMPARABLE, "; ".join(mismatches)) if mismatches else None


def _obstacle_of_side(case: Case, probes: Sequence[Probe], variant: Variant) -> Obstacle | None:
    """The obstacle to running the case, if any. Measuring reports mistakes in the user's file."""
    if variant.code and (
        catalogue.is_mistaken_model(case.workload, variant.code)
        or catalogue.user_catalogue(variant.code).mistake(case.workload)
    ):
        return None
    probe = next(probe for probe in probes if probe.target.name == case.target)
    return obstacle_of(case, probe, variant.code) or too_large(case, machine().memory_bytes, variant.code)


def _left_out(pair: Pair, obstacles: Sequence[Obstacle | None], side: int) -> LeftOut:
    other = obstacles[1 - side]
    obstacle = obstacles[side] or Obstacle(
        Status.SKIPPED, f"its counterpart cannot run: {other.reason if other else ''}"
    )
    return obstacle.omit(pair[side])
