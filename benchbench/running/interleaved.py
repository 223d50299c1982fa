"""Two sides measured interleaved, a process of each after the other: A B, then B A, and again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from benchbench.analyse.digest import changed_params, work_mismatches
from benchbench.environments.targets import absolute_interpreters, targets
from benchbench.errors import NotComparable
from benchbench.launch import catalogue
from benchbench.launch.project import user_code
from benchbench.machine.environment import machine
from benchbench.model.case import Case, LeftOut
from benchbench.model.device import Probe, Target
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Partner, Run, RunInfo, Settings
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, plan, too_large
from benchbench.plan.costs import planned_work
from benchbench.plan.devices import Obstacle, check_devices, requested_devices
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
from benchbench.store.naming import COMMIT

Pair = tuple[Case, Case]
RunPair = tuple[RunInfo, RunInfo]
Pinned = Mapping[str, Collection[str]]  # case id → parameters


def measure_sides(
    sides: Sequence[Variant], options: MeasureOptions, results: Path, observer: RunObserver
) -> tuple[Run, Run]:
    """What is asked for on both sides, stored as two runs that are each other's partner.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    with described_models(options, observer) as models:
        return _measured(sides, options, models, results, observer)


def _measured(
    sides: Sequence[Variant],
    options: MeasureOptions,
    models: Sequence[str],
    results: Path,
    observer: RunObserver,
) -> tuple[Run, Run]:
    asked, options = request(options, models), with_project(options)
    pythons = absolute_interpreters(options.pythons)
    chosen = targets(options.backends, pythons, sys.executable) if options.backends else []
    of_sides = targets_of_variants(sides, chosen, pythons)
    with _measuring(sides, of_sides, asked, results, observer) as (variants, measurer):
        infos = plan_sides(measurer.probe(), asked, variants)
        for line in changed_defaults(infos):
            observer.note(line)
        check_comparable(infos)
        measurer.record(infos)
    return _stored(infos, results)


def measure_cases_on(
    sides: tuple[Variant, Variant],
    cases: Sequence[Case],
    terms: Terms,
    pythons: Mapping[str, str],
    results: Path,
    observer: RunObserver,
    pinned: Pinned = MappingProxyType({}),
) -> tuple[Run, Run]:
    """The same for cases planned before; the second side is what measured them then. `pythons`: as typed.

    `pinned`: case id → the parameters that the first side has the same values of; without it all.
    """
    here = targets_of(cases, pythons)
    there = [sides[0].target] if sides[0].target else here
    with _measuring(sides, (there, here), terms, results, observer) as (variants, measurer):
        infos = heads(cases, measurer.probe(), terms, variants, pinned)
        check_comparable(infos)
        measurer.record(infos)
    return _stored(infos, results)


@contextmanager
def _measuring(
    variants: Sequence[Variant],
    chosen: Sequence[Sequence[Target]],
    terms: Terms,
    results: Path,
    observer: RunObserver,
) -> Iterator[tuple[list[Variant], Measurer]]:
    """Yield the variants with their code, and the measurer of both sides. `chosen`: targets of each side."""
    with ExitStack() as stack:
        variants = [
            stack.enter_context(_with_code(variant, side_targets, terms.settings, observer))
            for variant, side_targets in zip(variants, chosen, strict=True)
        ]
        sides = [
            Side(targets=side_targets, settings=variant.applied(terms.settings), code=variant.code)
            for variant, side_targets in zip(variants, chosen, strict=True)
        ]
        yield variants, stack.enter_context(measuring(sides, terms.wait_s, results, observer))


@contextmanager
def _with_code(
    side: Variant, targets: Sequence[Target], settings: Settings, observer: RunObserver
) -> Iterator[Variant]:
    """Yield the side with the user's code at its revision checked out and described, if it names one."""
    code = user_code()
    if not side.revision:
        yield dataclasses.replace(side, code=code)
        return
    with (
        code_at(side.revision, code) as moved,
        models_of_revision(moved, targets, settings, observer) as described,
    ):
        yield dataclasses.replace(side, code=described)


def _stored(infos: RunPair, results: Path) -> tuple[Run, Run]:
    first, second = (runs.read_run(results / runs.RUNS / info.id) for info in infos)
    return first, second


def plan_sides(probes: Sequence[Sequence[Probe]], asked: Request, variants: Sequence[Variant]) -> RunPair:
    """The heads of two partner runs: the plan for the first side's targets, as each variant changes it.

    Raises UsageError for a device or mode that does not exist.
    """
    check_devices(requested_devices(asked.entries, asked.selection.devices), probes[0])
    chosen = plan(asked.entries, asked.selection, probes[0])
    cases = [*chosen.cases, *(each.case for each in chosen.left_out)]
    return heads(cases, probes, asked, variants, chosen.pinned)


