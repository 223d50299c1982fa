"""The best a device was measured to do: GEMMs over shapes and backends, and copies; kept in the user's cache.

Which cases to measure and what came of them is decided here; measuring is a run's business (running/).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchbench.analyse.roofline import MEMORY, Ceiling, device_of, implausible
from benchbench.errors import UnreadableInput
from benchbench.machine.conditions import condition_notes, step_s
from benchbench.machine.environment import cache_folder, fingerprint
from benchbench.model.case import Case, Dtype
from benchbench.model.device import Machine
from benchbench.model.measurement import Measurement
from benchbench.model.note import Note
from benchbench.model.record import Record
from benchbench.model.run import Policy, RunInfo
from benchbench.plan.suite import Axes, Entry

SCHEMA = 1  # of the file. 1: first
DTYPES = (Dtype.FLOAT32, Dtype.TF32, Dtype.BFLOAT16, Dtype.FLOAT16)
CPU_SIDES, ACCELERATOR_SIDES = (1024, 2048, 4096), (4096, 8192, 16384)  # of square products
OBLONG = (  # m, n, k that reached the most on A100, H100, GH200 and B200 (stas00/ml-engineering, MAMF)
    (1024, 10240, 5120), (2048, 2048, 13312), (1024, 15360, 4096), (1792, 16128, 3072),
)  # fmt: skip
ACCELERATOR_COPY = 2**28  # elements: a GiB to read and one to write
CLOSE = 0.8  # of the best rate so far: such a backend may be the best at a larger size
GAIN = 1.01  # the least that a larger size must have gained for a still larger one to be tried
LONGEST_S = 0.25  # of a step: the next size takes eight times as long
POLICY = Policy(
    name="ceilings", rounds=2, precision=0.02, min_s=0.2, max_s=0.7,
    warmup_min_s=0.5, warmup_max_s=2.0, warmup_min_blocks=3, least_blocks=3, window_s=0.1, slow_s=0.5,
)  # fmt: skip


def entries(dtypes: Sequence[Dtype], threads: list[int] | None = None) -> tuple[tuple[str, Entry], ...]:
    """The smallest product in each dtype, on accelerators some oblong ones, and copies.

    `threads`: several numbers, each of which has ceilings of its own.
    """
    oblong: list[Axes] = [dict(zip("mnk", shape, strict=True)) for shape in OBLONG]
    gemm = Entry(
        workload="gemm",
        dtype=list(dtypes),
        threads=threads,
        cpu=[_square(CPU_SIDES[0])],
        accelerator=[_square(ACCELERATOR_SIDES[0]), *oblong],
    )
    copy = Entry(
        workload="copy", dtype=[Dtype.FLOAT32], threads=threads, accelerator=[{"n": ACCELERATOR_COPY}]
    )
    return ("ceilings", gemm), ("ceilings", copy)


def _square(side: int) -> Axes:
    return dict.fromkeys("mnk", side)


def larger(records: Iterable[Record]) -> list[Case]:
    """The products to measure next: a size more, where the size before was worth it and is no burden.

    Of each device, dtype and number of threads: the backends that are close to the best.
    """
    groups: dict[tuple[str, Dtype, int], list[tuple[Case, float]]] = {}
    for record, rate in sorted(_rates(records), key=lambda found: found[1]):  # of a case's rounds the best
        if record.case.workload == "gemm" and len(set(record.case.params.values())) == 1:
            place = record.case.device, record.case.computes_in, record.case.threads
            groups.setdefault(place, []).append((record.case, rate))
    return [case for found in groups.values() for case in _larger(found)]


def _larger(found: Sequence[tuple[Case, float]]) -> list[Case]:
    most = max(_side(case) for case, _ in found)
    last = {case.target: (case, rate) for case, rate in found if _side(case) == most}
    before = max((rate for case, rate in found if _side(case) < most), default=0.0)
    best = max(rate for _, rate in last.values())
    sides = CPU_SIDES if next(iter(last.values()))[0].device.startswith("cpu") else ACCELERATOR_SIDES
    if most == sides[-1] or best < GAIN * before:
        return []
    side = sides[sides.index(most) + 1]
    return [
        dataclasses.replace(case, params=dict.fromkeys("mnk", side))
        for case, rate in last.values()
        if rate >= CLOSE * best and 2 * most**3 / rate <= LONGEST_S
    ]


def _side(case: Case) -> int:
    return int(case.params["m"])


def best(info: RunInfo, records: Iterable[Record]) -> list[Ceiling]:
    """The highest rate of each device and quantity, by the median step of one process."""
    found: dict[tuple[str, int | None, str], Ceiling] = {}
    for record, rate in sorted(
        _rates(records), key=lambda each: each[0].case.id
    ):  # of equals always the same
        device, threads = device_of(info, record.case, record.device_model)
        quantity = MEMORY if record.case.workload == "copy" else str(record.case.dtype)
        key = device, threads, quantity
        if key not in found or rate > found[key].rate:
            found[key] = Ceiling(
                device=device,
                threads=threads,
                quantity=quantity,
                rate=rate,
                case=record.case.id,
                measured=info.started,
            )
    return sorted(found.values(), key=lambda each: (each.device, each.quantity == MEMORY, each.quantity))


def held_down(found: Sequence[Ceiling], records: Iterable[Record]) -> list[Note]:
    """What may have held a ceiling down: neighbours, a throttled clock."""
    reached = {each.case for each in found}
    outcomes = [record.outcome for record in records if record.case.id in reached]
    return condition_notes([outcome for outcome in outcomes if isinstance(outcome, Measurement)])


def _rates(records: Iterable[Record]) -> Iterable[tuple[Record, float]]:
    """FLOP/s, or B/s of copies, of what was measured and can be true."""
    for record in records:
        outcome = record.outcome
        if isinstance(outcome, Measurement) and not implausible(record.case, record.device_model, [outcome]):
            yield record, (outcome.cost.flops or outcome.cost.bytes) / step_s(outcome)


def read_ceilings(machine: Machine) -> tuple[Ceiling, ...]:
    """What was measured on such a machine; () if nothing was. Raises UnreadableInput."""
    path = ceilings_file(machine)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}", "Make it readable.") from error
    try:
        found = msgspec.json.decode(content, type=_File)
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        raise UnreadableInput(
            f"{path}: {str(error)[:200]}", "Measure again: the file is replaced."
        ) from error
    return found.ceilings if found.schema == SCHEMA else ()


class _File(msgspec.Struct):
    schema: int
    ceilings: tuple[Ceiling, ...]


def merged(before: Sequence[Ceiling], now: Sequence[Ceiling]) -> list[Ceiling]:
    """What was measured now replaces what it measured anew, be it lower: then something has changed."""
    found = {(each.device, each.threads, each.quantity): each for each in (*before, *now)}
    return list(found.values())


def encoded(machine: Machine, ceilings: Sequence[Ceiling]) -> bytes:
    """A file: for which machine, and each ceiling."""
    content = {
        "schema": SCHEMA,
        "machine": dataclasses.asdict(machine),
        "ceilings": [dataclasses.asdict(each) for each in ceilings],
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"


def ceilings_file(machine: Machine) -> Path:
    """The file of machines with this fingerprint."""
    return cache_folder("ceilings") / f"{fingerprint(machine)}.json"
