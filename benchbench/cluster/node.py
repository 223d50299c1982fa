"""Does a job on this machine; its results are sent line by line, and nothing is kept here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchbench import __version__, registry
from benchbench.backends.base import Backend
from benchbench.cluster.messages import Description, LineKind, NodeJob, with_suites
from benchbench.launch import own_models
from benchbench.machine.environment import machine
from benchbench.model.options import MeasureOptions
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.plan.revision import commit_tag
from benchbench.redaction import own_redaction
from benchbench.running import measure, request
from benchbench.running.observer import RunObserver
from benchbench.running.resume import resume_run
from benchbench.store import codec, runs
from benchbench.store.naming import COMMIT

Tell = Callable[[LineKind, Any], None]


def do_job(job: NodeJob, tell: Tell, scratch: Path) -> None:
    """Raises what measuring raises. `scratch`: an empty folder, of no use afterwards."""
    if job.kind == "describe":
        tell(LineKind.DESCRIPTION, describe_machine(job.options))
    elif job.kind == "measure":
        options = with_suites(job.options, job.suites, scratch)
        measure.measure_suite(options, scratch / "results", Teller(tell))
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
        with measure.models_described(job.options, Teller(tell)):
            measure.measure_cases(job.cases, terms, job.options.pythons, scratch / "results", Teller(tell))
    else:
        folder = scratch / "results" / runs.RUNS / job.run
        folder.mkdir(parents=True)
        (folder / runs.HEAD).write_text(job.head)
        (folder / runs.RECORDS).write_text(job.records)
        resume_run(job.run, job.options, scratch / "results", Teller(tell), of_fleet=True)
    tell(LineKind.END, job.kind)


def describe_machine(options: MeasureOptions) -> Description:
    """Describe this machine, the frameworks that are installed on it, and its files of those models."""
    return Description(
        version=__version__,
        machine=machine(),
        packages=_packages(),
        commit=commit_tag().get(COMMIT, ""),
        files=own_models.file_digests(options.model, options.input or ""),
    )


def _packages() -> dict[str, str]:
    """The frameworks' distributions that are installed, nothing imported."""
    found = {}
    for name in registry.entry_names("benchbench.backends"):
        kind = registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
        for requirement in kind.requirements:
            own = requirement.partition("==")[0]
            for each in (own, f"{own}_cpu"):  # tensorflow has two distributions
                try:
                    found[own] = metadata.version(each)
                except metadata.PackageNotFoundError:
                    continue
    return dict(sorted(found.items()))


class Teller(RunObserver):
    """Sends events and records as they would be stored: without secrets or paths of this machine."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._redact = own_redaction()

    def note(self, text: str) -> None:
        """A line."""
        self._tell(LineKind.NOTE, self._redact(text))

    def stage(self, text: str) -> None:
        """A line."""
        self._tell(LineKind.STAGE, self._redact(text))

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """Send the run's head, if the run has anything to measure."""
        for info in infos:
            if info.plan:
                self._tell(LineKind.HEAD, codec.to_json(info, redact=self._redact))

    def record(self, record: Record, side: int) -> None:
        """Send a record."""
        self._tell(LineKind.RECORD, codec.storable(record, self._redact)[1])
