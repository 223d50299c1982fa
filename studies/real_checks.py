"""Rates of false alarms and of detected slowdowns of the gate, in real measurements on this machine.

    python -m studies.real_checks stored|turn|tenth [TIMES]

Prints the verdicts of each check, then the number of checks that call a case slower.

- `stored`: check part of `quick` against a baseline of five runs made just before. Every alarm is false.
- `turn`: measure part of `quick` in turn with itself (`check --ab mode=eager`). Every alarm is false.
- `tenth`: compare two revisions of a workload, of ten and of eleven matrix products. The change is real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.program import environment, git

SESSIONS = 5
SUBSET = ["-w", "gemm", "-w", "conv2d", "-w", "attention", "--suite", "quick", "-b", "torch", "-d", "cpu"]
TURN = ["-w", "gemm", "-w", "attention", "--suite", "quick", "-b", "torch", "-d", "cpu"]
MINE = ["-w", "chained", "-b", "torch", "-d", "cpu", "--quick", "--threads", "1"]
WORK = """
from __future__ import annotations
from dataclasses import dataclass
from benchbench.workloads.base import Program
from benchbench.workloads.operations.gemm import Gemm

@dataclass(frozen=True)
class Chained(Gemm):
    m: int = 384
    n: int = 384
    k: int = 384

    summary = "the same product, as many times as the revision says"

    def build_torch(self, context, arrays):
        a, b = context.put(arrays["a"]), context.put(arrays["b"])

        def step(a, b):
            for _ in range({count}):
                c = a @ b
            return c

        return Program(step, (a, b))
"""


def program(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run accelbench in the folder. Returns its exit code and its output."""
    variables = environment(ACCELBENCH_WORKLOADS=str(folder / "mine"))
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    process = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if process.returncode not in (0, 10):
        print(process.stdout, process.stderr, sep="\n")
    return process.returncode, process.stdout


def make_repository(folder: Path) -> None:
    """Make a repository with two commits of a workload, of ten products and of eleven."""
    mine = folder / "mine"
    mine.mkdir()
    for count in (10, 11):
        (mine / "chained.py").write_text(textwrap.dedent(WORK).format(count=count))
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", f"{count} products"]):
            git(mine, *command)


def verdict_list(text: str) -> str:
    """Return the verdicts of a check's JSON with their ratios."""
    findings = json.loads(text)["findings"]
    looks = ((finding["verdict"], finding["first"] or {"ratio": float("nan")}) for finding in findings)
    return ", ".join(f"{verdict} {look['ratio']:.3f}" for verdict, look in looks)


def fails_against_sessions(folder: Path) -> int:
    """Check against stored sessions, which the first call measures."""
    if not (folder / "results/baselines").exists():
        for _ in range(SESSIONS):
            program(folder, "run", *SUBSET)
            program(folder, "baseline", "set", "main")
    code, text = program(folder, "check", "--baseline", "main", "--format", "json")
    print(code, verdict_list(text), flush=True)
    return int(code == 10)


def fails_against_itself(folder: Path) -> int:
    """Check code that is measured in turn with itself."""
    code, text = program(folder, "check", "--ab", "mode=eager", *TURN, "--format", "json")
    print(code, verdict_list(text), flush=True)
    return int(code == 10)


def finds_a_tenth(folder: Path) -> int:
    """Compare the two revisions in turn."""
    _, text = program(
        folder, "compare", "--ab", "rev:HEAD~1", "rev:HEAD", *MINE, "--rounds", "10", "--format", "json"
    )
    (verdict,) = json.loads(text)["verdicts"]
    interval = [round(verdict[name], 3) for name in ("ratio", "low", "high")]
    print(verdict["verdict"], *interval, flush=True)
    return int(verdict["verdict"] == "slower")


def main(check_name: str, times: int) -> None:
    is_slower = {"stored": fails_against_sessions, "turn": fails_against_itself, "tenth": finds_a_tenth}[
        check_name
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_repository(folder)
        count = sum(is_slower(folder) for _ in range(times))
    print(f"{check_name}: {count} of {times} call it slower, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