def heads(
    cases: Sequence[Case],
    probes: Sequence[Sequence[Probe]],
    terms: Terms,
    variants: Sequence[Variant],
    pinned: Pinned = MappingProxyType({}),
) -> RunPair:
    """The heads for cases planned before. A pair of which one side cannot run is left out of both runs.

    `pinned`: as in `Plan`; the parameters of a case without it are all pinned.
    """
    judged = _judged(_pairs(cases, probes, variants, pinned), probes, variants)
    infos: list[RunInfo] = []
    for side, variant in enumerate(variants):
        left_out = tuple(_left_out(pair, obstacles, side) for pair, obstacles in judged if any(obstacles))
        chosen = Plan(tuple(pair[side] for pair, obstacles in judged if not any(obstacles)), left_out)
        seed = infos[0].seed if infos else terms.seed
        own = Terms(
            policy=terms.policy,
            settings=variant.applied(terms.settings),
            seed=seed,
            command=terms.command,
        )
        info = run_head(probes[side], chosen, own)
        if variant.revision:  # its label names the commit that is measured, not the one checked out here
            tags = {name: each for name, each in info.tags.items() if name != COMMIT}
            info = dataclasses.replace(info, tags=tags)
        infos.append(info)
    pairs = [pair for pair, _ in judged]
    there = {one.id: other.id for one, other in pairs}
    back = {other: one for one, other in there.items()}
    return (
        dataclasses.replace(infos[0], partner=Partner(label=variants[0].text, run=infos[1].id, cases=there)),
        dataclasses.replace(infos[1], partner=Partner(label=variants[1].text, run=infos[0].id, cases=back)),
    )


def changed_defaults(infos: RunPair) -> list[str]:
    """A line for each workload whose sides differ in defaults: `model: defaults differ: depth 6 → 8`."""
    pairs = zip(*(info.plan for info in infos), strict=True)
    found = ((new.workload, changed_params(ref.params, new.params)) for ref, new in pairs)
    return list(
        dict.fromkeys(f"{name}: defaults differ: {', '.join(sizes)}" for name, sizes in found if sizes)
    )


def check_comparable(infos: RunPair) -> None:
    """Raise NotComparable if nothing is left to measure since the sides of each case cannot be compared."""
    reasons = [out for out in infos[0].left_out if out.status is Status.INCOMPARABLE]
    if reasons and not infos[0].plan:
        first = reasons[0]
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
    """The two sides of each case. Where a variant makes two cases the same, only the first is kept."""
    pairs: dict[str, Pair] = {}
    taken: set[str] = set()
    for case in cases:
        a, b = (
            apply_variant(case, variant, probed, pinned.get(case.id))
            for variant, probed in zip(variants, probes, strict=True)
        )
        if a.id not in pairs and b.id not in taken:
            pairs[a.id] = a, b
            taken.add(b.id)
    return list(pairs.values())


def _judged(
    pairs: Sequence[Pair], probes: Sequence[Sequence[Probe]], variants: Sequence[Variant]
) -> list[tuple[Pair, tuple[Obstacle | None, ...]]]:
    """Each pair, and why a side cannot run, or why the two cannot be compared."""
    judged: list[tuple[Pair, tuple[Obstacle | None, ...]]] = []
    for pair in pairs:
        obstacles = tuple(map(_why_not, pair, probes, variants))
        judged.append((pair, obstacles if any(obstacles) else (_why_incomparable(pair, variants), None)))
    return judged


def _why_incomparable(pair: Pair, variants: Sequence[Variant]) -> Obstacle | None:
    """Why two versions of a work cannot be compared, if so: it is known before either is measured."""
    ref, new = (planned_work(case, variant.code) for case, variant in zip(pair, variants, strict=True))
    bars = work_mismatches(ref, new) if ref and new else []
    return Obstacle(Status.INCOMPARABLE, "; ".join(bars)) if bars else None


def _why_not(case: Case, probes: Sequence[Probe], variant: Variant) -> Obstacle | None:
    """Why a side cannot run the case, if so; a mistake in the user's file is found when it is measured."""
    if variant.code and (
        catalogue.is_mistaken_model(case.workload, variant.code)
        or catalogue.user_catalogue(variant.code).mistake(case.workload)
    ):
        return None
    probe = next(probe for probe in probes if probe.target.name == case.target)
    return obstacle_of(case, probe, variant.code) or too_large(case, machine().memory_bytes, variant.code)


def _left_out(pair: Pair, obstacles: Sequence[Obstacle | None], side: int) -> LeftOut:
    own, other = obstacles[side], obstacles[1 - side]
    found = own or Obstacle(Status.SKIPPED, f"its counterpart cannot run: {other.reason if other else ''}")
    return LeftOut(case=pair[side], status=found.status, reason=found.reason)
