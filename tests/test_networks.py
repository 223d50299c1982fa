"""Networks: counted work, the float64 reference, and agreement of every framework."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice, repeat
from math import prod
from typing import Any, Self, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.backends.base import Backend, Session, backend_class
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.worker.program import Runner
from benchbench.worker.verify import LAMBDA, SAMPLES, STEPS, sample_indices, tolerance
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Dense
from benchbench.workloads._losses import MeanSquared
from benchbench.workloads._optimizers import OPTIMIZERS
from benchbench.workloads._programs import jax as jax_programs
from benchbench.workloads._programs.jax_layers import JaxForward
from benchbench.workloads._programs.numpy import gradients_of, training
from benchbench.workloads._programs.torch import load_module
from benchbench.workloads.base import Draw, Workload
from benchbench.workloads.network import Network, nhwc
from benchbench.workloads.networks.plain_cnns import ConvnetTrain, MnistCnnInfer, Vgg16Infer
from benchbench.workloads.networks.residual_networks import R3d18Infer, Resnet50Infer, Resnet50Train
from benchbench.workloads.networks.vision import DcganTrain, SsdHeadInfer, SsdHeadTrain
from benchbench.workloads.steps import TrainingStep
from tests.tiny import tiny

DRAW = Draw(Dtype.FLOAT32)
FRAMEWORKS = ["torch", "tensorflow", "jax"]


def opened(framework: str, dtype: Dtype = Dtype.FLOAT32) -> tuple[Backend, Session]:
    pytest.importorskip(framework)
    backend = backend_class(framework)()
    return backend, backend.open("cpu", dtype, backend.modes[0], 2)


def started(framework: str, work: Workload, arrays: Any = None) -> tuple[Session, Runner]:
    """A session on the CPU, and the compiled program."""
    backend, session = opened(framework)
    program = backend.program(session, work, work.arrays(DRAW) if arrays is None else arrays)
    compiled = session.compile(program.step, len(program.state))
    return session, Runner(program, compiled, program.state, repeat(program.inputs))


@dataclass(frozen=True)
class Fit(Network):
    """Two dense layers for regression, a minimal network."""

    batch: int = 4
    loss = MeanSquared()
    input_names = ("features",)
    output_shape = property(lambda self: (self.batch, 3))

    def layers(self) -> tuple[Dense, ...]:
        return Dense(name="up", inputs=5, outputs=7), Dense(name="down", inputs=7, outputs=3)

    def inputs(self, draw: Draw) -> Any:
        return {"features": draw.normal("features", self.batch, 5)}

    def tiny(self) -> Self:
        return self

    def torch(self) -> Any:
        from torch import nn

        return nn.Sequential(OrderedDict(up=nn.Linear(5, 7), act=nn.Tanh(), down=nn.Linear(7, 3)))

    def apply(self, nn: FunctionalForward, features: Any) -> Any:
        return nn.dense(nn.tanh(nn.dense(features, "up")), "down")


@dataclass(frozen=True)
class FitTrain(TrainingStep, Fit):
    summary = "fit a plane"


class Trained:
    """The steps of a program, with access to its values."""

    def __init__(self, framework: str, work: TrainingStep) -> None:
        self.session, self.runner = started(framework, work)
        self.program = self.runner.program

    def step(self) -> float:
        return float(self.session.fetch(self.runner.step()))

    def read(self, select: Any) -> dict[str, Any]:
        return {name: to_numpy(tensor) for name, tensor in select(*self.runner.state).items()}


def to_numpy(tensor: Any) -> Any:
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor).astype(float)


def distance(actual: dict[str, Any], expected: dict[str, Any]) -> float:
    """‖x − r‖ / ‖r‖ of the worst tensor."""
    assert actual.keys() == expected.keys()
    return float(max(np.linalg.norm(actual[key] - r) / np.linalg.norm(r) for key, r in expected.items()))


@pytest.mark.parametrize(
    ("work", "flops"),
    [
        (Resnet50Infer(batch=1), 8_178_368_512),
        (Resnet50Train(batch=1), 24_299_077_632),
        (Vgg16Infer(batch=1), 30_940_528_640),  # torchvision
        (R3d18Infer(batch=1), 81_393_106_944),  # torchvision: 40.70 G multiply-adds
    ],
)
def test_flops_of_an_image_or_clip_are_the_published_ones(work: Network, flops: int) -> None:
    assert work.cost(Dtype.FLOAT32).flops == flops


def test_bytes_of_training_are_three_passes_without_the_first_input_gradient_and_the_update() -> None:
    conv1 = 3 * 32**2 + 32 * 32**2 + 32 * 3 * 9
    conv2 = 32 * 16**2 + 64 * 16**2 + 64 * 32 * 9
    dense1 = 4096 + 512 + 4096 * 512
    dense2 = 512 + 10 + 512 * 10
    elements = 2 * conv1 + 3 * (conv2 + dense1 + dense2) + 5 * 2_122_186
    assert ConvnetTrain(batch=1).cost(Dtype.BFLOAT16).bytes == 2 * elements


def test_a_strided_convolution_reads_its_whole_operand() -> None:
    stem = Resnet50Infer(image=224).stem
    assert stem.pixels() == (3 * 224**2, 64 * 112**2)


@pytest.mark.real
@given(st.integers(1, 100), st.integers(2, 10))
def test_flops_are_proportional_to_the_batch(batch: int, sides: int) -> None:
    single, many = (Resnet50Train(batch=n, image=32 * sides).cost(Dtype.FLOAT32) for n in (1, batch))
    assert many.flops == batch * single.flops
    assert many.items == batch


@given(st.integers(1, 7))
def test_output_shapes_of_layers_match_their_successors(sides: int) -> None:
    network = Resnet50Infer(image=32 * sides)
    _, outputs = network.stem.pixels()
    pixels = outputs // 4  # the max-pool
    for block in network.blocks():
        inputs = pixels
        for conv in block.convs:
            assert conv.pixels()[0] == pixels
            pixels = conv.pixels()[1]
        if block.projection:
            assert block.projection.pixels() == (inputs, pixels)
    assert pixels == network.head.inputs * sides**2


def test_running_variances_are_positive() -> None:
    arrays = Resnet50Infer(batch=1, image=32).arrays(Draw(Dtype.BFLOAT16))
    variances = [array for name, array in arrays.items() if name.endswith("running_var")]
    assert len(variances) == 53
    assert min(variance.min() for variance in variances) > 0


def test_inference_is_verified_on_one_image() -> None:
    index = sample_indices(Resnet50Infer(batch=32))["output"]
    assert len(set(index[:, 0])) == 1
    assert len(set(index[:, 1])) > 100


@pytest.mark.real
def test_a_logit_does_not_depend_on_the_rest_of_the_batch() -> None:
    workload = Resnet50Infer(batch=2, image=32)
    arrays = workload.arrays(DRAW)
    three = workload.reference(arrays, np.array([[1, 3], [0, 7], [1, 999]]))
    two = workload.reference(arrays, np.array([[1, 3], [1, 999]]))
    assert three[[0, 2]] == pytest.approx(two, rel=1e-12)


def test_the_convnets_loss_falls() -> None:
    work = ConvnetTrain().tiny()
    losses = [step.loss for step in islice(training(work, work.update, work.arrays(DRAW)), 3)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.real
@pytest.mark.parametrize(
    "work",
    [ConvnetTrain().tiny(), pytest.param(Resnet50Train().tiny(), marks=pytest.mark.nightly), FitTrain()],
    ids=repr,
)
def test_reference_gradients_equal_those_of_torch_in_float64(work: TrainingStep) -> None:
    (_, context), arrays = opened("torch", Dtype.FLOAT64), work.arrays(DRAW)
    inputs = [context.put(arrays[name]) for name in work.input_names]
    model = load_module(work, context, arrays).train()
    weights = {name: arrays[name].astype(float) for name in work.weights()}
    learnt = [name for name, weight in work.weights().items() if weight.is_learnt]

    loss, gradients = gradients_of(work, weights, learnt, arrays)
    expected = work.loss.torch(model(*inputs), *(context.put(arrays[name]) for name in work.target_names))
    expected.backward()

    assert loss == pytest.approx(expected.item(), rel=1e-9)
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    assert gradients.keys() == theirs.keys()
    # a shift that the next batch norm removes has no gradient
    smallest = 1e-12 * np.sqrt(sum(np.vdot(gradient, gradient) for gradient in theirs.values()))
    for key, gradient in gradients.items():
        assert np.linalg.norm(gradient - theirs[key]) <= 1e-9 * np.linalg.norm(theirs[key]) + smallest, key


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_framework_follows_the_published_update_rule(framework: str, name: str) -> None:
    work = FitTrain(optimizer=name)
    arrays: Any = work.arrays(DRAW)
    optimizer = OPTIMIZERS[name]
    expected = list(islice(training(work, optimizer, arrays), STEPS))
    run = Trained(framework, work)
    assert run.program.parameters is not None

    assert run.step() == pytest.approx(expected[0].loss, rel=1e-5)
    if run.program.gradients is not None:
        first = expected[0].gradients
        gradients = first if optimizer.is_signed else {key: abs(gradient) for key, gradient in first.items()}
        assert distance(run.read(run.program.gradients), gradients) < 1e-5
    assert [run.step() for _ in expected[1:]] == pytest.approx([step.loss for step in expected[1:]], rel=1e-4)
    changes = {key: p - arrays[key] for key, p in run.read(run.program.parameters).items()}
    assert distance(changes, {key: p - arrays[key] for key, p in expected[-1].parameters.items()}) < 1e-3


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="No optimizer named 'adm'") as refused:
        FitTrain(optimizer="adm")
    assert refused.value.hint == "Did you mean 'adam'?"


@pytest.mark.parametrize(("name", "refused"), [("momentum", False), ("sgd", False), ("adam", True)])
def test_slow_averages_are_not_stored_in_16_bits(name: str, refused: bool) -> None:
    work = FitTrain(optimizer=name)
    assert bool(work.refuses(Dtype.BFLOAT16)) == bool(work.refuses(Dtype.FLOAT16)) == refused
    assert not work.refuses(Dtype.AMP_BF16)


@pytest.mark.real
def test_jax_carries_running_statistics_as_torch_does() -> None:
    jax = pytest.importorskip("jax")
    (_, torch_session), (_, jax_session) = opened("torch"), opened("jax")
    work = Resnet50Train(batch=2, image=32, depth=14)
    arrays = work.arrays(DRAW)
    model = load_module(work, torch_session, arrays).train()
    model(torch_session.put(arrays["images"]))

    weights = jax_programs.put(work, jax_session, arrays)

    def forward(weights: Any, images: Any) -> Any:
        after = dict(weights)
        work.apply(JaxForward(after, training=True), images)
        return after

    after = jax.jit(forward)(weights, jax_session.put(nhwc(arrays["images"])))
    means = {name: mean.numpy() for name, mean in model.named_buffers() if name.endswith("running_mean")}
    assert len(means) == 17
    stem = "stem.norm.running_mean"
    assert np.abs(means[stem] - arrays[stem]).max() > 1e-3
    np.testing.assert_allclose(after[stem], means[stem], rtol=1e-4, atol=1e-5)


@pytest.mark.real
@pytest.mark.parametrize("name", ["mnist_cnn_train", "mnist_cnn_infer", "gpt2_prefill", "gpt2_decode"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_other_inputs_are_drawn_without_weights(framework: str, name: str) -> None:
    """Arrays as a new program would have them."""
    work = tiny(name)
    program = started(framework, work)[1].program
    other = Draw(Dtype.FLOAT32, renewed=lambda array: int(work.is_input(array)))
    assert program.inputs_of
    assert not work.input_arrays(other).keys() & cast(Network, work).weights().keys()
    inputs_made = [to_numpy(tensor) for tensor in tensors_in(program.inputs_of(work.input_arrays(other)))]
    again = [
        to_numpy(tensor)
        for tensor in tensors_in(started(framework, work, work.arrays(other))[1].program.inputs)
    ]
    for first_tensor, two in zip(inputs_made, again, strict=True):
        np.testing.assert_array_equal(first_tensor, two)
    first = [to_numpy(tensor) for tensor in tensors_in(program.inputs)]
    assert any((first_tensor != two).any() for first_tensor, two in zip(first, inputs_made, strict=True))


def tensors_in(inputs: Any) -> list[Any]:
    """Tensors in arguments; JAX's weights are a dictionary."""
    if isinstance(inputs, dict):
        return [tensor for value in inputs.values() for tensor in tensors_in(value)]
    return [t for value in inputs for t in tensors_in(value)] if isinstance(inputs, tuple) else [inputs]


