"""Tests that are too long for CI, one step after another.

`python -m studies.nightly [STEP …]` runs all steps or the named ones and prints a table: step, result and
seconds. A step's output is kept in `studies/output/nightly/STEP.txt`. The exit code is 1 if a step failed.
Together they take hours. Fuzzing needs `pip install atheris`, tests of torch_xla `accelbench env create
torch_xla`, and tests of a TPU's compiler libtpu (tests/test_tpu.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "studies/output/nightly"
FUZZING_S = 60  # of each reader
PYTEST = ("-m", "pytest", "-n", "2", "-m", "nightly")
MATRIX, KERAS = "tests/test_matrix.py", "tests/test_user_model_keras.py"
STEPS = {
    "matrix": (*PYTEST, MATRIX),  # every mode and dtype of every workload
    "tests": (*PYTEST, f"--ignore={MATRIX}", f"--ignore={KERAS}"),
    "keras": ("-m", "pytest", "-m", "nightly", KERAS),  # a process has one of Keras's backends
    "mutants": ("-m", "studies.mutants"),
    "model_mutants": ("-m", "studies.model_mutants"),
    "random_modules": ("-m", "studies.random_modules"),
    "wrong_engines": ("-m", "studies.wrong_engines"),
    "fuzzing": ("-m", "studies.fuzzing", str(FUZZING_S)),
}


def run_step(name: str, folder: Path) -> tuple[bool, float]:
    """Run a step with its output in a file of the folder. Returns whether it passed, and seconds."""
    begin = monotonic()
    with (folder / f"{name}.txt").open("w") as output:
        command = [sys.executable, *STEPS[name]]
        process = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    return process.returncode == 0, monotonic() - begin


def main(names: list[str]) -> int:
    """Run the named steps, or all."""
    if unknown := {*names} - {*STEPS}:
        print(f"No step is named {', '.join(sorted(unknown))}. Steps: {', '.join(STEPS)}.")
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    print(f"{'step':<14} {'result':<7} {'seconds':>8}")
    failed = False
    for name in names or STEPS:
        passed, elapsed_s = run_step(name, OUTPUT)
        failed |= not passed
        print(f"{name:<14} {'passed' if passed else 'FAILED':<7} {elapsed_s:8.0f}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
