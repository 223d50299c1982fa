"""Does accelbench claim anything about runs that were measured while other programs used every CPU?

    python -m studies.neighbours > studies/output/neighbours.txt

Two runs of the same cases are measured while a process spins on each CPU. The program prints the warnings
before each run, the report, a comparison and a check. The last line lists the confident results; there
should be none.
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
    """Run `count` processes that only compute."""
    with ExitStack() as stack:
        for _ in range(count):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        yield


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run accelbench in the folder."""
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "COLUMNS": "110"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def json_output(folder: Path, *arguments: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(run_command(folder, *arguments, "--format", "json").stdout)
    return fields


def confident_rows(report: dict[str, Any]) -> list[str]:
    """Cases that have a latency and are not marked as contended."""
    return [row["case"] for row in report["rows"] if row["latency_s"] is not None and not row["contended"]]


def confident_verdicts(document: dict[str, Any]) -> list[str]:
    """Verdicts of a comparison or a check that are not uncertain."""
    verdicts = document.get("verdicts") or document.get("findings") or []
    return [
        f"{verdict['case']}: {verdict['verdict']}"
        for verdict in verdicts
        if verdict["verdict"] not in UNCERTAIN
    ]


def run_warnings(folder: Path, cases: Sequence[str], runs: int = 2) -> list[str]:
    """Measure runs of the cases; return their warnings about other programs."""
    return [
        line
        for _ in range(runs)
        for line in run_command(folder, "run", *cases, "--quick").stderr.splitlines()
        if "contended" in line or "use " in line
    ]


def main() -> None:
    """Print the outputs, then the confident results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with neighbours(len(os.sched_getaffinity(0))):
            print(*run_warnings(folder, CASES), sep="\n")
        report = json_output(folder, "report", "latest")
        print(run_command(folder, "report", "latest").stdout)
        print(run_command(folder, "compare", "latest~1", "latest").stdout)
        run_command(folder, "baseline", "set", "busy", "latest~1", "--accept")
        check = run_command(folder, "check", "latest", "--baseline", "busy", "--no-confirm")
        print(check.stdout)
        judged = json_output(folder, "check", "latest", "--baseline", "busy", "--no-confirm")
        compared = json_output(folder, "compare", "latest~1", "latest")
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