@pytest.mark.parametrize("work", [ConvnetTrain(), Resnet50Train()], ids=["convnet", "resnet50"])
def test_a_weight_survives_a_round_trip(work: Network) -> None:
    for name, weight in work.weights().items():
        array = np.arange(prod(weight.shape)).reshape(weight.shape)
        there = weight.channels_last(array)
        np.testing.assert_array_equal(weight.as_in_torch(there, np.reshape, np.transpose), array, name)


def test_mnist_cnn_has_the_published_sizes() -> None:
    shapes = [conv.output_sizes for conv in MnistCnnInfer().layers() if hasattr(conv, "output_sizes")]
    assert shapes == [(26, 26), (11, 11), (3, 3)]


def test_a_detector_has_the_published_boxes() -> None:
    assert SsdHeadInfer().sides() == [38, 19, 10, 5, 3, 1]
    assert SsdHeadInfer().output_shape == (32, 8732, 25)


def test_boxes_of_every_map_are_verified() -> None:
    work = SsdHeadInfer()
    boxes = sample_indices(work)["output"][:, 1]
    counts = np.histogram(boxes, np.cumsum([0, *work.boxes()]))[0]
    assert counts.sum() == SAMPLES
    assert counts.min() > SAMPLES / 12


@pytest.mark.real
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=[] if name == "torch" else [pytest.mark.nightly])  # takes most of a minute
        for name in FRAMEWORKS
    ],
)
def test_both_updates_of_dcgan_are_float64_s_for_ten_steps(framework: str) -> None:
    work = DcganTrain().tiny()
    arrays: Any = work.arrays(DRAW)
    run, limit = Trained(framework, work), LAMBDA * tolerance(work, Dtype.FLOAT32)
    for number, step in enumerate(islice(training(work, work.update, arrays), 10), 1):
        assert run.step() == pytest.approx(step.loss, rel=limit * number**0.5), number  # as in test_losses.py
        assert run.program.parameters is not None
        parameters = run.read(run.program.parameters)
        for objective in work.objectives:
            names = [name for name in parameters if objective.moves(name)]
            actual, expected = (
                np.concatenate([(after[name] - arrays[name]).ravel() for name in names])
                for after in (parameters, step.parameters)
            )
            error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
            assert error < limit, (number, objective.learner)


def test_at_most_every_fourth_box_has_an_object() -> None:
    work = SsdHeadTrain()
    labels: Any = work.loss.targets(Draw(Dtype.FLOAT32), (4, 8732, 25))["labels"]
    assert set(np.unique(labels)) == set(range(21))
    assert 0.23 < (labels > 0).mean() < 0.25


def test_the_generator_learns_from_the_discriminator_as_updated() -> None:
    work = DcganTrain().tiny()
    first, second = work.objectives
    arrays = work.arrays(Draw(Dtype.FLOAT64))
    step = next(training(work, work.update, arrays))
    names = [name for name in step.parameters if second.moves(name)]
    assert not any(first.moves(name) for name in names)
    weights = {name: arrays[name].astype(float) for name in work.weights()}
    judged = {name: p for name, p in step.parameters.items() if first.moves(name)}
    _, after = gradients_of(work, weights | judged, names, arrays, objective=second)
    _, before = gradients_of(work, weights, names, arrays, objective=second)
    for name in names:
        np.testing.assert_allclose(step.gradients[name], after[name], rtol=1e-12)
    assert not np.allclose(step.gradients[names[0]], before[names[0]], rtol=1e-3)
