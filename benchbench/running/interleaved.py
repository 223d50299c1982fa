"""Two sides measured in turn, a process of each after the other: A B, then B A, and again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from benchbench.launch.pool import WorkerPool
from benchbench.model.case import Case, LeftOut
from benchbench.model.device import Probe
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.model.run import Partner, RunInfo
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, Reason, check_devices, plan
from benchbench.plan.rerun import Variant, altered, obstacle
from benchbench.running.rounds import Announce, Recorder, Request, Terms, head, shuffled
from benchbench.store.tags import COMMIT

Pair = tuple[Case, Case]
Two = tuple[RunInfo, RunInfo]


def prepare(pools: Sequence[WorkerPool], request: Request, variants: Sequence[Variant]) -> Two:
    """The heads of two runs, each the other's partner: what is planned on the first pool's targets, as
    either variant changes it. Raises UsageError for a device or mode that does not exist.
    """
    probes = [pool.probe() for pool in pools]
    check_devices(request.selection.devices, probes[0])
    chosen = plan(request.entries, request.selection, probes[0])
    cases = [*chosen.cases, *(each.case for each in chosen.left_out)]
    return heads(cases, probes, request, variants)


def heads(
    cases: Sequence[Case], probes: Sequence[Sequence[Probe]], terms: Terms, variants: Sequence[Variant]
) -> Two:
    """The same of cases planned before. A pair of which one side cannot run is left out of both."""
    pairs = _pairs(cases, probes, variants)
    obstacles = [tuple(map(_obstacle, pair, probes)) for pair in pairs]
    open_pairs = [pair for pair, reasons in zip(pairs, obstacles, strict=True) if not any(reasons)]
    infos: list[RunInfo] = []
    for side, variant in enumerate(variants):
        blocked = zip(pairs, obstacles, strict=True)
        left_out = tuple(_left_out(pair, reasons, side) for pair, reasons in blocked if any(reasons))
        chosen = Plan(tuple(pair[side] for pair in open_pairs), left_out)
        seed = infos[0].seed if infos else terms.seed
        own = Terms(
            policy=terms.policy,
            settings=variant.applied(terms.settings),
            seed=seed,
            command=terms.command,
        )
        info = head(probes[side], chosen, own)
        infos.append(_of_revision(info) if variant.revision else info)
    return _partners(infos[0], infos[1], variants, pairs)


def _of_revision(info: RunInfo) -> RunInfo:
    """Without the commit that is checked out here: its label names the one measured."""
    return dataclasses.replace(info, tags={name: each for name, each in info.tags.items() if name != COMMIT})


def _pairs(
    cases: Sequence[Case], probes: Sequence[Sequence[Probe]], variants: Sequence[Variant]
) -> list[Pair]:
    """One per case; where a variant makes two cases one, the first has it."""
    found: dict[str, Pair] = {}
    taken: set[str] = set()
    for case in cases:
        a, b = (altered(case, variant, probed) for variant, probed in zip(variants, probes, strict=True))
        if a.id not in found and b.id not in taken:
            found[a.id] = a, b
            taken.add(b.id)
    return list(found.values())


def _obstacle(case: Case, probes: Sequence[Probe]) -> Reason:
    return obstacle(case, next(probe for probe in probes if probe.target.name == case.target))


def _left_out(pair: Pair, reasons: Sequence[Reason], side: int) -> LeftOut:
    own, other = reasons[side], reasons[1 - side]
    status, reason = own or (Status.SKIPPED, f"its counterpart cannot run: {other[1] if other else ''}")
    return LeftOut(case=pair[side], status=status, reason=reason)


def _partners(a: RunInfo, b: RunInfo, variants: Sequence[Variant], pairs: Sequence[Pair]) -> Two:
    there = {one.id: other.id for one, other in pairs}
    back = {other: one for one, other in there.items()}
    return (
        dataclasses.replace(a, partner=Partner(label=variants[0].text, run=b.id, cases=there)),
        dataclasses.replace(b, partner=Partner(label=variants[1].text, run=a.id, cases=back)),
    )


def measure(pools: Sequence[WorkerPool], infos: Two, announce: Announce) -> Iterator[tuple[int, Record]]:
    """Side, 0 or 1, and record, in the order measured. A pair that fails is not measured again."""
    recorders = [Recorder(pool, info, announce) for pool, info in zip(pools, infos, strict=True)]
    yield from _rounds(pools, infos, announce, recorders)


def _rounds(
    pools: Sequence[WorkerPool], infos: Two, announce: Announce, recorders: Sequence[Recorder]
) -> Iterator[tuple[int, Record]]:
    pairs = {one.id: (one, other) for one, other in zip(infos[0].plan, infos[1].plan, strict=True)}
    rounds = infos[0].policy.rounds
    for number in range(rounds):
        if number:
            announce(f"round {number + 1} of {rounds}: importing frameworks")
            for side, pool in enumerate(pools):
                pool.start([pair[side] for pair in pairs.values()])
        for case in shuffled([pair[0] for pair in pairs.values()], infos[0].seed, number):
            failed = False
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                announce(f"round {number + 1} of {rounds}: {pairs[case.id][side].id}")
                record = recorders[side].record(pairs[case.id][side], number)
                failed |= isinstance(record.outcome, Failure)
                yield side, record
            if failed:
                del pairs[case.id]
