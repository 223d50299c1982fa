"""Traces of the frameworks' profilers as spans: Chrome's format, XPlane, and names of XLA instructions."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchbench.errors import Unsupported
from benchbench.model.profile import Operator, Profile
from benchbench.traces import chrome, engines, xla
from benchbench.traces.spans import BEGIN, END, Recording, Unread
from benchbench.traces.xla import Event, Line

RECORDING = Recording(profiler="profiler 1.0", steps=2, step_s=(0.005, 0.005))


def operators(profile: Profile) -> dict[str, Operator]:
    return {operator.name: operator for operator in profile.operators}


def x(name: str, start: float, length: float, category: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """An event of torch's trace, in milliseconds from the first step on."""
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
    return event | {"ts": 4_407_905_347_498.0 + 1e3 * start, "dur": 1e3 * length} | more


def torch_trace(*events: dict[str, Any]) -> dict[str, Any]:
    marks = [x(BEGIN, -1, 1, "user_annotation"), x(END, 10, 1, "user_annotation")]
    names = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    return {"traceEvents": [*names, x("ProfilerStep#1", -2, 14, "user_annotation"), *marks, *events]}


def test_torch_operators_between_the_marks_exclude_called_operators() -> None:
    events = (x("aten::linear", 1, 5), x("aten::addmm", 2, 3), x("aten::relu", -1.5, 0.4))
    profile = chrome.parse_profile(torch_trace(*events), RECORDING, {"aten::addmm": 200.0})
    assert set(operators(profile)) == {"aten::linear", "aten::addmm"}
    assert operators(profile)["aten::linear"].host_self_s == pytest.approx(2e-3)
    assert operators(profile)["aten::addmm"].host_self_s == pytest.approx(3e-3)
    assert operators(profile)["aten::addmm"].flops == 200
    assert (profile.wall_s, profile.busy_s, profile.gaps.total_s) == pytest.approx((10e-3, 5e-3, 5e-3))
    assert (profile.steps, profile.on_device) == (2, False)


def test_a_stage_that_waits_for_a_micro_batch_computes_nothing() -> None:
    """Parts of a pipeline's step, as torch 2.13 names them; they are one operator for all micro-batches."""
    events = (
        x("Forward 0", 0, 4, "user_annotation"),
        x("c10d::recv_", 0.5, 0.5),
        x("aten::mm", 3, 1),
        x("Forward 1", 4, 2, "user_annotation"),
        x("aten::mm", 5, 1),
        x("Backward 1", 6, 3, "user_annotation"),
    )
    profile = chrome.parse_profile(torch_trace(*events), RECORDING, {})
    assert {name: operator.calls for name, operator in operators(profile).items()} == {
        "Forward": 2,
        "Backward": 1,
        "c10d::recv_": 1,
        "aten::mm": 2,
    }
    assert profile.communication
    assert profile.communication.computing_s == pytest.approx(2e-3)


def ort(name: str, start: int, length: int, category: str = "Session", **args: Any) -> dict[str, Any]:
    """An event of ONNX Runtime's trace, in microseconds from its start on."""
    event = {"cat": category, "pid": 70, "tid": 70, "ph": "X", "name": name}
    return event | {"ts": start, "dur": length, "args": args}


def node(name: str, operator: str, start: int, length: int) -> dict[str, Any]:
    sizes = {"activation_size": "1536", "parameter_size": "1792", "output_size": "4608"}
    fields = {"op_name": operator, "node_index": "5", "provider": "CPUExecutionProvider", **sizes}
    return ort(f"{name}_kernel_time", start, length, "Node", **fields)


# Events of version 1.31: three runs of a convolution and a product, the first for warm-up.
ONNX_RUNTIME = [
    ort("model_loading_uri", 11, 6253),
    ort("session_initialization", 6346, 3238),
    node("relu_nchwc", "Conv", 9940, 139),
    node("node_matmul", "MatMul", 10133, 10),
    ort("SequentialExecutor::Execute", 9937, 215),
    ort("model_run", 9917, 240),
    node("relu_nchwc", "Conv", 10504, 14),
    node("node_matmul", "MatMul", 10549, 6),
    ort("SequentialExecutor::Execute", 10504, 54),
    ort("model_run", 10498, 62),
    node("relu_nchwc", "Conv", 10604, 16),
    node("node_matmul", "MatMul", 10649, 4),
    ort("SequentialExecutor::Execute", 10604, 54),
    ort("model_run", 10598, 62),
]


