"""Vision networks: published sizes and work, and the training of DCGAN."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.verify import LAMBDA, tolerance
from benchbench.workloads._programs.numpy import gradients_of, training
from benchbench.workloads.base import Draw
from benchbench.workloads.networks.plain_cnns import MnistCnnInfer, Vgg16Infer
from benchbench.workloads.networks.residual_networks import R3d18Infer
from benchbench.workloads.networks.vision import DcganTrain, SsdHeadInfer, SsdHeadTrain
from tests.test_networks import DRAW, FRAMEWORKS, Trained


def test_flops_of_an_image_match_the_published_ones() -> None:
    assert Vgg16Infer(batch=1).cost(Dtype.FLOAT32).flops == 30_940_528_640  # torchvision
    shapes = [conv.output_sizes for conv in MnistCnnInfer().layers() if hasattr(conv, "output_sizes")]
    assert shapes == [(26, 26), (11, 11), (3, 3)]


def test_flops_of_a_clip_match_the_published_ones() -> None:
    flops = R3d18Infer(batch=1).cost(Dtype.FLOAT32).flops
    assert round(flops / 2e9, 1) == 40.7  # torchvision documents 40.70 GFLOPs, counting a multiply-add as one


def test_a_detector_has_the_published_boxes() -> None:
    assert SsdHeadInfer().sides() == [38, 19, 10, 5, 3, 1]
    assert SsdHeadInfer().output_shape == (32, 8732, 25)


def test_boxes_of_every_map_are_verified() -> None:
    work = SsdHeadInfer()
    boxes = verify.sample_indices(work)["output"][:, 1]
    counts = np.histogram(boxes, np.cumsum([0, *work.boxes()]))[0]
    assert counts.sum() == verify.SAMPLES
    assert counts.min() > verify.SAMPLES / 12


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
