"""Ceilings: the best rates measured on a device, by GEMMs over shapes and backends and by copies.

This module chooses cases and evaluates their records; `running/` measures them. Ceilings are stored in the
user's cache.
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
from benchbench.model.run import Policy, Record, RunInfo
from benchbench.plan.suite import Axes, Entry

SCHEMA = 1  # version of the file format
DTYPES = (Dtype.FLOAT32, Dtype.TF32, Dtype.BFLOAT16, Dtype.FLOAT16)
CPU_SIDES, ACCELERATOR_SIDES = (1024, 2048, 4096), (4096, 8192, 16384)  # of square matrices
OBLONG = (  # m, n, k that reached the most on A100, H100, GH200 and B200 (stas00/ml-engineering, MAMF)
    (1024, 10240, 5120), (2048, 2048, 13312), (1024, 15360, 4096), (1792, 16128, 3072),
)  # fmt: skip
ACCELERATOR_COPY = 2**28  # elements: reads one GiB and writes one
ACCELERATOR_SUM_SIDE = 2**14  # of a square matrix: reads one GiB
MEMORY_WORKLOADS = ("copy", "reduction")
CLOSE = 0.8  # backends with this share of the best rate also run the next size
GAIN = 1.01  # stop increasing the size when the rate grows by less
MAX_STEP_S = 0.25  # slower steps are not doubled in size: the next takes eight times as long
POLICY = Policy(
    name="ceilings", rounds=2, precision=0.02, min_s=0.2, max_s=0.7,
    warmup_min_s=0.5, warmup_max_s=2.0, warmup_min_blocks=3, least_blocks=3, window_s=0.1, slow_s=0.5,
)  # fmt: skip


def entries(dtypes: Sequence[Dtype], threads: list[int] | None = None) -> tuple[tuple[str, Entry], ...]:
    """Suite entries: the smallest product in each dtype, oblong ones for accelerators, and `memory_entries`.

    `threads`: numbers of threads, each with separate ceilings.
    """
    oblong: list[Axes] = [dict(zip("mnk", shape, strict=True)) for shape in OBLONG]
    gemm = Entry(
        workload="gemm",
        dtype=list(dtypes),
        threads=threads,
        cpu=[_square(CPU_SIDES[0])],
        accelerator=[_square(ACCELERATOR_SIDES[0]), *oblong],
    )
    return ("ceilings", gemm), *memory_entries(threads)


def memory_entries(
    threads: list[int] | None = None, backends: list[str] | None = None
) -> tuple[tuple[str, Entry], ...]:
    """Suite entries of the memory: copies, and sums, which only read. `backends`: None means all."""
    copy = Entry(
        workload="copy",
        dtype=[Dtype.FLOAT32],
        threads=threads,
        backend=backends,
        accelerator=[{"n": ACCELERATOR_COPY}],
    )
    side = ACCELERATOR_SUM_SIDE
    reduction = Entry(
        workload="reduction",
        dtype=[Dtype.FLOAT32],
        threads=threads,
        backend=backends,
        accelerator=[{"rows": side, "columns": side}],
    )
    return ("ceilings", copy), ("ceilings", reduction)


def _square(side: int) -> Axes:
    return dict.fromkeys("mnk", side)


def larger_products(records: Iterable[Record]) -> list[Case]:
    """Choose the products to measure next: one size larger, unless the last size brought no gain or was slow.

    Only backends close to the best rate of a device, dtype and number of threads continue.
    """
    groups: dict[tuple[str, Dtype, int], list[tuple[Case, float]]] = {}
    for record, rate in sorted(
        _rates(records), key=lambda cases_and_rates: cases_and_rates[1]
    ):  # the best round of a case last
        if record.case.workload == "gemm" and len(set(record.case.params.values())) == 1:
            place = record.case.device, record.case.computes_in, record.case.threads
            groups.setdefault(place, []).append((record.case, rate))
    return [case for cases_and_rates in groups.values() for case in _larger(cases_and_rates)]


def _larger(cases_and_rates: Sequence[tuple[Case, float]]) -> list[Case]:
    largest = max(_side(case) for case, _ in cases_and_rates)
    largest_by_target = {
        case.target: (case, rate) for case, rate in cases_and_rates if _side(case) == largest
    }
    previous_best = max((rate for case, rate in cases_and_rates if _side(case) < largest), default=0.0)
    best = max(rate for _, rate in largest_by_target.values())
    sides = (
        CPU_SIDES if next(iter(largest_by_target.values()))[0].device.startswith("cpu") else ACCELERATOR_SIDES
    )
    if largest == sides[-1] or best < GAIN * previous_best:
        return []
    side = sides[sides.index(largest) + 1]
    return [
        dataclasses.replace(case, params=dict.fromkeys("mnk", side))
        for case, rate in largest_by_target.values()
        if rate >= CLOSE * best and 2 * largest**3 / rate <= MAX_STEP_S
    ]


def _side(case: Case) -> int:
    return int(case.params["m"])


def best_rates(info: RunInfo, records: Iterable[Record]) -> list[Ceiling]:
    """The highest rate of each device and quantity, from the median step of one process."""
    ceilings: dict[tuple[str, int | None, str], Ceiling] = {}
    # Sorted by case, so that ties always have the same result.
    for record, rate in sorted(_rates(records), key=lambda pair: pair[0].case.id):
        device, threads = device_of(info, record.case, record.device_model)
        quantity = MEMORY if record.case.workload in MEMORY_WORKLOADS else str(record.case.dtype)
        key = device, threads, quantity
        if key not in ceilings or rate > ceilings[key].rate:
            ceilings[key] = Ceiling(
                device=device,
                threads=threads,
                quantity=quantity,
                rate=rate,
                case=record.case.id,
                measured=info.started,
            )
    return sorted(
        ceilings.values(), key=lambda ceiling: (ceiling.device, ceiling.quantity == MEMORY, ceiling.quantity)
    )


def limiting_conditions(ceilings: Sequence[Ceiling], records: Iterable[Record]) -> list[Note]:
    """Notes on conditions that may have lowered a ceiling, such as other programs or a throttled clock."""
    case_ids = {ceiling.case for ceiling in ceilings}
    outcomes = [record.outcome for record in records if record.case.id in case_ids]
    return condition_notes([outcome for outcome in outcomes if isinstance(outcome, Measurement)])


def _rates(records: Iterable[Record]) -> Iterable[tuple[Record, float]]:
    """Yield plausible records with their rate in FLOP/s, or in B/s for copies and sums."""
    for record in records:
        outcome = record.outcome
        if isinstance(outcome, Measurement) and not implausible(record.case, record.device_model, [outcome]):
            yield record, (outcome.cost.flops or outcome.cost.bytes) / step_s(outcome)


def read_ceilings(machine: Machine) -> tuple[Ceiling, ...]:
    """Read the stored ceilings of a machine. Raises UnreadableInput."""
    path = ceilings_file(machine)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # no cache
        return ()
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}", "Make it readable.") from error
    try:
        file = msgspec.json.decode(content, type=_File)
    except (ValueError, RecursionError) as error:  # also for invalid UTF-8
        raise UnreadableInput(
            f"{path}: {str(error)[:200]}", "Measure again: the file is replaced."
        ) from error
    return file.ceilings if file.schema == SCHEMA else ()


class _File(msgspec.Struct):
    schema: int
    ceilings: tuple[Ceiling, ...]


def merge(before: Sequence[Ceiling], now: Sequence[Ceiling]) -> list[Ceiling]:
    """Combine stored and new ceilings. A new one replaces a stored one, even if it is lower."""
    ceilings = {(ceiling.device, ceiling.threads, ceiling.quantity): ceiling for ceiling in (*before, *now)}
    return list(ceilings.values())


def encode(machine: Machine, ceilings: Sequence[Ceiling]) -> bytes:
    """Content of the ceilings file of a machine."""
    content = {
        "schema": SCHEMA,
        "machine": dataclasses.asdict(machine),
        "ceilings": [dataclasses.asdict(ceiling) for ceiling in ceilings],
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"


def ceilings_file(machine: Machine) -> Path:
    return cache_folder("ceilings") / f"{fingerprint(machine)}.json"
