"""The pass after the rounds: each case once more, in a process of its own, under its framework's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from time import perf_counter

from benchbench.analyse.metrics import steps_s
from benchbench.errors import UnreadableInput
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, Message
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Communication, Profile, Profiled, RankProfile
from benchbench.model.record import Record
from benchbench.model.status import Status
from benchbench.stats import median
from benchbench.store import artifacts, disk
from benchbench.store.artifacts import profile_outcome
from benchbench.timing.policy import profiled_steps


def keep_profiles(
    pool: WorkerPool, records: Sequence[Record], folder: Path, announce: Callable[[str], None]
) -> Iterator[Profiled]:
    """Each profile once it is in the run's `folder`, where it is not there yet. Raises CannotWrite."""
    there = {found.case.id for found in artifacts.read_profiles(folder)[0]}
    missing = [record for record in records if record.case.id not in there]
    for found, traces in profile_cases(pool, missing, announce):
        stored, files = artifacts.profile_files(found, traces)
        for name, content in files.items():
            disk.save_below(folder, folder / artifacts.ARTIFACTS / name, content)
        yield stored


def profile_cases(
    pool: WorkerPool, records: Sequence[Record], announce: Callable[[str], None]
) -> Iterator[tuple[Profiled, dict[str, bytes]]]:
    """For each case that was measured: its profile, or why there is none, and its traces by file name."""
    for record in _last_ok(records):
        begin = perf_counter()
        announce(f"profiling {record.case.id}")
        assert isinstance(record.outcome, Measurement)
        found, traces = _profiled(pool, record.case, record.outcome)
        pool.stages_s["profile"] = pool.stages_s.get("profile", 0.0) + perf_counter() - begin
        yield (
            Profiled(case=record.case, framework_version=record.framework_version, outcome=found),
            traces,
        )


def _last_ok(records: Sequence[Record]) -> list[Record]:
    """The last record of each case, if it was measured."""
    last = {record.case.id: record for record in records}
    return [record for record in last.values() if isinstance(record.outcome, Measurement)]


def profiled_blocks(measured: Measurement) -> tuple[int, int]:
    """(steps in a block, blocks) to profile: blocks like those timed, as many as `profiled_steps` take."""
    steps = profiled_steps(median(steps_s(measured)))
    iterations = min(measured.iterations, steps)
    return iterations, ceil(steps / iterations)


def _profiled(
    pool: WorkerPool, case: Case, measured: Measurement
) -> tuple[Profile | Failure, dict[str, bytes]]:
    """The profile, or why there is none, and the traces that it names."""
    iterations, count = profiled_blocks(measured)
    answer, _ = pool.ask(case, {"kind": "profile", "iterations": iterations, "count": count})
    plain = answer.reply and answer.reply.get("plain_step_s")
    if answer.reply and "recording" in answer.reply:
        answer = pool.read({"kind": "read", "recording": answer.reply["recording"]}, answer.files)
        if answer.reply is None:
            return _unavailable(f"reading its trace takes jax or tensorflow: {answer.message}"), {}
    found = profile_in(answer, plain or ())
    if isinstance(found, Failure):
        return found, {}
    if not found.operators:
        return _unavailable(f"{found.profiler} saw no operator"), {}
    if lost := [name for name in found.traces if name not in answer.files]:
        return _unavailable(f"{found.profiler} left no {', '.join(lost)}"), {}
    return found, {name: answer.files[name] for name in found.traces}


def _unavailable(reason: str) -> Failure:
    return Failure(status=Status.UNAVAILABLE, message=reason)


def profile_in(answer: Answer, plain: Sequence[float]) -> Profile | Failure:
    """The profile in an answer, or why there is none. `plain`: seconds of each step without the profiler."""
    if answer.reply is None:
        return Failure(status=answer.status, message=answer.message, log=answer.log)
    try:
        if ranks := answer.reply.get("ranks"):
            return _of_ranks(ranks)
        if profile := answer.reply.get("profile"):
            return profile_outcome({**profile, "plain_step_s": plain})
        return profile_outcome(answer.reply["outcome"])
    except (KeyError, TypeError, ValueError, UnreadableInput) as error:
        return Failure(status=Status.FAILED, message=f"the worker's answer cannot be read: {error}")


def _of_ranks(replies: Sequence[Message]) -> Profile | Failure:
    """The first rank's profile, with what each of them says of communication and the traces of all."""
    found = [
        profile_outcome({**reply["profile"], "plain_step_s": reply["plain_step_s"]}) for reply in replies
    ]
    profiles = [each for each in found if isinstance(each, Profile)]
    if len(profiles) < len(found):
        return _unavailable("a rank has no profile, and the others have")
    return replace(
        profiles[0],
        traces=tuple(name for each in profiles for name in each.traces),
        ranks=tuple(
            RankProfile(
                device=str(reply["device"]),
                wall_s=each.wall_s,
                busy_s=each.busy_s,
                communication=each.communication or Communication(total_s=0.0, exposed_s=0.0),
            )
            for reply, each in zip(replies, profiles, strict=True)
        ),
    )
