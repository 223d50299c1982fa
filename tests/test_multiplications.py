"""The fewest multiplications of convolutions and networks follow from their sizes and layers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.workloads._conv_layers import Conv, ConvTranspose, saved_by_algorithms, saved_in
from benchbench.workloads._layers import Dense
from benchbench.workloads.networks.bert_base import BertBaseTrain
from benchbench.workloads.networks.dcgan import DcganTrain
from benchbench.workloads.networks.resnet50 import Resnet50Infer, Resnet50Train
from benchbench.workloads.operations.convolution import (
    Conv2d,
    Conv2dBackward,
    Conv3d,
    ConvTranspose2d,
    DepthwiseConv2d,
)


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (4, 5), (1, 7)])
def test_one_dimensional_filters_need_one_multiplication_per_input(m: int, r: int) -> None:
    assert saved_by_algorithms([(m + r - 1, r, 1, 0)]) == pytest.approx(m * r / (m + r - 1))
    assert saved_by_algorithms([(m + r - 1, r, 1, 0)] * 2) == pytest.approx((m * r / (m + r - 1)) ** 2)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))
def test_no_bilinear_algorithm_needs_fewer_products(size: int, kernel: int, stride: int, edge: int) -> None:
    """The rank of a matrix made of the tensor of products is a lower bound of the rank of the tensor."""
    if size + 2 * edge < kernel:
        return
    outputs = (size + 2 * edge - kernel) // stride + 1
    tensor = np.zeros((outputs, size, kernel))
    for at in range(outputs):
        for tap in range(kernel):
            if 0 <= (place := at * stride + tap - edge) < size:
                tensor[at, place, tap] = 1
    ranks = [np.linalg.matrix_rank(np.moveaxis(tensor, axis, 0).reshape(n, -1)) for axis, n in
             ((0, outputs), (1, size))]  # fmt: skip
    fewest = max(1, *ranks)
    assert saved_by_algorithms([(size, kernel, stride, edge)]) == pytest.approx(outputs * kernel / fewest)


def test_the_savings_of_convolutions_follow_from_their_sizes() -> None:
    assert Conv2d().multiplications_saved == Conv2dBackward().multiplications_saved == 9
    assert Conv3d().multiplications_saved == 27
    assert DepthwiseConv2d().multiplications_saved == 9
    assert Conv2d(kernel=1, padding=0, stride=2).multiplications_saved == 1
    assert ConvTranspose2d().multiplications_saved == 4
    speech = Conv2d(height=161, width=700, channels=1, kernel_h=5, kernel_w=20, padding=0, stride=2)
    assert speech.multiplications_saved == pytest.approx((79 * 5 / 161) * (341 * 20 / 700), rel=0.01)


def test_the_savings_of_a_network_combine_those_of_its_layers() -> None:
    conv = Conv(name="conv", inputs=3, outputs=4, kernel=3, size=8)
    up = ConvTranspose(name="up", inputs=3, outputs=4, kernel=4, stride=2, edge=1, size=8)
    dense = Dense(name="dense", inputs=5, outputs=6)
    assert (conv.saved, up.saved) == (9, 4)
    fewest = 2 * conv.flops(1) / 9 + up.flops(1) / 4 + dense.flops(1)
    multiplications = 2 * conv.flops(1) + up.flops(1) + dense.flops(1)
    assert saved_in([(2, conv), (1, up), (1, dense)]) == pytest.approx(multiplications / fewest)
    assert saved_in([]) == 1


def test_the_savings_of_networks_follow_from_their_layers() -> None:
    assert BertBaseTrain().multiplications_saved == 1
    assert 1.5 < Resnet50Infer().multiplications_saved < 2.5  # half of its products belong to 1 × 1 filters
    assert Resnet50Train().multiplications_saved == pytest.approx(
        Resnet50Infer().multiplications_saved, rel=0.05
    )
    assert DcganTrain().multiplications_saved == pytest.approx(4, rel=0.2)