def test_onnx_runtime_s_operators_are_the_types_of_kernels_in_the_last_runs() -> None:
    profile = engines.parse_onnxruntime_trace(ONNX_RUNTIME, RECORDING)
    assert {name: operator.calls for name, operator in operators(profile).items()} == {"Conv": 2, "MatMul": 2}
    assert operators(profile)["Conv"].host_self_s == pytest.approx(30e-6)
    assert operators(profile)["Conv"].bytes == 2 * (1536 + 1792 + 4608)
    assert (profile.wall_s, profile.busy_s, profile.gaps.total_s) == pytest.approx((162e-6, 40e-6, 122e-6))
    assert (profile.steps, profile.on_device) == (2, False)


def test_onnx_runtime_kernels_without_sizes_have_no_bytes() -> None:
    bare = [event | {"args": {"op_name": "Conv"}} for event in ONNX_RUNTIME]
    assert operators(engines.parse_onnxruntime_trace(bare, RECORDING))["Conv"].bytes is None


def test_a_trace_of_fewer_runs_than_recorded_is_refused() -> None:
    with pytest.raises(Unsupported, match="does not contain the steps"):
        engines.parse_onnxruntime_trace(ONNX_RUNTIME[:6], RECORDING)


def counters(conv_s: float, product_s: float) -> list[engines.OpenVinoCounter]:
    return [
        engines.OpenVinoCounter("relu", "Convolution", "brgconv_avx512_f32", conv_s),
        engines.OpenVinoCounter("last", "Convolution", "jit_avx512_f32", 2e-6),
        engines.OpenVinoCounter("mm", "MatMul", "brgemm_avx512_f32", product_s),
    ]


def test_openvino_operators_are_counter_means_of_the_recorded_steps() -> None:
    """Three steps before the two recorded ones; the first convolution took 30 µs each, then 10 µs."""
    recording = replace(RECORDING, step_s=(20e-6, 24e-6))
    before, after = counters(30e-6, 4e-6), counters(22e-6, 4e-6)
    profile = engines.parse_openvino_counters(before, after, 3, recording)
    assert {name: operator.calls for name, operator in operators(profile).items()} == {
        "Convolution": 4,
        "MatMul": 2,
    }
    assert operators(profile)["Convolution"].host_self_s == pytest.approx(2 * (10e-6 + 2e-6))
    assert operators(profile)["Convolution"].kernels == ("brgconv_avx512_f32", "jit_avx512_f32")
    assert operators(profile)["MatMul"].host_total_s == pytest.approx(2 * 4e-6)
    assert (profile.wall_s, profile.busy_s, profile.gaps.total_s) == pytest.approx((44e-6, 32e-6, 12e-6))
    assert (profile.steps, profile.on_device, profile.gaps.count) == (2, False, 0)


def test_counters_of_whole_microseconds_do_not_exceed_the_steps() -> None:
    recording = replace(RECORDING, step_s=(6e-6, 6e-6))
    profile = engines.parse_openvino_counters([], counters(7e-6, 3e-6), 0, recording)
    assert (profile.wall_s, profile.busy_s, profile.gaps.total_s) == pytest.approx((12e-6, 12e-6, 0.0))
    assert sum(operator.host_self_s for operator in profile.operators) == pytest.approx(12e-6)


def test_without_a_counter_there_is_no_profile() -> None:
    with pytest.raises(Unsupported, match="counted no node"):
        engines.parse_openvino_counters([], [], 3, RECORDING)


def memory_event(at: float, size: int, in_use: int, device: int = 0) -> dict[str, Any]:
    fields = {"Bytes": size, "Total Allocated": in_use, "Device Type": device}
    return x("[memory]", at, 0, "cpu_instant_event", ph="i", args=fields)


def test_torch_flops_and_memory_come_from_a_separate_recording() -> None:
    times = chrome.parse_profile(torch_trace(x("aten::empty", 1, 2), x("aten::mm", 4, 5)), RECORDING, {})
    events = [x("aten::empty", 1, 4), memory_event(2, 64, 164), x("aten::new", 8, 1)]
    details = chrome.parse_profile(torch_trace(*events), RECORDING, {"aten::empty": 7.0})
    profile = chrome.add_details(times, replace(details, wall_s=2 * times.wall_s))
    empty, product = operators(profile)["aten::empty"], operators(profile)["aten::mm"]
    assert (empty.allocated_bytes, empty.flops, empty.host_self_s) == pytest.approx((64, 7, 2e-3))
    assert product.allocated_bytes is None
    assert product.flops is None
    assert product.host_self_s == pytest.approx(5e-3)
    assert set(operators(profile)) == {"aten::empty", "aten::mm"}
    assert profile.memory_at_s == pytest.approx((1e-3,))
    assert profile.memory_bytes == (164,)


