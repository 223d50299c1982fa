"""Workload × backend × mode × dtype at the smallest size against float64, each in a worker as in a run."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any
from zlib import crc32

import pytest

from benchbench import registry
from benchbench.backends.base import Backend, backend_class
from benchbench.model.case import Case, Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.workloads.base import Workload
from tests.factories import a_case, real_settings
from tests.tiny import WORKS
from tests.verifying import SharedReferences, Verifier, export_for

CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="")
BACKENDS = [name for name in registry.entry_names("benchbench.backends") if name != "fake"]
# Missing kernels by backend and dtype, with the reason: for all but products; for everything; for a
# recurrent layer on CPUs without instructions for it.
NO_KERNEL = {
    ("onnxruntime", Dtype.FLOAT64): "no kernel for float64",
    ("openvino", Dtype.BFLOAT16): "no kernels in bfloat16",
    ("openvino", Dtype.FLOAT16): "no kernels in float16",
}
# Missing operations of a framework: pattern of the case id → part of the reason.
UNSUPPORTED: dict[str, str] = {
    "onnxruntime-graph-lstm-int8": "quantiser leaves LSTM",
    "onnxruntime-graph-gru-int8": "quantiser leaves GRU",
    "openvino-graph-dropout-*": "does not read ONNX's Dropout: Training mode",
    "jax-*-update-float*": "XLA fuses",  # if not `fused`
    "torch_xla-*-update-float*": "XLA fuses",
    "torch_xla-*-batch_norm_backward-float*": "running statistics",  # if not `training`
    "torch_xla-*-batch_norm_backward-bfloat*": "running statistics",
}
IN_EVERY_MODE = "gemm"  # and in every dtype, since it compiles fastest
TUNED = "max-autotune-no-cudagraphs"  # compiles like `compile`, with trials
# Takes half a minute each.
XLA_TRAINS = frozenset({"convnet_train", "mnist_cnn_train", "transformer_train", "update"})
# CPU kernels that may compute below the requested precision (docs/backends.md); the case is then
# wrong_result for the tensor named here. Which kernel runs depends on the CPU's instructions.
LESS_ON_SOME_CPUS: dict[tuple[str, str, str, Dtype | None], str] = {
    # Compiled, Adam that is not fused corrects its bias in float32.
    **{("torch", mode, "update", Dtype.FLOAT64): "of the" for mode in ("compile", TUNED)},
    **{
        ("tensorflow", mode, workload, dtype): tensor  # summed in 16 bits
        for mode in ("function", "eager")
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT16)
        for workload, tensor in {
            "conv2d_backward": "of the filters",
            "conv2d_backward_data": "of the output",
            "conv2d_backward_weights": "of the output",
            "depthwise_conv2d_backward": "of the filters",
            "conv3d": "of the output",
            "conv3d_backward": "of the",
            "conv_transpose2d": "of the output",
            "conv_transpose2d_backward": "of the",
        }.items()
    },
    **{
        ("torch", mode, workload, Dtype.FLOAT16): tensor  # a sum of each kernel's elements in 16 bits
        for mode in ("eager", "compile", "compile-freezing", "max-autotune-no-cudagraphs")
        for workload, tensor in {
            "conv2d_backward": "of the images",
            "conv2d_backward_data": "of the output",
            "conv3d_backward": "of the images",
            "conv_transpose2d": "of the output",
        }.items()
    },
    **{
        ("tensorflow", mode, workload, dtype): "of the"  # gradients of biases and filters summed in 16 bits
        for mode in ("function", "eager")
        for workload in ("ssd_head_train", "unet_train")
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.AMP_BF16, Dtype.AMP_FP16)
    },
    **{
        (backend, mode, "r3d18_train", dtype): "layer3.0.conv2.weight"  # oneDNN's gradient of two frames
        for backend, mode in (
            *(("torch", mode) for mode in ("eager", "compile", TUNED)),
            *(("tensorflow", mode) for mode in ("function", "eager")),
        )
        for dtype in (Dtype.BFLOAT16, Dtype.AMP_BF16)
    },
    **{
        ("tensorflow", mode, "reduction", Dtype.FLOAT16): "of the output"  # summed in 16 bits
        for mode in ("function", "eager")
    },
    **{
        (backend, mode, "layer_norm_backward", dtype): "of the"  # scale's and shift's summed in 16 bits
        for backend, mode in (("torch", "eager"), ("torch_xla", "lazy"))
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT16)
    },
    **{
        ("openvino", "graph", loss, Dtype.FLOAT16): "of the output"  # casts to float32 use float16
        for loss in ("cross_entropy", "mse")
    },
    **{
        ("torch_xla", "lazy", workload, Dtype.FLOAT16): "of the"  # summed in 16 bits
        for workload in (
            *("batch_norm", "batch_norm_backward", "layer_norm", "conv2d"),
            *("conv2d_backward", "conv2d_backward_data", "conv2d_backward_weights", "conv3d"),
            *("conv3d_backward", "conv_transpose2d", "conv_transpose2d_backward"),
            "depthwise_conv2d_backward",
        )
    },
    ("torch_xla", "lazy", "convnet_train", Dtype.FLOAT16): "of the gradient",  # likewise
}
LESS_EVERYWHERE: dict[tuple[str, str, str, Dtype | None], str] = {
    **{
        ("onnxruntime", "graph", workload, Dtype.FLOAT64): "of the output"  # an attribute of ONNX is float32
        for workload in (
            *("batch_norm", "dropout", "layer_norm", "rms_norm"),
            *("encoder_decoder_infer", "gpt2_prefill", "gpt2_decode", "llama_prefill", "llama_decode"),
        )
    },
    **{
        ("torch_xla", "lazy", workload, Dtype.FLOAT64): "of the"  # a constant in float32
        for workload in (
            *("batch_norm", "batch_norm_backward", "gelu", "gelu_backward"),
            *("layer_norm", "layer_norm_backward"),
            *("bert_base_infer", "bert_base_train", "encoder_decoder_infer", "encoder_decoder_train"),
            *("speech_encoder_infer", "speech_encoder_train", "transformer_infer", "transformer_train"),
        )
    },
}


def pairs(kind: type[Backend], work: Workload) -> list[tuple[str, Dtype]]:
    """Modes and dtypes that neither the backend nor the workload refuses."""
    return [
        (mode, dtype)
        for dtype, mode in itertools.product(Dtype, kind.modes)
        if not (kind().refuses(CPU, dtype, mode, Phase(work.phase)) or work.refuses(dtype))
        and not work.refused_on_cpu
    ]


def is_nightly(work: Workload, case: Case) -> bool:
    """Whether CI leaves out a case. CI takes each workload in float32 in the first mode of a backend."""
    if case.workload == IN_EVERY_MODE:
        return case.mode == TUNED
    if case.backend == "torch_xla" and work.phase is Phase.TRAIN and case.workload not in XLA_TRAINS:
        return True
    return (case.mode, case.dtype) != (kind_of(case.backend).modes[0], Dtype.FLOAT32)


def kind_of(backend: str) -> type[Backend]:
    return backend_class(backend)


def matrix() -> Iterator[tuple[str, Case, bool]]:
    """Cases that neither the backend nor the workload refuses: id, case, and whether it is nightly."""
    for backend, (work_id, name, work) in itertools.product(BACKENDS, WORKS):
        for mode, dtype in pairs(kind_of(backend), work):
            case = a_case(
                workload=name, params=work.params, dtype=dtype, mode=mode, phase=work.phase,
                target=backend, backend=backend,
            )  # fmt: skip
            yield f"{backend}-{mode}-{work_id}-{dtype}", case, is_nightly(work, case)


MATRIX = list(matrix())


def parameters() -> Iterator[Any]:
    """Groups for `pytest -n`: two processes share the cases of a framework, and each imports it once.

    Backends that load each other's models share processes.
    """
    for id_, case, nightly in MATRIX:
        half = crc32(case.workload.encode()) % 2
        group = "onnx" if kind_of(case.backend).exports else case.backend
        marks = [pytest.mark.xdist_group(f"{group} {half}")]
        marks += [pytest.mark.nightly] if nightly else []
        yield pytest.param(id_, case, id=id_, marks=marks)


def unsupported(id_: str, case: Case, outcome: dict[str, Any]) -> bool:
    """Whether the framework is known to lack the operation, and the outcome has the reason."""
    for pattern, reason in UNSUPPORTED.items():
        if fnmatchcase(id_, pattern):
            assert (outcome.get("status"), reason in outcome.get("message", "")) == ("unsupported", True)
            return True
    known_reason = NO_KERNEL.get((case.backend, case.computes_in))
    if known_reason and outcome.get("status") == "unsupported":
        assert known_reason in outcome["message"]
        return True
    return False


@pytest.fixture(scope="module")
def verifier(shared_references: SharedReferences) -> Iterator[Verifier]:
    with ExitStack() as opened:
        yield Verifier(opened, shared_references, real_settings())


@pytest.mark.real
@pytest.mark.parametrize(("id_", "case"), list(parameters()))
def test_every_backend_agrees_with_float64(verifier: Verifier, id_: str, case: Case) -> None:
    pool, probe = verifier.pool_of(case)
    if probe.status == "unavailable":
        pytest.skip(f"{case.backend}: {probe.reason}")
    if reason := dict(probe.missing_modes).get(case.mode):
        pytest.skip(reason)
    export_for(pool, [case])
    answer, _ = pool.run_case(case, {"kind": "verify", "reference": verifier.reference(case)})
    assert answer.reply is not None, answer
    outcome = answer.reply.get("outcome", {})
    if unsupported(id_, case, outcome):
        return
    listed = (case.backend, case.mode, case.workload, case.dtype)
    tensor = LESS_EVERYWHERE.get(listed) or LESS_ON_SOME_CPUS.get(listed)
    if tensor and (listed in LESS_EVERYWHERE or "status" in outcome):
        assert (outcome["status"], tensor in outcome["message"]) == ("wrong_result", True)
        return
    assert isinstance(answer.reply.get("verified"), float), answer.reply


def test_a_plan_leaves_out_the_cases_that_a_framework_lacks() -> None:
    """`list workloads` follows these rules; the test above compares them with every backend."""
    lacking = {
        id_
        for id_, case, _ in MATRIX
        if registry.load_class(registry.WORKLOADS, case.workload, Workload)(**case.params).lacks(  # type: ignore[type-abstract]
            case.backend, case.computes_in
        )
    }
    known = {
        id_
        for id_, case, _ in MATRIX
        if case.computes_in is not Dtype.INT8 and any(fnmatchcase(id_, pattern) for pattern in UNSUPPORTED)
    }
    assert {id_ for id_, case, _ in MATRIX if id_ in known and case.dtype is Dtype.FLOAT32} == {
        id_ for id_, case, _ in MATRIX if id_ in lacking and case.dtype is Dtype.FLOAT32
    }
    assert known <= lacking


def test_every_pattern_of_unsupported_cases_matches_one_of_the_matrix() -> None:
    ids = [id_ for id_, _, _ in MATRIX]
    assert [pattern for pattern in UNSUPPORTED if not any(fnmatchcase(id_, pattern) for id_ in ids)] == []
