"""Does a reader fail on bytes that atheris makes up by following the reader's code?

    python -m studies.fuzzing SECONDS > studies/output/fuzzing.txt
    python -m studies.fuzzing READER SECONDS [FOLDER]

The first form gives each reader the same time, prints its executions and faults, and fails if there was a
fault. The second form fuzzes one reader and writes inputs that end in an unexpected error to FOLDER. Fuzzing
begins with valid inputs and with the inputs in tests/data/fuzzing. It needs `pip install atheris`, which the
tests do not require: they run the same readers on fewer inputs.
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

CORPUS = Path(__file__).parent.parent / "tests/data/fuzzing"
CONCURRENT = 2  # readers; instrumenting the code takes longer than some seconds of fuzzing
MAX_INPUT_BYTES = 65_536
SEED = 15  # the same sequence of inputs on every machine; more time tries more of them


def corpus(name: str, valid: list[bytes], folder: Path) -> Path:
    """Write the initial inputs of a reader to a folder."""
    seeds = folder / f"{name}-corpus"
    seeds.mkdir(parents=True)
    failures = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    for number, content in enumerate([*valid, *failures]):
        (seeds / str(number)).write_bytes(content)
    return seeds


def fuzz(name: str, seconds: int, folder: Path) -> None:
    """Fuzz one reader; libFuzzer prints a summary and ends the process."""
    import atheris

    with atheris.instrument_imports(include=["benchbench", "tomllib", "json"]):
        from benchbench.errors import AccelbenchError
        from tests.readers import READERS

    reader, valid = READERS[name]
    scratch = Path(tempfile.mkdtemp(dir=folder))

    def run_reader(content: bytes) -> None:
        with suppress(AccelbenchError):
            reader(content, scratch)

    limits = [f"-seed={SEED}", f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=0"]
    seeds = corpus(name, valid, folder)
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", str(seeds)], run_reader)
    atheris.Fuzz()


def summary(name: str, seconds: int, folder: Path) -> tuple[str, bool]:
    """Fuzz a reader in a fresh process; return a line of text and whether there was no fault."""
    command = [sys.executable, "-m", "studies.fuzzing", name, str(seconds), str(folder)]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONHASHSEED": "0"},
    )
    executions = re.findall(r"^(?:Done |#)([0-9]+)", process.stderr, re.MULTILINE)
    faults = re.findall(r"=== Uncaught Python exception: ===\n(.*)", process.stdout + process.stderr)
    is_good = process.returncode == 0 and bool(executions) and not faults
    ending = "; ".join(faults) or ("no fault" if is_good else f"exit code {process.returncode}")
    return f"{name:<10} {executions[-1] if executions else 'no':>10} executions  {ending}", is_good


def main(arguments: list[str]) -> None:
    """Fuzz one reader, or all."""
    if len(arguments) > 1:
        fuzz(arguments[0], int(arguments[1]), Path(arguments[2] if len(arguments) > 2 else "."))
    from tests.readers import READERS

    all_good = True
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(CONCURRENT) as pool:
        folders = [Path(folder) / name for name in READERS]
        for reader_folder in folders:
            reader_folder.mkdir()
        for line, is_good in pool.map(summary, READERS, repeat(int(arguments[0])), folders):
            print(line, flush=True)
            all_good &= is_good
    sys.exit(not all_good)


if __name__ == "__main__":
    main(sys.argv[1:])
