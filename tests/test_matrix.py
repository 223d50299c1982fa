"""Workload × backend × mode × dtype at the tiny size against float64, each in a worker as a run has it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import cache
from typing import Any
from zlib import crc32

import pytest

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.model.case import AMP, Case, Dtype, Phase
from benchbench.model.device import Device, DeviceClass
from benchbench.workloads.base import Training, Workload
from benchbench.workloads.network import Network
from tests.factories import a_case, real_settings
from tests.tiny import WORKS, tiny
from tests.verifying import SharedReferences, Verifier, export_for

EXHAUSTIVE = "exhaustive"  # the marker of what neither the README's command nor CI runs
CPU = Device(name="cpu", device_class=DeviceClass.CPU, model="")
BACKENDS = [name for name in registry.entry_names("benchbench.backends") if name != "fake"]
# Backend and dtype → the reason where it has no kernel: of whatever is more than a product; of any, or of a
# recurrent layer, on CPUs without instructions for it.
NO_KERNEL = {
    ("onnxruntime", Dtype.FLOAT64): "no kernel for float64",
    ("openvino", Dtype.BFLOAT16): "no kernels in bfloat16",
    ("openvino", Dtype.FLOAT16): "no kernels in float16",
}
# What a framework has no operation for: pattern of the case's id → part of the reason it gives.
UNSUPPORTED: dict[str, str] = {
    "onnxruntime-graph-lstm-int8": "quantiser leaves LSTM",
    "onnxruntime-graph-gru-int8": "quantiser leaves GRU",
    "openvino-graph-dropout-*": "does not read ONNX's Dropout: Training mode",
    "jax-*-update-float*": "XLA fuses",  # what is not `fused`
    "torch_xla-*-update-float*": "XLA fuses",
    "torch_xla-*-batch_norm_backward-float*": "running statistics",  # what is not `training`
    "torch_xla-*-batch_norm_backward-bfloat*": "running statistics",
}
# Taken in every dtype and mode, but for training where a compiler takes long (see `is_slow`).
CORE = frozenset({"attention", "conv2d", "convnet_train", "gemm"})
# A large network, and two of phase `backward`: in every dtype on one backend.
DEEP = frozenset({"attention_backward", "conv2d_backward", "resnet50_infer"})
# In every mode in float32, as `CORE` is: what a compiler makes of gradients, and of networks.
IN_EVERY_MODE = frozenset({"attention_backward", "conv2d_backward", "transformer_infer"})
COMPILED_TRAINING = (Dtype.FLOAT32,)
TUNED = "max-autotune-no-cudagraphs"  # compiles as `compile` does, with trials
FREEZING = "compile-freezing"  # compiles an operation, which has no weights, as `compile` does
FROZEN = frozenset({"convnet_infer", "gpt2_decode"})  # the latter's caches change, and its weights do not
# Half a minute each.
XLA_TRAINS = frozenset({"convnet_train", "mnist_cnn_train", "transformer_train", "update"})
A_FURTHER_MODE = 6  # one of so many operations outside them is taken in another mode than the first, too
# CPU kernels that may compute in less than is asked for (docs/backends.md): where they do, the case is
# wrong_result, of the tensor that these words are of. Which kernel runs depends on the CPU's instructions.
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
        ("torch_xla", "lazy", workload, Dtype.FLOAT16): "of the"  # likewise
        for workload in ("batch_norm", "batch_norm_backward", "layer_norm")
    },
    **{
        ("openvino", "graph", loss, Dtype.FLOAT16): "of the output"  # what is cast to float32 is in float16
        for loss in ("cross_entropy", "mse")
    },
    ("torch_xla", "lazy", "conv2d", Dtype.FLOAT16): "of the output",  # summed in 16 bits
    **{
        ("torch_xla", "lazy", workload, Dtype.FLOAT16): "of the"  # likewise
        for workload in (
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
    """The modes and dtypes that are refused neither by the backend nor by the workload."""
    return [
        (mode, dtype)
        for dtype, mode in itertools.product(Dtype, kind.modes)
        if not (kind().refuses(CPU, dtype, mode, Phase(work.phase)) or work.refuses(dtype))
        and not work.refused_on_cpu
    ]


def is_slow(kind: type[Backend], work: Workload, mode: str, dtype: Dtype) -> bool:
    """Whether the pair of a workload in `CORE` is for `exhaustive`: training in further modes, trials."""
    if mode in (TUNED, FREEZING):
        return work.phase is Phase.TRAIN or dtype is not Dtype.FLOAT32
    return work.phase is Phase.TRAIN and mode != kind.modes[0] and dtype not in COMPILED_TRAINING


def usual(backend: str, kind: type[Backend], name: str, work: Workload) -> set[tuple[str, Dtype]]:
    """The pairs that are not for `exhaustive`.

    Of a workload outside `CORE`: float32 in the first mode, another dtype on one of its backends (those of
    `DEEP`: each on one), and of some a further mode. Which one goes by the name, so that adding a workload
    changes nothing for the others.
    """
    possible = pairs(kind, work)
    if name in CORE:
        return {pair for pair in possible if not is_slow(kind, work, *pair)}
    if backend == "torch_xla" and work.phase is Phase.TRAIN and name not in XLA_TRAINS:
        return set()
    first = {(kind.modes[0], Dtype.FLOAT32)}
    if work.params != tiny(name).params:  # with a truth value turned
        return first
    dtypes = {(kind.modes[0], dtype) for taker, dtype in further_dtypes(name) if taker == backend}
    return first | dtypes | further_modes(kind, name, work)


@cache
def further_dtypes(name: str) -> list[tuple[str, Dtype]]:
    """Which backends take it in which other dtypes, in the first mode: one pair, or of `DEEP` each dtype."""
    takers: dict[Dtype, list[str]] = {}
    for backend in BACKENDS:
        for dtype in dtypes_of(backend, tiny(name)):
            takers.setdefault(dtype, []).append(backend)
    turn = crc32(name.encode())
    every = [(takers[dtype][(turn + at) % len(takers[dtype])], dtype) for at, dtype in enumerate(takers)]
    if isinstance(tiny(name), Training):  # which XLA compiles for long, and torch not at all
        every = [("torch" if backend == "jax" else backend, dtype) for backend, dtype in every]
    return every if name in DEEP or not every else [every[turn % len(every)]]


def dtypes_of(backend: str, work: Workload) -> list[Dtype]:
    """But float32; XLA's compiler takes half a minute for a network in 16 bits, seconds for others.

    OpenVINO has other dtypes on some CPUs only: there it takes those of `CORE`.
    """
    if backend == "openvino":
        return []
    if backend == "torch_xla" and (isinstance(work, Network) or work.phase is Phase.TRAIN):
        return []
    kind = kind_of(backend)
    return [
        dtype for mode, dtype in pairs(kind, work) if mode == kind.modes[0] and dtype is not Dtype.FLOAT32
    ]


def further_modes(kind: type[Backend], name: str, work: Workload) -> set[tuple[str, Dtype]]:
    """In float32, but for `TUNED`: all of `IN_EVERY_MODE`, one of every sixth other operation; some frozen.

    A compiler takes ten seconds for a network, and meets the same layers in those.
    """
    modes = [mode for mode, dtype in pairs(kind, work) if dtype is Dtype.FLOAT32]
    others = [(mode, Dtype.FLOAT32) for mode in modes if mode not in (kind.modes[0], TUNED, FREEZING)]
    turn = crc32(f"{name} {kind.__name__}".encode())
    frozen = {(FREEZING, Dtype.FLOAT32)} if FREEZING in modes and name in FROZEN | IN_EVERY_MODE else set()
    if name in IN_EVERY_MODE or not others:
        return {*others, *frozen}
    if frozen:
        return frozen
    if turn % A_FURTHER_MODE or isinstance(work, Network) or work.phase is Phase.TRAIN:
        return set()
    return {others[turn // A_FURTHER_MODE % len(others)]}


def kind_of(backend: str) -> type[Backend]:
    return registry.load_class("benchbench.backends", backend, Backend)  # type: ignore[type-abstract]


def matrix() -> Iterator[tuple[str, Case, str]]:
    """What is not refused: id, case, and its marker, if any.

    Without one: every workload in float32 in the first mode of every backend, those of `CORE` in each dtype.
    """
    for backend, (work_id, name, work) in itertools.product(BACKENDS, WORKS):
        kind = kind_of(backend)
        always = usual(backend, kind, name, work)
        for mode, dtype in pairs(kind, work):
            case = a_case(
                workload=name, params=work.params, dtype=dtype, mode=mode, phase=work.phase,
                target=backend, backend=backend,
            )  # fmt: skip
            first = mode == kind.modes[0] and (dtype is Dtype.FLOAT32 or name in CORE)
            marker = EXHAUSTIVE if (mode, dtype) not in always else "" if first else "slow"
            yield f"{backend}-{mode}-{work_id}-{dtype}", case, marker


MATRIX = list(matrix())


def parameters() -> Iterator[Any]:
    """Under `pytest -n`, two processes have the cases of a framework, and each imports it once.

    Those of backends that load each other's models have them in common.
    """
    for id_, case, marker in MATRIX:
        half = crc32(case.workload.encode()) % 2
        cache = kind_of(case.backend).shared_cache
        marks = [pytest.mark.xdist_group(f"{cache or case.backend} {half}")]
        marks += [getattr(pytest.mark, marker)] if marker else []
        yield pytest.param(id_, case, id=id_, marks=marks)


def unsupported(id_: str, case: Case, outcome: dict[str, Any]) -> bool:
    """Whether it is known that the framework has no such operation, and it says so."""
    for pattern, reason in UNSUPPORTED.items():
        if fnmatchcase(id_, pattern):
            assert (outcome.get("status"), reason in outcome.get("message", "")) == ("unsupported", True)
            return True
    missing = NO_KERNEL.get((case.backend, case.computes_in))
    if missing and outcome.get("status") == "unsupported":
        assert missing in outcome["message"]
        return True
    return False


@pytest.fixture(scope="module")
def verifier(shared_references: SharedReferences) -> Iterator[Verifier]:
    with ExitStack() as opened:
        yield Verifier(opened, shared_references, real_settings())


@pytest.mark.real
@pytest.mark.parametrize(("id_", "case"), list(parameters()))
def test_every_backend_computes_what_float64_computes(verifier: Verifier, id_: str, case: Case) -> None:
    pool, probe = verifier.pool_of(case)
    if probe.status == "unavailable":
        pytest.skip(f"{case.backend}: {probe.reason}")
    if reason := dict(probe.missing_modes).get(case.mode):
        pytest.skip(reason)
    export_for(pool, [case])
    answer, _ = pool.ask(case, {"kind": "verify", "reference": verifier.reference(case)})
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_mode_and_dtype_of_a_backend_is_taken_by_some_workload(backend: str) -> None:
    cases = [(case, marker) for _, case, marker in MATRIX if case.backend == backend]
    taken = {(case.mode, case.dtype) for case, marker in cases if marker != EXHAUSTIVE}
    left = {(case.mode, case.dtype) for case, _ in cases} - taken
    first = kind_of(backend).modes[0]
    spared = {pair for pair in left if pair[0] in (TUNED, FREEZING) and pair[1] is not Dtype.FLOAT32}
    spared |= {
        pair for pair in left if pair[0] != first and pair[1] in AMP and pair[1] not in COMPILED_TRAINING
    }
    assert left == spared


def test_every_workload_is_taken_on_every_backend_that_offers_its_phase() -> None:
    """But for training on torch_xla, of which `XLA_TRAINS` has some."""
    taken = {
        (case.backend, case.workload, tuple(case.params.items())) for _, case, marker in MATRIX if not marker
    }
    every = {
        (case.backend, case.workload, tuple(case.params.items()))
        for _, case, _ in MATRIX
        if (case.backend, case.phase) != ("torch_xla", Phase.TRAIN) or case.workload in XLA_TRAINS
    }
    assert taken == every


def test_every_workload_is_taken_in_another_dtype_and_large_ones_in_each() -> None:
    possible: dict[str, set[Dtype | None]] = {name: set() for _, name, _ in WORKS}
    taken: dict[str, set[Dtype | None]] = {name: set() for name in possible}
    for _, case, marker in MATRIX:
        possible[case.workload].add(case.dtype)
        taken[case.workload] |= set() if marker == EXHAUSTIVE else {case.dtype}
    for name, dtypes in possible.items():
        assert len(taken[name]) >= min(2, len(dtypes)), name
        assert name not in CORE | DEEP or taken[name] == dtypes, name


def test_gradients_and_networks_are_taken_in_every_mode() -> None:
    taken = {(case.backend, case.workload, case.mode) for _, case, marker in MATRIX if marker != EXHAUSTIVE}
    every = {(case.backend, case.workload, case.mode) for _, case, _ in MATRIX if case.mode != TUNED}
    assert [one for one in every - taken if one[1] in CORE | IN_EVERY_MODE] == []


def test_what_is_listed_as_unsupported_is_in_the_matrix() -> None:
    ids = [id_ for id_, _, _ in MATRIX]
    assert [pattern for pattern in UNSUPPORTED if not any(fnmatchcase(id_, pattern) for id_ in ids)] == []
