"""The course of a heat: order of turns, its end, and the effect of failing processes on others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchbench.launch.transport import Answer, JobEnd, Message, RunningJob
from benchbench.machine.sampler import CycleWatch, Sources, TurnSampler
from benchbench.model.case import Case
from benchbench.model.note import Note, NoteKind
from benchbench.model.run import Record
from benchbench.running.heat import LiveCase, measure_heat, run_heat, turn_seconds
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_record
from tests.machines import tree

QUICK = replace(POLICIES["quick"], cycles=20, min_cycles=5, max_s=1000.0)
NO_MEMORY = Answer({"outcome": {"status": "out_of_memory"}})
Act = Callable[[int, set[str]], Message | Answer | type[Exception]]


def answers_turns(turn: int, living: set[str]) -> Message:
    """Warm up, then take turns without end."""
    return {"cpu_s": 0.03} if turn else {"warm": 0.01}


@dataclass
class Machine:
    """The processes of a heat: alive, awake, and the order of their turns."""

    now: float = 0.0
    living: set[str] = field(default_factory=set)
    awake: set[str] = field(default_factory=set)
    entered: list[tuple[str, set[str]]] = field(default_factory=list)  # with the processes alive at that time
    turns: list[str] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)


class Job(RunningJob):
    """A process whose messages `act` chooses, by the number of its turns and the living processes."""

    def __init__(self, machine: Machine, name: str, act: Act, turn_s: float) -> None:
        self._machine, self._name, self._act, self._turn_s = machine, name, act, turn_s
        self._turn = 0
        self._answer: Answer | None = None
        machine.entered.append((name, set(machine.living)))
        machine.living.add(name)
        machine.awake.add(name)

    def send(self, message: Message) -> None:
        assert self._machine.awake == {self._name}
        if message["turn"]:
            self._turn += 1
            self._machine.turns.append(self._name)

    def receive(self, timeout_s: float) -> Message | None:
        assert self._machine.awake == {self._name}
        self._machine.timeouts.append(timeout_s)
        act = self._act(self._turn, self._machine.living - {self._name})
        if isinstance(act, Answer):
            self._answer = act
            return None
        if isinstance(act, type):
            self._machine.now += timeout_s
            raise act
        self._machine.now += self._turn_s
        return act

    def stop(self) -> None:
        self._machine.awake.remove(self._name)

    def resume(self) -> None:
        self._machine.awake.add(self._name)

    def result(self, timeout_s: float) -> Answer:
        self._machine.living.discard(self._name)
        self._machine.awake.discard(self._name)
        if self._answer or timeout_s:
            return self._answer or Answer({"outcome": {"status": "ok"}})
        return Answer(None, JobEnd.TIMED_OUT, "no answer")


class Watch(CycleWatch):
    """Cycles, the first `disturbed` of which are disturbed."""

    def __init__(self, disturbed: int) -> None:
        self._disturbed = disturbed

    def other_cores(self, case_cpu_s: float) -> float:
        self._disturbed -= 1
        return 1.0 if self._disturbed >= 0 else 0.0


class Heat:
    """A heat of scripted processes."""

    def __init__(self, acts: Mapping[str, Act], turn_s: float = 0.03) -> None:
        self.machine = Machine()
        self.on_one_device = ""  # names of the cases on a device that a stuck process loses
        self._is_lost = False
        self.cases = {
            name: LiveCase(
                name,
                partial(Job, self.machine, name, act, turn_s),
                TurnSampler(Sources(root=Path("/nowhere"), cpus=())),
                timeout_s=100.0,
                clock=lambda: self.machine.now,
                on_end=self._ended,
                refusal=partial(self._refusal, name),
            )
            for name, act in acts.items()
        }

    def _ended(self, answer: Answer) -> Answer:
        self._is_lost = self._is_lost or answer.end is JobEnd.STUCK
        return answer

    def _refusal(self, name: str) -> Answer | None:
        lost = self._is_lost and name in self.on_one_device
        return Answer(None, JobEnd.SKIPPED, "its device was lost") if lost else None

    def run(self, disturbed: int = 0, seed: int = 0, **options: Any) -> int:
        return run_heat(
            [*self.cases.values()], options.pop("policy", QUICK), Random(seed), lambda case, state: None,
            watch=lambda: Watch(disturbed), **options,
        )  # fmt: skip

    @property
    def ends(self) -> dict[str, JobEnd | str]:
        """How each case ended: `ok`, or the status of its failure."""
        return {name: end_of(case.answer) for name, case in self.cases.items()}

    def turns_of(self, name: str) -> int:
        return self.machine.turns.count(name)


def end_of(answer: Answer | None) -> JobEnd | str:
    assert answer is not None
    return str(answer.reply["outcome"]["status"]) if answer.reply else answer.end


def calm() -> dict[str, Act]:
    return dict.fromkeys("abc", answers_turns)


def test_every_case_has_one_turn_per_cycle_in_random_order() -> None:
    heat = Heat(calm())
    assert heat.run() == 1
    turns = heat.machine.turns
    cycles = [turns[at : at + 3] for at in range(0, len(turns), 3)]
    assert len(cycles) == QUICK.cycles
    assert all(sorted(cycle) == ["a", "b", "c"] for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) > 3
    assert set(heat.ends.values()) == {"ok"}
    assert not heat.machine.living


def test_other_cases_enter_in_random_order() -> None:
    orders = set()
    for seed in range(10):
        heat = Heat(calm())
        heat.run(seed=seed)
        orders.add("".join(name for name, _ in heat.machine.entered))
    assert orders == {"abc", "acb"}


def test_slow_steps_have_fewer_cycles_down_to_the_minimum() -> None:
    heat = Heat(calm(), turn_s=1.0)
    heat.run(policy=replace(QUICK, max_s=8.0))
    assert heat.turns_of("a") == 8
    heat = Heat(calm(), turn_s=10.0)
    heat.run(policy=replace(QUICK, max_s=8.0))
    assert heat.turns_of("a") == QUICK.min_cycles


@pytest.mark.parametrize(
    ("disturbed", "cycles"), [(0, QUICK.cycles), (10, QUICK.cycles), (15, 25), (1000, 2 * QUICK.cycles)]
)
def test_disturbed_cycles_are_repeated_at_most_once(disturbed: int, cycles: int) -> None:
    heat = Heat(calm())
    heat.run(disturbed)
    assert heat.turns_of("a") == cycles


def fails_in(turn: int, act: Message | Answer | type[Exception]) -> Act:
    return lambda number, living: act if number == turn else answers_turns(number, living)


@pytest.mark.parametrize(
    ("act", "end"),
    [
        (TimeoutError, JobEnd.TIMED_OUT),
        (Answer(None, JobEnd.CRASHED, "killed"), JobEnd.CRASHED),
        (Answer(None, JobEnd.STUCK, "no signal ends it"), JobEnd.STUCK),
        (ValueError, JobEnd.UNREADABLE),
        ({"other": 1}, JobEnd.UNREADABLE),
        ({"cpu_s": None, "warm": []}, JobEnd.UNREADABLE),
    ],
)
@pytest.mark.parametrize("turn", [0, 1, 7])
def test_a_failing_process_fails_only_its_case(
    turn: int, act: Message | Answer | type[Exception], end: JobEnd
) -> None:
    heat = Heat({"a": answers_turns, "b": fails_in(turn, act), "c": answers_turns})
    heat.run()
    assert heat.ends == {"a": "ok", "b": end, "c": "ok"}
    assert heat.turns_of("a") == heat.turns_of("c") == QUICK.cycles
    assert heat.turns_of("b") == turn
    assert not heat.machine.living


def test_a_time_out_costs_other_cases_no_cycle() -> None:
    heat = Heat({"a": answers_turns, "b": fails_in(3, TimeoutError), "c": answers_turns})
    heat.run(policy=replace(QUICK, max_s=10.0))
    assert heat.turns_of("a") == QUICK.cycles


def test_each_turn_has_the_full_time_out() -> None:
    heat = Heat(calm(), turn_s=40.0)
    heat.run()
    assert heat.machine.now > 20 * 100.0
    assert set(heat.machine.timeouts) == {100.0}
    assert set(heat.ends.values()) == {"ok"}


def test_cases_of_a_lost_device_end_at_once() -> None:
    heat = Heat(
        {"a": answers_turns, "b": fails_in(4, Answer(None, JobEnd.STUCK, "stuck")), "c": answers_turns}
    )
    heat.on_one_device = "bc"
    heat.run()
    assert heat.ends == {"a": "ok", "b": JobEnd.STUCK, "c": JobEnd.SKIPPED}
    assert heat.turns_of("c") in (3, 4)
    assert not heat.machine.living


def test_the_first_case_takes_part_in_each_part_of_a_heat() -> None:
    heat = Heat(dict.fromkeys("abcd", answers_turns))
    assert heat.run(has_room=lambda: False) == 3
    assert [earlier for _, earlier in heat.machine.entered] == [set(), {"a"}, {"a"}, {"a"}]
    assert heat.turns_of("a") == 3 * QUICK.cycles
    assert [heat.turns_of(name) for name in "bcd"] == [QUICK.cycles] * 3
    cycles = [{cycle for cycle, _ in heat.cases[name]._cycles} for name in "bcd"]
    assert not set.intersection(*cycles)
    assert set.union(*cycles) == {cycle for cycle, _ in heat.cases["a"]._cycles}


def has_memory_beside(most: int) -> Act:
    return lambda turn, living: NO_MEMORY if len(living) > most else answers_turns(turn, living)


def test_a_case_without_memory_beside_others_is_retried() -> None:
    heat = Heat({"a": answers_turns, "b": answers_turns, "c": has_memory_beside(1)})
    assert heat.run(seed=1) == 2
    assert set(heat.ends.values()) == {"ok"}
    assert [name for name, earlier in heat.machine.entered if earlier == {"a"}] == ["b", "c"]
    assert heat.turns_of("c") == QUICK.cycles


def test_a_case_that_needs_all_memory_is_measured_alone() -> None:
    heat = Heat({"a": answers_turns, "b": answers_turns, "c": has_memory_beside(0)})
    assert heat.run() > 1
    assert set(heat.ends.values()) == {"ok"}
    assert heat.machine.entered[-1] == ("c", set())


def test_a_case_without_memory_fails_after_few_tries() -> None:
    heat = Heat({"a": answers_turns, "b": answers_turns, "c": lambda turn, living: NO_MEMORY})
    heat.run()
    assert heat.ends == {"a": "ok", "b": "ok", "c": "out_of_memory"}
    assert [name for name, _ in heat.machine.entered].count("c") <= 3


def test_a_process_killed_for_memory_is_retried() -> None:
    killed = Answer(None, JobEnd.OUT_OF_MEMORY, "the kernel ended it")

    def ended_once(turn: int, living: set[str]) -> Message | Answer:
        return killed if len(living) > 1 and turn == 1 else answers_turns(turn, living)

    heat = Heat({"a": answers_turns, "b": ended_once, "c": answers_turns})
    assert heat.run() == 2
    assert set(heat.ends.values()) == {"ok"}
    assert len(heat.cases["b"]._cycles) == QUICK.cycles
    assert all(before < after for (before, _), (after, _) in pairwise(heat.cases["b"]._cycles))


class Notebook:
    """A stand-in for the recorder that collects the notes of each record, and the cases measured alone."""

    policy = QUICK

    def __init__(self, heat: Heat, solitary: str = "") -> None:
        self._heat, self._alone = heat, solitary
        self.alone: list[str] = []
        self.after_hang: list[str] = []
        self.notes: dict[str, list[NoteKind]] = {}

    def can_alternate(self, case: Case) -> bool:
        return case.workload not in self._alone

    def live_case(self, case: Case) -> LiveCase:
        return self._heat.cases[case.workload]

    def record(self, case: Case, number: int, notes: Sequence[Note], *, after_hang: bool) -> Record:
        assert not self._heat.machine.living
        self.alone.append(case.workload)
        self.after_hang += [case.workload] if after_hang else []
        return self.measured(case, number, None, notes)

    def measured(self, case: Case, number: int, live_case: object, notes: Sequence[Note]) -> Record:
        self.notes[case.workload] = [note.kind for note in notes]
        return a_record(case=case, round=number)


def notebook(heat: Heat, solitary: str = "", backend: str = "torch") -> Notebook:
    """Measure a heat of these cases and return its notes."""
    notebook = Notebook(heat, solitary)
    cases = [a_case(workload=name, backend=backend) for name in heat.cases]
    recorder: Any = notebook
    rounds = measure_heat([(recorder, case) for case in cases], 0, 1, lambda place, state: None)
    assert sorted(place for place, _ in rounds) == list(range(len(cases)))
    return notebook


def test_records_note_that_memory_did_not_suffice_for_all_cases() -> None:
    recorder = notebook(Heat({"a": answers_turns, "b": answers_turns, "c": has_memory_beside(0)}))
    assert recorder.notes == {name: [NoteKind.HEAT_IN_PARTS] for name in "abc"}
    assert not recorder.alone


def test_a_record_notes_that_its_case_cannot_take_turns() -> None:
    assert notebook(Heat(calm())).notes == {"a": [], "b": [], "c": []}
    recorder = notebook(Heat(calm()), solitary="b")
    assert recorder.notes == {"a": [], "b": [NoteKind.MEASURED_ALONE], "c": []}
    assert recorder.alone == ["b"]
    assert notebook(Heat({"a": answers_turns}), solitary="a").notes == {"a": []}  # there are no other cases
    assert notebook(Heat(calm()), solitary="abc", backend="fake").notes == {"a": [], "b": [], "c": []}


@pytest.mark.parametrize(("turn", "is_fork"), [(0, True), (3, False)])
def test_a_fork_that_hung_before_its_first_turn_is_measured_alone_later(turn: int, is_fork: bool) -> None:
    hung = Answer(None, JobEnd.HUNG, "it hung without computing")
    recorder = notebook(Heat({"a": answers_turns, "b": fails_in(turn, hung), "c": answers_turns}))
    assert recorder.after_hang == recorder.alone == (["b"] if is_fork else [])
    assert recorder.notes["b"] == ([NoteKind.MEASURED_ALONE] if is_fork else [])
    assert recorder.notes["a"] == []


def test_an_exception_ends_the_heat_at_once() -> None:
    heat = Heat({"a": answers_turns, "b": fails_in(2, KeyboardInterrupt), "c": answers_turns})  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        heat.run()
    assert heat.turns_of("a") <= 2


def test_a_turn_lasts_several_quota_periods(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    group = {"proc/self/cgroup": "0::/a/b\n"}
    assert turn_seconds(QUICK, tree(tmp_path / "none", group)) == QUICK.turn_s
    small = group | {"sys/fs/cgroup/a/b/cpu.max": "50000 100000\n", "sys/fs/cgroup/a/cpu.max": "max 200000\n"}
    assert turn_seconds(QUICK, tree(tmp_path / "small", small)) == pytest.approx(0.5)
    large = group | {"sys/fs/cgroup/a/b/cpu.max": f"{cpus * 100000} 100000\n"}
    assert turn_seconds(QUICK, tree(tmp_path / "large", large)) == QUICK.turn_s
    short = group | {"sys/fs/cgroup/a/cpu.max": "500 1000\n"}
    assert turn_seconds(QUICK, tree(tmp_path / "short", short)) == QUICK.turn_s
