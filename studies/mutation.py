"""Mutation testing: the share of planted faults that the fast tests find, by file (mutmut 3).

    python -m studies.mutation [SHARE [FILE…]] > studies/output/mutation.md

SHARE (0.1) is the share of the mutants of each file, drawn at random with a fixed seed. FILE is a path such
as `benchbench/stats.py`. The default files decide verdicts and reported values. mutmut runs only the tests
that call the mutated function, in a fork, so a mutant takes about a second. The study needs
`pip install mutmut==3.8.1`.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "benchbench/stats.py",
    *(f"benchbench/{package}/*.py" for package in ("judging", "analyse", "gate", "timing")),
    *(f"benchbench/worker/{name}.py" for name in ("verify", "after_timing", "plausibility")),
)
TESTS = (
    "ab", "acceptance", "asynchronous", "baselines", "bisection", "changed_work", "check",
    "checks_in_numpy", "compare", "conditions", "documents", "drift", "exporters", "float8", "gate",
    "graphs", "hardware", "heats", "history", "hours", "layouts", "measure", "metrics", "page",
    "parallel", "pipeline", "plan", "plausibility", "plots", "profiling", "ranking", "ranks", "report",
    "roofline", "run_heat", "schedule", "session_variance", "suite", "summaries", "threads",
    "timed_mutants", "tolerance", "trend", "update", "validating", "variance", "verification",
)  # fmt: skip
# Processes that tests start cannot find the settings of mutmut, so they must not record anything.
START = """\
import os
if "MUTANT_UNDER_TEST" in os.environ:
    from mutmut.mutation import trampoline
    trampoline.record_trampoline_hit = lambda *hit, **caller: None
"""
# The first half of `mutmut run`. mutmut has no command for it, and `run` would run all tests once more.
MAKE_MUTANTS = """\
from pathlib import Path
from mutmut import __main__ as mutmut
Path("mutants").mkdir()
mutmut.set_mutant_under_test("mutant_generation")
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.store_lines_covered_by_tests()
mutmut.create_mutants(2)
"""
COPIED = ("tests", "studies", "suites", "results", "docs", "README.md", "pyproject.toml")
FOUND_STATUSES = ("killed", "timeout", "segfault")
SEED = 7


def configure(folder: Path, files: Sequence[str]) -> None:
    """Write mutmut's settings for a checkout."""
    tests = [f"tests/test_{name}.py" for name in TESTS if (folder / f"tests/test_{name}.py").exists()]
    lines = ["[mutmut]", "source_paths=benchbench"]
    for name, values in (
        ("only_mutate", files),
        ("pytest_add_cli_args_test_selection", tests),
        ("also_copy", COPIED),
    ):
        lines += [f"{name}=", *(f"    {value}" for value in values)]
    (folder / "setup.cfg").write_text("\n".join(lines) + "\n")
    (folder / "start").mkdir()
    (folder / "start/sitecustomize.py").write_text(START)


def mutmut(folder: Path, *words: str) -> str:
    """Return the output of a mutmut command, which imports the package from its own copy."""
    return python(folder, "-m", "mutmut", *words)


def python(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'mutants'}:{folder / 'start'}"}
    command = [sys.executable, *words]
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return process.stdout + process.stderr


def results(folder: Path) -> dict[str, str]:
    """Return the status of each mutant, such as `killed`."""
    lines = mutmut(folder, "results", "--all", "true").splitlines()
    return dict(re.fullmatch(r"\s*(\S+): (.+)", line).groups() for line in lines if ": " in line)  # type: ignore[union-attr,misc]


def file_of(mutant: str) -> str:
    """`benchbench.stats.x_median__mutmut_1` → `benchbench/stats.py`."""
    module = re.split(r"\.x_|\.xǁ", mutant)[0]
    return module.replace(".", "/") + ".py"


def sample_by_file(mutants: Sequence[str], share: float) -> list[str]:
    """Draw the share of the mutants of each file, at least one."""
    source, by_file = random.Random(SEED), defaultdict(list)
    for mutant in sorted(mutants):
        by_file[file_of(mutant)].append(mutant)
    return [
        mutant
        for group in by_file.values()
        for mutant in source.sample(group, max(1, round(share * len(group))))
    ]


def main(share: float, files: Sequence[str]) -> None:
    """Print the share of mutants that tests find, by file, and the survivors."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "accelbench"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        configure(folder, files)
        python(folder, "-c", MAKE_MUTANTS)
        mutants = sample_by_file([*results(folder)], share)
        print(output := mutmut(folder, "run", *mutants)[-2000:], file=sys.stderr)
        statuses = results(folder)
        if "failed to collect stats" in output:
            raise SystemExit("A test fails without a mutant.")
        print(f"Mutants found by the fast tests, `python -m studies.mutation {share:g}`\n")
        print("| file | mutants | found | share |\n| --- | --: | --: | --: |")
        by_file: dict[str, Counter[bool]] = defaultdict(Counter)
        for mutant in mutants:
            by_file[file_of(mutant)][statuses[mutant] in FOUND_STATUSES] += 1
        for file, counts in sorted(by_file.items()):
            print(f"| {file} | {counts.total()} | {counts[True]} | {counts[True] / counts.total():.0%} |")
        found_count, total = (sum(count[True] for count in by_file.values()), len(mutants))
        print(f"| all | {total} | {found_count} | {found_count / max(total, 1):.0%} |\n\n## Survivors\n")
        for mutant in mutants:
            if statuses[mutant] not in FOUND_STATUSES:
                difference = mutmut(folder, "show", mutant).strip()
                print(f"### {mutant}: {statuses[mutant]}\n\n```diff\n{difference}\n```\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1, sys.argv[2:] or FILES)