def test_cuda_kernels_are_charged_to_the_operator_that_launched_them() -> None:
    gpu = {"pid": 0, "tid": 7}
    profile = chrome.parse_profile(
        torch_trace(
            x("aten::linear", 1, 3, args={"External id": 11}),
            x("aten::addmm", 1.5, 2, args={"External id": 12}),
            x("cudaLaunchKernel", 2, 1, "cuda_runtime", args={"External id": 12, "correlation": 5}),
            x("sm90_gemm", 3, 4, "kernel", args={"External id": 12, "correlation": 5}, **gpu),
            x("Memcpy HtoD", 8, 1, "gpu_memcpy", args={"External id": 99}, **gpu),
            x("accelbench begin", 0, 10, "gpu_user_annotation", **gpu),
            memory_event(2, 64, 164, device=1),
            memory_event(2, 1, 1, device=0),
        ),
        RECORDING,
        {},
    )
    rows = operators(profile)
    assert profile.on_device
    assert (profile.busy_s, profile.gaps.total_s) == pytest.approx((5e-3, 5e-3))
    assert rows["aten::addmm"].device_self_s == pytest.approx(4e-3)
    assert rows["aten::addmm"].host_self_s == pytest.approx(1e-3)
    assert rows["aten::addmm"].kernels == ("sm90_gemm",)
    linear = rows["aten::linear"]
    assert (linear.device_self_s, linear.device_total_s) == pytest.approx((0, 4e-3))
    assert rows["Memcpy HtoD"].device_self_s == pytest.approx(1e-3)
    assert profile.memory_bytes == (164,)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("## Call CompiledFxGraph fw3ohgmklx ##", "CompiledFxGraph"),
        ("Torch-Compiled Region: 0/0", "Torch-Compiled Region"),
        ("aten::mm", "aten::mm"),
    ],
)
def test_operator_names_are_the_same_in_every_process(name: str, expected: str) -> None:
    profile = chrome.parse_profile(torch_trace(x(name, 1, 1)), RECORDING, {})
    assert [operator.name for operator in profile.operators] == [expected]


def test_a_trace_without_the_steps_is_refused() -> None:
    with pytest.raises(Unsupported, match="does not contain the steps"):
        chrome.parse_profile({"traceEvents": [x("aten::mm", 1, 1)]}, RECORDING, {})
    with pytest.raises(Unsupported, match="does not contain the steps"):
        xla.profile_of([line("python")], RECORDING, {}, ())


def e(name: str, start: float, length: float = 0.0, **stats: Any) -> Event:
    """An event of XLA's trace, in milliseconds from the first step on."""
    return Event(name, 5e6 + 1e6 * start, 5e6 + 1e6 * (start + length), stats)


def line(name: str, *events: Event, plane: str = "/host:CPU") -> Line:
    return Line(plane, name, events)


def xplane(*lines: Line, labels: xla.Labels | None = None) -> Profile:
    marks = line("python", e(BEGIN, -1, 1), e(END, 10, 1))
    return xla.profile_of([marks, *lines], RECORDING, labels or {}, ())


def op(name: str, start: float, length: float, **stats: Any) -> Event:
    return e(name, start, length, hlo_op=name, hlo_module="jit_step", **stats)


def test_numbered_xla_instructions_are_one_operator() -> None:
    profile = xplane(
        line(
            "tf_XLAEigen/1",
            e("ThunkExecutor::Execute", 0, 9),
            op("copy.4", 1, 2),
            op("copy_1.25.clone", 4, 1),
        ),
        line("tf_XLAPjRtCpuClient/2", e("ThunkExecutor::Execute (wait for completion)", 0, 10)),
    )
    assert [(operator.name, operator.calls) for operator in profile.operators] == [("copy", 2)]
    assert profile.operators[0].host_self_s == pytest.approx(3e-3)


