"""The networks: their counted work, their float64 reference, and that each framework computes it."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.worker.verify import STEPS, sample_index, tolerance
from benchbench.workloads import _float64 as f64
from benchbench.workloads import _resnet50 as resnet50
from benchbench.workloads import _resnet50_models as resnet50_models
from benchbench.workloads._sgd import float64_gradients
from benchbench.workloads._weights import is_learnt, nhwc, put_jax, weights_of
from benchbench.workloads.base import MOMENTUM, Draw, Program, Training, Workload
from benchbench.workloads.networks import convnet_train
from benchbench.workloads.networks.convnet_train import ConvnetTrain
from benchbench.workloads.networks.resnet50_infer import Resnet50Infer
from benchbench.workloads.networks.resnet50_train import Resnet50Train

DRAW = Draw(Dtype.FLOAT32)
FRAMEWORKS = ["torch", "tensorflow", "jax"]
PARAMETERS = {ConvnetTrain: 2_122_186, Resnet50Train: 25_557_032}


class TorchContext:
    def __init__(self, dtype: str = "float32") -> None:
        torch = pytest.importorskip("torch")
        self.device, self.dtype, self.compute = torch.device("cpu"), getattr(torch, dtype), None

    def put(self, array: Any) -> Any:
        import torch

        tensor = torch.tensor(np.ascontiguousarray(array))
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def spend(self, seconds: float, operator: str = "simulated") -> None: ...


class TensorFlowContext(TorchContext):
    def __init__(self) -> None:
        self.device, self.dtype, self.compute = "cpu", pytest.importorskip("tensorflow").float32, None

    def put(self, array: Any) -> Any:
        import tensorflow as tf

        return tf.constant(array)


class JaxContext(TorchContext):
    def __init__(self) -> None:
        jax = pytest.importorskip("jax")
        self.device, self.dtype = jax.devices("cpu")[0], jax.numpy.dtype("float32")
        self.compute = None

    def put(self, array: Any) -> Any:
        import jax

        return jax.device_put(array.astype("float32" if array.dtype.kind == "f" else "int32"), self.device)


CONTEXTS = {"torch": TorchContext, "tensorflow": TensorFlowContext, "jax": JaxContext}


def built(framework: str, workload: Workload, arrays: Any) -> Program:
    program: Program = getattr(workload, f"build_{framework}")(CONTEXTS[framework](), arrays)
    return program


def compiled(framework: str, program: Program) -> Any:
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.function(program.step)
    if framework == "jax":
        import jax

        return jax.jit(program.step, donate_argnums=tuple(range(len(program.state))))
    return program.step


def trained(program: Program, step: Any, steps: int) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step, the gradient taken from the momentum."""
    assert program.momenta is not None
    state, results, before = list(program.state), [], None
    for _ in range(steps):
        output = step(*state, *program.inputs)
        *state, loss = output if state else (output,)
        after = [np.asarray(v).astype(float) for v in program.momenta(*state)]
        gradients = (
            after if before is None else [a - MOMENTUM * b for a, b in zip(after, before, strict=True)]
        )
        results.append((float(loss), f64.norm(gradients)))
        before = after
    return results


def test_resnet50_has_the_published_number_of_parameters() -> None:
    arrays = Resnet50Infer(batch=1, image=32).arrays(DRAW)
    learnt = [array.size for name, array in weights_of(arrays).items() if is_learnt(name)]
    assert sum(learnt) == resnet50.parameters() == 25_557_032


def test_the_convnet_has_2122186_parameters() -> None:
    arrays = weights_of(ConvnetTrain(batch=1).arrays(DRAW))
    assert sum(array.size for array in arrays.values()) == convnet_train.PARAMETERS == 2_122_186


def test_a_resnet50_image_takes_these_flops() -> None:
    assert Resnet50Infer(batch=1).cost(Dtype.FLOAT32).flops == 8_178_368_512
    assert Resnet50Train(batch=1).cost(Dtype.FLOAT32).flops == 24_299_077_632


def test_bytes_of_training_are_three_passes_without_the_first_input_gradient_and_the_update() -> None:
    conv1 = 3 * 32**2 + 32 * 32**2 + 32 * 3 * 9
    conv2 = 32 * 16**2 + 64 * 16**2 + 64 * 32 * 9
    dense1 = 4096 + 512 + 4096 * 512
    dense2 = 512 + 10 + 512 * 10
    elements = 2 * conv1 + 3 * (conv2 + dense1 + dense2) + 5 * 2_122_186
    assert ConvnetTrain(batch=1).cost(Dtype.BFLOAT16).bytes == 2 * elements


def test_a_strided_convolution_reads_its_whole_operand() -> None:
    stem = resnet50.stem(224)
    assert stem.pixels() == (3 * 224**2, 64 * 112**2)


