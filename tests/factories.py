"""Builders of valid objects: build one, override what matters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.machine.environment import usable_threads
from benchbench.model.case import Case, Dtype, LeftOut, Phase, Status
from benchbench.model.device import Device, DeviceClass, Machine, Probe, Target
from benchbench.model.measurement import Cost, Failure, Measurement, Memory, Telemetry, Window
from benchbench.model.note import plain
from benchbench.model.profile import Gaps, Operator, Profile, Profiled
from benchbench.model.run import Policy, Record, Run, RunInfo, Settings
from benchbench.running.observer import RunObserver
from benchbench.timing.policy import POLICIES

VERSIONS = {"torch": "2.13.0", "tensorflow": "2.21.0", "jax": "0.10.2"}
CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="Example CPU")


def real_settings() -> Settings:
    """Settings for real frameworks, with a time-out that a busy machine can meet."""
    return Settings(threads=usable_threads(), timeout_s=900)


def a_case(**over: Any) -> Case:
    """gemm on torch. `backend` without `target` also sets the target."""
    base: dict[str, Any] = {
        "suite": "quick",
        "workload": "gemm",
        "params": {"m": 64, "n": 64, "k": 64},
        "dtype": Dtype.FLOAT32,
        "mode": "eager",
        "phase": Phase.FORWARD,
        "target": over.get("backend", "torch"),
        "backend": "torch",
        "device": "cpu",
    }
    return Case(**(base | over))


def a_job(case: Case, **over: Any) -> dict[str, Any]:
    """A worker's job: to measure the case with one thread, by `--quick`."""
    base: dict[str, Any] = {
        "kind": "measure",
        "case": asdict(case),
        "case_id": case.id,
        "threads": 1,
        "policy": asdict(POLICIES["quick"]),
        "warm": False,
        "reference": None,
        "verified": None,
        "timeout_s": 30.0,
    }
    return base | over


def a_cost(**over: Any) -> Cost:
    base: dict[str, Any] = {
        "flops": 524_288, "bytes": 49_152, "items": 1, "item": "product", "multiplications_saved": 1.0
    }  # fmt: skip
    return Cost(**(base | over))


def a_measurement(**over: Any) -> Measurement:
    """Five blocks of ten steps of 1 ms, all equal."""
    base: dict[str, Any] = {
        "cost": a_cost(),
        "iterations": 10,
        "warmup_block_s": (0.012, 0.01),
        "block_s": (0.01,) * 5,
        "steady": True,
        "stop_reason": "precision",
        "cold_s": 0.25,
        "compile_cache": "empty",
        "timer": "perf_counter",
        "timer_cost_s": 1e-7,
        "peak_device": Memory(bytes=None, reason="the CPU has no memory of its own"),
        "peak_host": Memory(bytes=65_011_712),
        "relative_error": 1e-7,
        "precision": {"matmul": "highest"},
    }
    return Measurement(**(base | over))


def a_telemetry(**over: Any) -> Telemetry:
    """Eleven samples over a second, from 0.05 s on, of two CPUs without other load."""
    base: dict[str, Any] = {
        "cpus": 2,
        "at_s": tuple(0.05 + 0.1 * number for number in range(11)),
        "busy_s": tuple(0.15 * number for number in range(11)),
        "own_s": (0.0,) * 11,
        "sampler_cpu_s": 0.002,
        "no_energy": "this machine shows no RAPL counters",
    }
    return Telemetry(**(base | over))


def a_watched(telemetry: Telemetry | None = None, length_s: float = 1.1, **over: Any) -> Measurement:
    """A measurement with telemetry; its process used one and a half CPUs."""
    window = Window(began_s=100.0, ended_s=100.0 + length_s, cpu_s=1.5 * length_s)
    return a_measurement(**({"window": window, "telemetry": telemetry or a_telemetry()} | over))


def a_failure(**over: Any) -> Failure:
    """A crash."""
    return Failure(**({"status": Status.CRASHED, "message": "worker killed by signal 11"} | over))


def a_record(outcome: Measurement | Failure | None = None, **over: Any) -> Record:
    """Round 0 of `a_case`, by default a measurement."""
    case: Any = over.get("case") or a_case()
    base: dict[str, Any] = {
        "case": case,
        "round": 0,
        "order": 0,
        "started": 1_790_000_000.0,
        "outcome": outcome or a_measurement(),
        "framework_version": VERSIONS.get(case.backend, "1.0"),
        "device_model": CPU.model,
        "isolation": "fork",
    }
    return Record(**(base | over))


def some_rounds(*seconds: float, case: Case | None = None, **over: Any) -> list[Record]:
    """One record per value: a process whose steps all took that many seconds."""
    return [
        a_record(a_measurement(block_s=(10 * s,) * 5, **over), case=case or a_case(), round=number)
        for number, s in enumerate(seconds)
    ]


def a_machine(**over: Any) -> Machine:
    """Two threads of an example CPU."""
    base: dict[str, Any] = {
        "cpu": CPU.model,
        "cores": 2,
        "threads": 2,
        "memory_bytes": 8 * 2**30,
        "architecture": "x86_64",
        "os": "Linux 6.8",
        "python": "3.13.0",
    }
    return Machine(**(base | over))


def a_probe(backend: str = "torch", **over: Any) -> Probe:
    """A ready backend with a CPU."""
    target = Target(name=backend, backend=backend, python="python3")
    base: dict[str, Any] = {"target": target, "version": VERSIONS.get(backend, "1.0"), "devices": (CPU,)}
    return Probe(**(base | over))


