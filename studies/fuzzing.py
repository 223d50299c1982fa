"""Readers fuzzed by atheris, which follows what their code does with the bytes it makes up.

`python -m studies.fuzzing READER SECONDS [FOLDER]` begins with what is valid and with what was kept in
tests/data/fuzzing; what ends in anything but an expected error goes to FOLDER. Without a reader it gives each
the same time and prints a line for each: executions and faults; it fails if there was a fault. Needs
`pip install atheris`, which is no requirement of the tests: those have the same readers and fewer inputs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path

KEPT = Path(__file__).parent.parent / "tests/data/fuzzing"
AT_ONCE = 2  # readers: a process takes longer to instrument what it follows than to fuzz it for seconds
MOST_BYTES = 65_536  # of an input
SEED = 15  # the same inputs wherever it runs; more time tries more of them


def corpus(name: str, valid: list[bytes], folder: Path) -> Path:
    """A folder with what fuzzing begins with."""
    seeds = folder / f"{name}-corpus"
    seeds.mkdir(parents=True)
    kept = [path.read_bytes() for path in sorted((KEPT / name).glob("*"))]
    for number, content in enumerate([*valid, *kept]):
        (seeds / str(number)).write_bytes(content)
    return seeds


def fuzz(name: str, seconds: int, folder: Path) -> None:
    """Ends the process: libFuzzer prints what it did."""
    import atheris

    with atheris.instrument_imports(include=["benchbench", "tomllib", "json"]):
        from benchbench.errors import AccelbenchError
        from tests.readers import READERS

    read, valid = READERS[name]
    place = Path(tempfile.mkdtemp(dir=folder))

    def once(content: bytes) -> None:
        with suppress(AccelbenchError):
            read(content, place)

    limits = [f"-seed={SEED}", f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", "-rss_limit_mb=0"]
    seeds = corpus(name, valid, folder)
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", str(seeds)], once)
    atheris.Fuzz()


def summary(name: str, seconds: int, folder: Path) -> tuple[str, bool]:
    """A line of what a process of its own did, and whether it found no fault."""
    command = [sys.executable, "-m", "studies.fuzzing", name, str(seconds), str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONHASHSEED": "0"},
    )
    counted = re.findall(r"^(?:Done |#)([0-9]+)", done.stderr, re.MULTILINE)
    faults = re.findall(r"=== Uncaught Python exception: ===\n(.*)", done.stdout + done.stderr)
    good = done.returncode == 0 and bool(counted) and not faults
    ending = "; ".join(faults) or ("no fault" if good else f"exit code {done.returncode}")
    return f"{name:<10} {counted[-1] if counted else 'no':>10} executions  {ending}", good


def main(arguments: list[str]) -> None:
    """One reader, or all."""
    if len(arguments) > 1:
        fuzz(arguments[0], int(arguments[1]), Path(arguments[2] if len(arguments) > 2 else "."))
    from tests.readers import READERS

    good = True
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        places = [Path(folder) / name for name in READERS]
        for place in places:
            place.mkdir()
        for line, alone in pool.map(summary, READERS, repeat(int(arguments[0])), places):
            print(line, flush=True)
            good &= alone
    sys.exit(not good)


if __name__ == "__main__":
    main(sys.argv[1:])
