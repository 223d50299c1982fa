"""JSON of pytest-benchmark with all samples: a file per round, since a file represents one process."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.json import json_text
from benchbench.model.device import Machine
from benchbench.model.measurement import Measurement
from benchbench.model.run import Record
from benchbench.store.disk import COMMIT, DIRTY, HASH

FORMAT = "5.1.0"  # the version of the JSON format, unless the run was imported
NO_COMMIT = {"id": "unversioned", "time": None, "author_time": None, "dirty": False, "branch": "(unknown)"}


class PytestBenchmark(RunExporter):
    """Files for `pytest-benchmark compare` and `pytest --benchmark-compare`."""

    extension: ClassVar[str] = "json"
    ci: ClassVar[bool] = False

    def export(self, report: RunReport) -> dict[str, bytes]:
        """Files `0001_accelbench.json` and so on, without cases that have no measurement."""
        rounds = sorted({record.round for record in report.run.records}) or [0]
        return {
            f"{number + 1:04}_accelbench.json": _file(
                report, [r for r in report.run.records if r.round == number]
            )
            for number in rounds
        }


def _file(report: RunReport, records: Sequence[Record]) -> bytes:
    measurements = [(record, o) for record in records if isinstance(o := record.outcome, Measurement)]
    versions = [record.framework_version for record in records if record.case.backend == "pytest-benchmark"]
    started = min((record.started for record in records), default=0.0)
    content = {
        "machine_info": _machine(report.run.info.machine),
        "commit_info": {**_commit(report.run.info.tags), "project": ""},
        "benchmarks": [_benchmark(record, outcome) for record, outcome in measurements],
        "datetime": datetime.fromtimestamp(started, UTC).isoformat(),
        "version": next(iter(versions), FORMAT),
    }
    return json_text(content, indent=4)


def _commit(tags: Mapping[str, str]) -> dict[str, Any]:
    name = tags.get(COMMIT, "").removesuffix(DIRTY)
    return {**NO_COMMIT, "id": name, "dirty": tags[COMMIT] != name} if HASH.fullmatch(name) else NO_COMMIT


def _machine(machine: Machine) -> dict[str, Any]:
    system, _, release = machine.os.partition(" ")
    return {
        "node": "",
        "processor": "",
        "machine": machine.architecture,
        "python_version": machine.python,
        "system": system,
        "release": release,
        "cpu": {"brand_raw": machine.cpu, "count": machine.threads},
    }


def _benchmark(record: Record, measurement: Measurement) -> dict[str, Any]:
    fullname = record.case.workload if record.case.dtype is None else record.case.id
    name = fullname.rpartition("::")[2]
    param = name[name.index("[") + 1 : -1] if "[" in name and name.endswith("]") else None
    return {
        "group": None,
        "name": name,
        "fullname": fullname,
        "params": None,
        "param": param,
        "extra_info": {},
        "options": {"timer": measurement.timer},
        "stats": {
            **benchmark_statistics(measurement.steps_s),
            "data": measurement.steps_s,
            "iterations": measurement.iterations,
        },
    }


def benchmark_statistics(data: Sequence[float]) -> dict[str, Any]:
    """Statistics of pytest-benchmark 5.3, by the same formulas, so that its comparisons are valid."""
    ordered, mean, total = sorted(data), statistics.mean(data), sum(data)
    deviation = statistics.stdev(data) if len(data) > 1 else 0
    q1, q3 = _quartiles(ordered)
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    outside = sum(value < mean - deviation or value > mean + deviation for value in data)
    tukey = sum(value < low or value > high for value in data)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(data),
        "median": statistics.median(data),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": tukey,
        "stddev_outliers": outside,
        "outliers": f"{outside};{tukey}",
        "ld15iqr": ordered[bisect_left(ordered, low)],
        "hd15iqr": ordered[bisect_right(ordered, high) - 1],
        "ops": len(data) / total if total else 0,
        "total": total,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Medians of the halves; for odd counts method 3 of en.wikipedia.org/wiki/Quartile."""
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])
    n = count // 4
    if count % 4 == 1:
        return (
            0.25 * ordered[n - 1] + 0.75 * ordered[n],
            0.75 * ordered[3 * n] + 0.25 * ordered[3 * n + 1],
        )
    return (
        0.75 * ordered[n] + 0.25 * ordered[n + 1],
        0.25 * ordered[3 * n + 1] + 0.75 * ordered[3 * n + 2],
    )