def test_an_xla_fusion_is_named_after_its_computation() -> None:
    profile = xplane(
        line("tf_XLAEigen/1", op("ynn_fusion.3", 1, 2), op("ynn_fusion.4", 4, 1)),
        labels={("jit_step", "ynn_fusion.3"): "convolution", ("jit_other", "ynn_fusion.4"): "reduce"},
    )
    assert [operator.name for operator in profile.operators] == ["convolution (ynn_fusion)", "ynn_fusion"]


def test_nested_pool_tasks_belong_to_their_operator() -> None:
    """The operator returns at once; its task starts another task; a third task belongs to no operator."""
    record, start, stop = (f"ThreadpoolListener::{mark}" for mark in ("Record", "StartRegion", "StopRegion"))
    profile = xplane(
        line("A", op("convolution.1", 0, 0.5), e(record, 0.2, _p=1), e(record, 0.8, _p=3)),
        line("B", e(start, 1, _c=1), e(record, 2, _p=2), e(stop, 4)),
        line("C", e(start, 4, _c=2), e(stop, 6), e(start, 7, _c=3), e(stop, 9)),
        line("D", e(stop, 1), e(start, 8, _c=4)),
    )
    (only,) = profile.operators
    assert (only.name, only.calls) == ("convolution", 1)
    assert only.host_self_s == pytest.approx(5.5e-3)
    assert profile.gaps.total_s == pytest.approx(4.5e-3)


def test_time_of_a_task_for_another_operator_belongs_to_that_operator() -> None:
    record, start, stop = (f"ThreadpoolListener::{mark}" for mark in ("Record", "StartRegion", "StopRegion"))
    profile = xplane(
        line("A", op("dot.1", 0, 1), e(record, 0.5, _p=1)),
        line("B", e(start, 1, _c=1), e("ThunkExecutor::Execute", 3, 5), op("reduce.2", 4, 2), e(stop, 9)),
    )
    assert {name: operator.host_self_s for name, operator in operators(profile).items()} == pytest.approx(
        {"dot": 4e-3, "reduce": 2e-3}
    )


def test_tensorflow_kernels_are_named_by_type() -> None:
    profile = xplane(
        line(
            "python", e("EagerLocalExecute: __inference_step_12", 0, 10), e("EagerLocalExecute: MatMul", 9, 1)
        ),
        line("tf_XLA", e("__inference_step_12:__inference_step_12", 0, 9)),
        line(
            "tf_Compute/1",
            e("ExecutorState::Process", 0, 9),
            e("gradient_tape/Conv2DBackpropFilter_4:_MklNativeConv2DBackpropFilter", 1, 4),
            e("MemoryAllocation", 2, allocator_name="mklcpu", bytes_allocated=300, allocation_bytes=200),
            e("MemoryDeallocation", 3, allocator_name="mklcpu", bytes_allocated=100, allocation_bytes=200),
            e("MemoryAllocation", 2, allocator_name="cpu", bytes_allocated=7, allocation_bytes=7),
        ),
    )
    rows = operators(profile)
    assert set(rows) == {"MatMul", "_MklNativeConv2DBackpropFilter"}
    assert rows["_MklNativeConv2DBackpropFilter"].allocated_bytes == 200
    assert profile.memory_bytes == (300, 100)


def test_a_gpu_is_read_from_its_streams_and_a_tpu_from_its_operators() -> None:
    kernel = e("loop_fusion_3", 1, 2, hlo_op="loop_fusion.3", hlo_module="jit", flops=50, bytes_accessed=8)
    gpu = xplane(
        line("Stream #14(Compute)", kernel, e("memcpy32_post", 5, 1), plane="/device:GPU:0"),
        line("XLA Ops", kernel, plane="/device:GPU:0"),
    )
    assert gpu.on_device
    assert [operator.name for operator in gpu.operators] == ["loop_fusion", "memcpy32_post"]
    assert (gpu.operators[0].flops, gpu.operators[0].bytes, gpu.operators[0].calls) == (50, 8, 1)
    assert gpu.busy_s == pytest.approx(3e-3)
    instruction = e("%fusion.7 = f32[8]{0} fusion(f32[8]{0} %p), kind=kLoop", 1, 2)
    tpu = xplane(
        line("XLA Ops", instruction, plane="/device:TPU:0"),
        line("Steps", e("0", 0, 9), plane="/device:TPU:0"),
    )
    assert {op.name: op.device_self_s for op in tpu.operators} == pytest.approx({"fusion": 2e-3})


