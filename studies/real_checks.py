"""How often does the gate fail unchanged code on this machine, and how often does it find a tenth more work?

`python -m studies.real_checks stored|turn|tenth [TIMES]` prints a line per check, then a count.

- stored: `check` of part of `quick` against a baseline of `SESSIONS` runs made just before;
- turn: part of `quick` measured in turn with itself, `check --ab mode=eager`;
- tenth: `compare --ab` of two revisions: ten products, and eleven.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.program import environment

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
    """The exit code, and what was printed."""
    place = environment(ACCELBENCH_WORKLOADS=str(folder / "mine"))
    command = [sys.executable, "-m", "benchbench.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True)
    if done.returncode not in (0, 10):
        print(done.stdout, done.stderr, sep="\n")
    return done.returncode, done.stdout


def repository(folder: Path) -> None:
    """Two commits of a workload: ten products, then eleven."""
    mine = folder / "mine"
    mine.mkdir()
    for count in (10, 11):
        (mine / "chained.py").write_text(textwrap.dedent(WORK).format(count=count))
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", f"{count} products"]):
            subprocess.run(["git", *command], cwd=mine, check=True)


def told(text: str) -> str:
    """A check's verdicts with their ratios."""
    findings = json.loads(text)["findings"]
    looks = ((each["verdict"], each["first"] or {"ratio": float("nan")}) for each in findings)
    return ", ".join(f"{verdict} {look['ratio']:.3f}" for verdict, look in looks)


def stored(folder: Path) -> int:
    """1 where the gate fails; the first call makes the baseline."""
    if not (folder / "results/baselines").exists():
        for _ in range(SESSIONS):
            program(folder, "run", *SUBSET)
            program(folder, "baseline", "set", "main")
    code, text = program(folder, "check", "--baseline", "main", "--format", "json")
    print(code, told(text), flush=True)
    return int(code == 10)


def turn(folder: Path) -> int:
    """1 where the gate fails."""
    code, text = program(folder, "check", "--ab", "mode=eager", *TURN, "--format", "json")
    print(code, told(text), flush=True)
    return int(code == 10)


def tenth(folder: Path) -> int:
    """1 where more work is found to be slower."""
    _, text = program(
        folder, "compare", "--ab", "rev:HEAD~1", "rev:HEAD", *MINE, "--rounds", "10", "--format", "json"
    )
    (verdict,) = json.loads(text)["verdicts"]
    interval = [round(verdict[name], 3) for name in ("ratio", "low", "high")]
    print(verdict["verdict"], *interval, flush=True)
    return int(verdict["verdict"] == "slower")


def main(what: str, times: int) -> None:
    once = {"stored": stored, "turn": turn, "tenth": tenth}[what]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository(folder)
        count = sum(once(folder) for _ in range(times))
    print(f"{what}: {count} of {times} call it slower, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
