"""What accelbench says of runs that were measured beside busy neighbours: a spinning process on each CPU.

    python -m studies.neighbours > studies/output/neighbours.txt

Two runs of the same cases beside them; then what the look before a run, the report, a comparison and a check
say. Nothing of it may be confident: the last line counts what is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

CASES = ("-b", "torch,onnxruntime", "-w", "gemm", "-d", "cpu", "--mode", "eager,graph", "--dtype", "float32")
UNCERTAIN = ("insufficient", "inconclusive")


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that compute and do nothing else."""
    with ExitStack() as stack:
        for _ in range(count):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        yield


def told(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """By accelbench, started in the folder."""
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "COLUMNS": "110"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def data(folder: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told(folder, *arguments, "--format", "json").stdout)
    return found


def confident_rows(report: dict[str, Any]) -> list[str]:
    """Cases that have a speed, and no word of others."""
    return [row["case"] for row in report["rows"] if row["latency_s"] is not None and not row["contended"]]


def confident_verdicts(found: dict[str, Any]) -> list[str]:
    """Of a comparison or a check."""
    verdicts = found.get("verdicts") or found.get("findings") or []
    return [f"{each['case']}: {each['verdict']}" for each in verdicts if each["verdict"] not in UNCERTAIN]


def measured(folder: Path, cases: Sequence[str], runs: int = 2) -> list[str]:
    """What each run says before it begins."""
    return [
        line
        for _ in range(runs)
        for line in told(folder, "run", *cases, "--quick").stderr.splitlines()
        if "contended" in line or "use " in line
    ]


def main() -> None:
    """The answers, and how many of them are confident."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with neighbours(len(os.sched_getaffinity(0))):
            print(*measured(folder, CASES), sep="\n")
        report = data(folder, "report", "latest")
        print(told(folder, "report", "latest").stdout)
        print(told(folder, "compare", "latest~1", "latest").stdout)
        told(folder, "baseline", "set", "busy", "latest~1", "--accept")
        check = told(folder, "check", "latest", "--baseline", "busy", "--no-confirm")
        print(check.stdout)
        judged = data(folder, "check", "latest", "--baseline", "busy", "--no-confirm")
        compared = data(folder, "compare", "latest~1", "latest")
        confident = {
            "rows": confident_rows(report),
            "comparison": confident_verdicts(compared),
            "check": confident_verdicts(judged),
        }
        print(
            f"check: exit code {check.returncode}; {dict(Counter(f['verdict'] for f in judged['findings']))}"
        )
        print(f"confident: {json.dumps(confident)}, of {len(report['rows'])} cases")


if __name__ == "__main__":
    main()