HLO = """\
HloModule jit_step, is_scheduled=true

%region_0.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %sum = f32[] add(%a, %b)
}

%fused_computation.83 (p0: f32[8], p1: f32[8]) -> f32[8] {
  %p0 = f32[8]{0} parameter(0)
  ROOT %convolution.12 = f32[8]{0} convolution(%p0, %p1), window={size=28x28}
}

%fused_computation.84 (p2: f32[8]) -> f32[] {
  %c = f32[] constant(0)
  ROOT %reduce.1 = f32[] reduce(%p2, %c), dimensions={0}, to_apply=%region_0.1
}

%fused_computation.85 (p3: f32[8]) -> (f32[8]{0:T(128)}, f32[8]) {
  %inner = f32[8]{0} fusion(%p3), kind=kLoop, calls=%fused_computation.83
  ROOT %both = (f32[8]{0:T(128)}, f32[8]) tuple(%inner, %p3)
}

ENTRY %main.9 (x: f32[8]) -> f32[8] {
  %ynn_fusion.3 = f32[8]{0} fusion(%x, %x), kind=kCustom, calls=%fused_computation.83
  %ynn_fusion = f32[] fusion(%x), kind=kCustom, calls=%fused_computation.84
  %add_tuple_fusion.1 = (f32[8]{0:T(128)}, f32[8]) fusion(%x), kind=kLoop, calls=%fused_computation.85
  %custom-call.2 = f32[8]{0} custom-call(%x), custom_call_target="__cublas$gemm"
  %convolution.7 = f32[8]{0} convolution(%x, %x), window={size=3x3}
  ROOT %copy.4 = f32[8]{0} copy(%x)
}
"""


def test_an_instruction_is_named_after_its_costliest_part() -> None:
    assert xla.labels(HLO) == {
        "inner": "convolution",
        "ynn_fusion.3": "convolution",
        "ynn_fusion": "reduce",
        "add_tuple_fusion.1": "convolution",
        "custom-call.2": "__cublas$gemm",
    }


def test_a_trace_without_a_reader_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] in ("jax", "tensorflow")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    folder = tmp_path / "plugins/profile/2026_01_02"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(b"")
    (folder / "host.trace.json.gz").write_bytes(b"")
    with pytest.raises(Unread) as unread:
        xla.parse_profile(tmp_path, RECORDING, {})
    assert unread.value.recording == RECORDING
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["trace.json.gz", "xplane.pb"]


def fake_tensorflow_space() -> Any:
    """Fields of the protobuf, as TensorFlow's own module has them."""

    def stat(kind: str, value: Any) -> Any:
        return SimpleNamespace(metadata_id=1, WhichOneof=lambda _: kind, **{kind: value})

    def event(metadata: int, offset: int, length: int, *stats: Any) -> Any:
        return SimpleNamespace(metadata_id=metadata, offset_ps=offset, duration_ps=length, stats=stats)

    names = {1: BEGIN, 2: END, 3: "copy.1"}
    marks = [event(1, 0, 10), event(2, 9_000_000, 10)]
    events = [*marks, event(3, 1_000_000, 2_000_000, stat("ref_value", 2)), event(3, 4_000_000, 0)]
    plane = SimpleNamespace(
        name="/host:CPU",
        event_metadata={key: SimpleNamespace(name=name) for key, name in names.items()},
        stat_metadata={1: SimpleNamespace(name="hlo_op"), 2: SimpleNamespace(name="copy.1")},
        lines=[SimpleNamespace(name="python", timestamp_ns=100, events=events)],
    )
    return SimpleNamespace(planes=[plane], ParseFromString=lambda content: None)


def test_tensorflow_traces_are_read_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("xplane_pb2")
    vars(module)["XSpace"] = fake_tensorflow_space
    package = "tensorflow.tsl.profiler.protobuf"
    for name in ("tensorflow", "tensorflow.tsl", "tensorflow.tsl.profiler"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    holder = ModuleType(package)
    vars(holder)["xplane_pb2"] = module
    monkeypatch.setitem(sys.modules, package, holder)
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    profile = xla.parse_profile(tmp_path, RECORDING, {})
    assert {op.name: op.host_self_s for op in profile.operators} == pytest.approx({"copy": 2e-6})
    assert profile.traces == ("trace.json", "xplane.pb")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"ph": "X", "name": "copy.1", "ts": 1.1, "dur": 2.0, "pid": 0, "tid": 0} in events
