"""Run a job on this machine, sending its results line by line and storing nothing."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchbench import __version__, registry
from benchbench.backends.base import backend_class
from benchbench.cluster.messages import Description, LineKind, NodeJob, line_bytes, read_job, with_suites
from benchbench.errors import AccelbenchError
from benchbench.launch import user_models
from benchbench.machine.environment import machine
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Record, RunInfo
from benchbench.plan.revision import commit_tag
from benchbench.redaction import process_redaction
from benchbench.running import measure, request
from benchbench.running.observer import RunObserver
from benchbench.running.resume import resume_run
from benchbench.store import codec, runs
from benchbench.store.disk import COMMIT

Tell = Callable[[LineKind, Any], None]


def do_job(job: NodeJob, tell: Tell, scratch: Path) -> None:
    """Run a job. Raises the errors of measuring. `scratch`: an empty temporary folder."""
    if job.kind == "describe":
        tell(LineKind.DESCRIPTION, describe_machine(job.options))
    elif job.kind == "measure":
        options = with_suites(job.options, job.suites, scratch)
        measure.measure_suite(options, scratch / "results", Sender(tell))
    elif job.kind == "again":
        assert job.policy is not None
        terms = request.Terms(
            policy=job.policy,
            settings=request.settings(job.options),
            seed=job.seed,
            command=job.options.command,
            tags=dict(job.options.tags),
            wait_s=job.options.wait_s,
        )
        with measure.described_models(job.options, Sender(tell)):
            measure.measure_cases(job.cases, terms, job.options.pythons, scratch / "results", Sender(tell))
    else:
        folder = scratch / "results" / runs.RUNS / job.run
        folder.mkdir(parents=True)
        (folder / runs.HEAD).write_text(job.head)
        (folder / runs.RECORDS).write_text(job.records)
        resume_run(job.run, job.options, scratch / "results", Sender(tell), of_fleet=True)
    tell(LineKind.END, job.kind)


def describe_machine(options: MeasureOptions) -> Description:
    """Describe this machine, its installed frameworks and its files of the models in `options`."""
    return Description(
        version=__version__,
        machine=machine(),
        packages=_packages(),
        commit=commit_tag().get(COMMIT, ""),
        files=user_models.file_digests(options.model, options.input or ""),
    )


def _packages() -> dict[str, str]:
    """Versions of the installed distributions of frameworks, without importing them."""
    versions = {}
    for name in registry.entry_names("benchbench.backends"):
        kind = backend_class(name)
        for requirement in kind.requirements:
            distribution = requirement.partition("==")[0]
            for candidate in (distribution, f"{distribution}_cpu"):  # tensorflow has two distributions
                try:
                    versions[distribution] = metadata.version(candidate)
                except metadata.PackageNotFoundError:
                    continue
    return dict(sorted(versions.items()))


class Sender(RunObserver):
    """Sends events and records in their stored form: without secrets and paths of this machine."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._redact = process_redaction()

    def note(self, text: str) -> None:
        self._tell(LineKind.NOTE, self._redact(text))

    def stage(self, text: str) -> None:
        self._tell(LineKind.STAGE, self._redact(text))

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """Send the run's head, if the run has cases."""
        for info in infos:
            if info.plan:
                self._tell(LineKind.HEAD, codec.to_json(info, redact=self._redact))

    def record(self, record: Record, side: int) -> None:
        self._tell(LineKind.RECORD, codec.storable_record(record, self._redact)[1])


def main() -> None:
    """Do the job. Other output goes to standard error, which Ray logs on the machine."""
    answer = os.dup(1)
    os.dup2(2, 1)

    def tell(kind: LineKind, content: Any) -> None:
        text = line_bytes(kind, content)
        while text:
            text = text[os.write(answer, text) :]

    job = read_job(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, args=(threading.get_ident(),), daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="accelbench-node-") as scratch:
        try:
            do_job(job, tell, Path(scratch))
        except AccelbenchError as error:
            tell(LineKind.ERROR, f"{error} {error.hint}".strip())
        except Exception as error:  # noqa: BLE001 - the fleet needs an answer
            tell(LineKind.ERROR, f"{type(error).__name__}: {error}")


def _end_with_parent(thread: int) -> None:
    os.read(0, 1)  # sys.stdin has a lock that an ending interpreter needs
    signal.pthread_kill(thread, signal.SIGINT)  # interrupts the main thread, so that it cleans up


if __name__ == "__main__":
    main()