@given(st.integers(1, 100), st.integers(1, 10))
def test_flops_are_proportional_to_the_batch(batch: int, sides: int) -> None:
    one, many = (Resnet50Train(batch=n, image=32 * sides).cost(Dtype.FLOAT32) for n in (1, batch))
    assert many.flops == batch * one.flops
    assert many.items == batch


@given(st.integers(1, 7))
def test_layers_fit_together(sides: int) -> None:
    image = 32 * sides
    _, outputs = resnet50.stem(image).pixels()
    pixels = outputs // 4  # the max-pool
    for block in resnet50.blocks(image):
        inputs = pixels
        for conv in block.convs:
            assert conv.pixels()[0] == pixels
            pixels = conv.pixels()[1]
        if block.projection:
            assert block.projection.pixels() == (inputs, pixels)
    assert pixels == resnet50.HEAD.inputs * sides**2


@pytest.mark.parametrize("workload", [Resnet50Train, Resnet50Infer])
def test_an_image_that_cannot_be_halved_five_times_is_refused(workload: Any) -> None:
    with pytest.raises(UsageError, match="multiple of 32"):
        workload(image=100)


def test_running_variances_are_positive() -> None:
    arrays = Resnet50Infer(batch=1, image=32).arrays(Draw(Dtype.BFLOAT16))
    variances = [array for name, array in arrays.items() if name.endswith("running_var")]
    assert len(variances) == 53
    assert min(variance.min() for variance in variances) > 0


def test_inference_is_verified_on_one_image() -> None:
    index = sample_index(Resnet50Infer(batch=32))
    assert len(set(index[:, 0])) == 1
    assert len(set(index[:, 1])) > 100


def test_a_logit_does_not_depend_on_the_rest_of_the_batch() -> None:
    workload = Resnet50Infer(batch=2, image=32)
    arrays = workload.arrays(DRAW)
    both = workload.reference(arrays, np.array([[1, 3], [0, 7], [1, 999]]))
    alone = workload.reference(arrays, np.array([[1, 3], [1, 999]]))
    assert both[[0, 2]] == pytest.approx(alone, rel=1e-12)


def test_the_convnets_loss_falls() -> None:
    workload = ConvnetTrain().tiny()
    losses = [loss for loss, _ in workload.reference(workload.arrays(DRAW), steps=3)]
    assert losses == sorted(losses, reverse=True)


LAYERS: dict[str, tuple[Any, Any, list[tuple[int, ...]]]] = {
    # name: (ours, torch's, given torch.nn.functional, and the shapes of the arguments)
    "conv2d": (
        partial(f64.conv2d, stride=2, padding=1),
        lambda f, x, w: f.conv2d(x, w, stride=2, padding=1),
        [(2, 3, 7, 8), (4, 3, 3, 3)],
    ),
    "conv2d 1x1": (
        partial(f64.conv2d, stride=2, padding=0),
        lambda f, x, w: f.conv2d(x, w, stride=2),
        [(2, 3, 6, 6), (4, 3, 1, 1)],
    ),
    "add_bias": (f64.add_bias, lambda f, x, b: x + b[:, None, None], [(2, 3, 4, 4), (3,)]),
    "batch_norm": (
        f64.batch_norm,
        lambda f, x, g, b: f.batch_norm(x, None, None, g, b, training=True),
        [(3, 2, 4, 5), (2,), (2,)],
    ),
    "relu": (f64.relu, lambda f, x: f.relu(x), [(3, 4)]),
    "add": (f64.add, lambda f, a, b: a + b, [(2, 3), (2, 3)]),
    "max_pool 2x2": (
        partial(f64.max_pool, kernel=2, stride=2, padding=0),
        lambda f, x: f.max_pool2d(x, 2),
        [(2, 3, 6, 6)],
    ),
    "max_pool 3x3": (
        partial(f64.max_pool, kernel=3, stride=2, padding=1),
        lambda f, x: f.max_pool2d(x, 3, 2, 1),
        [(2, 3, 8, 6)],
    ),
    "global_average": (f64.global_average, lambda f, x: x.mean((2, 3)), [(2, 3, 4, 5)]),
    "flatten": (f64.flatten, lambda f, x: x.flatten(1), [(2, 3, 4, 5)]),
    "dense": (f64.dense, lambda f, x, w: f.linear(x, w), [(3, 4), (5, 4)]),
    "cross_entropy": (
        partial(f64.cross_entropy, labels=np.array([2, 0, 1])),
        lambda f, x: f.cross_entropy(x, x.new_tensor([2, 0, 1]).long()),
        [(3, 4)],
    ),
}