def a_left_out(**over: Any) -> LeftOut:
    base: dict[str, Any] = {
        "case": a_case(device="cuda:0"),
        "status": Status.UNAVAILABLE,
        "reason": "this torch is a CPU build",
    }
    return LeftOut(**(base | over))


def a_run_info(**over: Any) -> RunInfo:
    """The head of a run of three rounds that plans `a_case`."""
    base: dict[str, Any] = {
        "id": "20260102-030405-abcd",
        "started": "2026-01-02T03:04:05Z",
        "command": ("accelbench", "run", "--suite", "quick"),
        "version": "0.1.0",
        "machine": a_machine(),
        "settings": Settings(threads=2),
        "policy": Policy(name="quick", rounds=3),
        "seed": 1,
        "probes": tuple(a_probe(backend) for backend in VERSIONS),
        "plan": (a_case(),),
        "left_out": (),
    }
    return RunInfo(**(base | over))


def an_operator(name: str, self_s: float, **over: Any) -> Operator:
    """Ten calls on the host, `self_s` in all."""
    base: dict[str, Any] = {"calls": 10, "host_self_s": self_s, "host_total_s": self_s}
    return Operator(name=name, **(base | over))


def a_profile(*operators: Operator, **over: Any) -> Profile:
    """Ten steps of 10 ms: the time of `operators`, and one gap for the remainder."""
    operators = operators or (an_operator("aten::convolution", 0.07), an_operator("aten::relu", 0.02))
    on_device = over.get("on_device", False)
    busy = sum(operator.device_self_s if on_device else operator.host_self_s for operator in operators)
    gap = over.get("wall_s", 0.1) - busy
    gaps = Gaps(count=1, total_s=gap, median_s=gap, longest_s=gap, after=operators[-1].name)
    base: dict[str, Any] = {
        "profiler": "torch.profiler 2.13.0",
        "steps": 10,
        "step_s": (0.01,) * 10,
        "plain_step_s": (0.0098,) * 10,
        "wall_s": 0.1,
        "on_device": on_device,
        "busy_s": busy,
        "gaps": gaps,
        "operators": operators,
    }
    return Profile(**(base | over))


def a_profiled(outcome: Profile | Failure | None = None, **over: Any) -> Profiled:
    case: Any = over.get("case") or a_case()
    version = VERSIONS.get(case.backend, "1.0")
    base = {"case": case, "framework_version": version, "outcome": outcome or a_profile()}
    return Profiled(**(base | over))


def a_run(records: Sequence[Record] | None = None, *, damaged: tuple[str, ...] = (), **over: Any) -> Run:
    """A run of `records`, planned in their order; other arguments go into its head."""
    records = some_rounds(0.001, 0.00102, 0.00098) if records is None else records
    cases = {id(record.case): record.case for record in records}.values()
    plan = {(case.suite, case.id): case for case in cases}
    info = a_run_info(**({"plan": tuple(plan.values())} | over))
    return Run(info=info, records=tuple(records), damaged=damaged)


def a_digest(seconds: Iterable[tuple[Case, Sequence[float]]], **over: Any) -> Digest:
    """A run digest from each case's process medians; `side` sets fields of every case."""
    side: dict[str, Any] = {
        "stopped_by": ("precision",),
        "cost": a_cost(),
        "timer": "perf_counter",
        "precision": {"matmul": "highest"},
        "version": VERSIONS["torch"],
        "device_model": CPU.model,
    } | over.pop("side", {})
    cases = {
        case.id: CaseDigest(
            case=case, rounds=tuple(range(len(values))), values={"latency_s": tuple(values)}, **side
        )
        for case, values in seconds
    }
    base: dict[str, Any] = {
        "id": "20260102-030405-abcd",
        "started": "2026-01-02T03:04:05Z",
        "version": "0.1.0",
        "machine": a_machine(),
        "settings": Settings(threads=2),
        "policy": Policy(name="quick", rounds=3),
        "frameworks": {"torch": VERSIONS["torch"]},
        "cases": cases,
    }
    return Digest(**(base | over))


def a_hostile_run(text: str) -> Run:
    """A run of five cases with `text` in every string that comes from outside."""
    case = a_case(
        suite=text, workload=text, params={text: text}, mode=text, target=text, backend=text, device=text
    )
    fields: dict[str, Any] = {"framework_version": text, "device_model": text}
    failed_case = a_case(workload="other", mode=text, target=text, device=text)
    measurement = a_measurement(
        cost=a_cost(item=text), notes=(plain(text),), peak_device=Memory(bytes=None, reason=text)
    )
    return a_run(
        [
            a_record(measurement, case=case, **fields),
            a_record(a_failure(message=text), case=failed_case, **fields),
            a_record(a_failure(message=text * 50), case=a_case(workload="long", mode="jit"), **fields),
        ],
        left_out=(a_left_out(case=a_case(device=f"{text}2"), reason=text),),
        machine=a_machine(cpu=text, os=text),
        damaged=(text,),
        command=(text,),
    )


def a_models_size(
    params: Mapping[str, object], *, flops: int, inputs: Sequence[str] = ("float32[64]",)
) -> dict[str, Any]:
    """The part of a worker's description of a user's model that depends on its sizes."""
    parameters = 2_000_000
    cost = asdict(a_cost(flops=flops))
    return {
        "graph": {"flops": flops, "parameters": parameters, "constants": 0, "takes_images": False},
        "size": {
            "params": params,
            "refused": dict.fromkeys(Dtype, ""),
            "costs": dict.fromkeys(Dtype, cost),
            "work_version": f"own:{flops}",
            "model_facts": {"inputs": list(inputs), "outputs": ["float32[64]"], "parameters": parameters},
        },
    }


class NotingObserver(RunObserver):
    """Collects the notes of a run."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