@pytest.mark.real
@pytest.mark.parametrize("name", LAYERS)
def test_a_float64_layer_and_its_gradients_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs, shapes = LAYERS[name]
    source = np.random.default_rng(1)
    arrays = [source.standard_normal(shape) for shape in shapes]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]

    value, back = ours(*arrays)
    expected = theirs(torch.nn.functional, *tensors)
    upstream = source.standard_normal(np.shape(value))
    expected.backward(torch.tensor(upstream))

    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    for gradient, tensor in zip(back(upstream), tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.real
def test_running_norm_is_torchs_batch_norm_in_inference() -> None:
    torch = pytest.importorskip("torch")
    source = np.random.default_rng(1)
    x, others = source.standard_normal((2, 3, 4, 4)), [source.random(3) + 0.5 for _ in range(4)]
    gamma, beta, mean, variance = (torch.tensor(array) for array in others)
    expected = torch.nn.functional.batch_norm(torch.tensor(x), mean, variance, gamma, beta)
    value, _ = f64.running_norm(x, *others)
    np.testing.assert_allclose(value, expected.numpy(), rtol=1e-9)


@pytest.mark.real
@pytest.mark.parametrize("name", ["convnet", "resnet50"])
def test_the_reference_gradients_are_torchs_in_float64(name: str) -> None:
    torch = pytest.importorskip("torch")
    context = TorchContext("float64")
    workload: Training = ConvnetTrain().tiny() if name == "convnet" else Resnet50Train().tiny()
    arrays = workload.arrays(DRAW)
    if name == "convnet":
        forward, model = convnet_train.float64_forward, convnet_train.torch_model(context, arrays)
    else:
        forward, model = resnet50_models.float64_forward, resnet50_models.torch_model(context, arrays, 64)
    values = {name: array.astype(float) for name, array in weights_of(arrays).items() if is_learnt(name)}

    loss, gradients = float64_gradients(arrays, values, forward)
    expected = torch.nn.functional.cross_entropy(
        model(context.put(arrays["images"])), context.put(arrays["labels"])
    )
    expected.backward()

    assert loss == pytest.approx(expected.item(), rel=1e-9)
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    assert gradients.keys() == theirs.keys()
    smallest = 1e-12 * f64.norm(theirs.values())  # a shift that the next batch norm removes has no gradient
    for key, gradient in gradients.items():
        assert np.linalg.norm(gradient - theirs[key]) <= 1e-9 * np.linalg.norm(theirs[key]) + smallest, key


@pytest.mark.real
@pytest.mark.parametrize(
    "workload", [Resnet50Infer(batch=1), ConvnetTrain(batch=2), Resnet50Train(batch=1, image=64)]
)
def test_torch_counts_the_same_flops(workload: Workload) -> None:
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    program = built("torch", workload, workload.arrays(DRAW))
    with FlopCounterMode(display=False) as counter:
        program.step(*program.inputs)
    assert counter.get_total_flops() == workload.cost(Dtype.FLOAT32).flops


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_trains_the_convnet_as_float64_does(framework: str) -> None:
    workload = ConvnetTrain().tiny()
    arrays = workload.arrays(DRAW)
    program = built(framework, workload, arrays)
    found = trained(program, compiled(framework, program), STEPS)
    expected = workload.reference(arrays, STEPS)
    np.testing.assert_allclose(found, expected, rtol=tolerance(workload, Dtype.FLOAT32))


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_infers_with_resnet50_as_float64_does(framework: str) -> None:
    workload = Resnet50Infer(batch=2, image=32)
    arrays = workload.arrays(DRAW)
    program = built(framework, workload, arrays)
    index = np.argwhere(np.ones(workload.output_shape))
    found = np.asarray(compiled(framework, program)(*program.inputs)).reshape(-1)
    expected = workload.reference(arrays, index)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < tolerance(workload, Dtype.FLOAT32)


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("workload", [ConvnetTrain(batch=1), Resnet50Train(batch=1, image=32)])
def test_every_framework_has_a_momentum_for_every_parameter(framework: str, workload: Training) -> None:
    program = built(framework, workload, workload.arrays(DRAW))
    assert program.momenta is not None
    sizes = [prod(v.shape) for v in program.momenta(*program.state)]
    assert sum(sizes) == PARAMETERS[type(workload)]


@pytest.mark.real
def test_jax_carries_running_statistics_as_torch_does() -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("torch")
    arrays = Resnet50Train(batch=2, image=32).arrays(DRAW)
    model = resnet50_models.torch_model(TorchContext(), arrays, 32)
    model(TorchContext().put(arrays["images"]))

    forward = jax.jit(partial(resnet50_models.jax_forward, training=True))
    _, running = forward(put_jax(JaxContext(), arrays), JaxContext().put(nhwc(arrays["images"])))

    means = {name: mean.numpy() for name, mean in model.named_buffers() if name.endswith("running_mean")}
    assert len(means) == 53
    assert {name for name in running if name.endswith("running_mean")} == means.keys()
    stem = "stem.norm.running_mean"
    assert np.abs(means[stem] - arrays[stem]).max() > 1e-3
    np.testing.assert_allclose(running[stem], means[stem], rtol=1e-4, atol=1e-5)
