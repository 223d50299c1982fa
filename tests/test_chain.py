"""Chains of layers, and cuts into stages of equal duration."""

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.workloads._layers import Dense, weights_of
from benchbench.workloads.network import Chain, Link, cut_chain
from tests.tiny import EVERY

CHAINS = [name for name, kind in EVERY.items() if issubclass(kind, Chain) and name.endswith("_train")]


def chain_of(name: str) -> Chain:
    network = EVERY[name]()
    assert isinstance(network, Chain)
    return network


def links_that_cost(costs: list[int]) -> list[Link]:
    return [
        Link(layers=(Dense(name=f"dense{at}", inputs=cost, outputs=1),), outputs=1)
        for at, cost in enumerate(costs)
    ]


@given(st.data())
def test_the_cut_minimises_the_longest_stage(data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    stages = data.draw(st.integers(1, len(costs)))
    links = links_that_cost(costs)
    cut = cut_chain(links, stages)
    assert list(chain.from_iterable(cut)) == links
    assert all(cut)
    every = [
        max(sum(costs[start:end]) for start, end in pairwise([0, *ends, len(costs)]))
        for ends in combinations(range(1, len(costs)), stages - 1)
    ]
    assert max(sum(link.flops for link in stage) for stage in cut) == 2 * min(every)


def test_equal_cuts_have_even_stages_before_the_last() -> None:
    assert [len(stage) for stage in cut_chain(links_that_cost([1, 1, 1, 1, 10]), 3)] == [2, 2, 1]


def test_a_stage_of_gpt2_with_the_logits_has_fewer_blocks() -> None:
    assert [len(stage) for stage in cut_chain(chain_of("gpt2_train").links(), 2)] == [9, 5]


@pytest.mark.parametrize("name", CHAINS)
def test_the_links_of_a_network_have_all_its_weights(name: str) -> None:
    network = chain_of(name).tiny()
    weights = [weight for link in network.links() for weight in weights_of(link.layers)]
    assert weights == list(network.weights())
    assert {shared for link in network.links() for shared in link.shares} <= set(weights)
    longer = network.lengthened(4)
    assert len(longer.links()) >= 4


@pytest.mark.real
@pytest.mark.parametrize("name", CHAINS)
def test_links_of_a_torch_module_have_the_stated_output_sizes(name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchbench.workloads._programs.torch_pipeline import torch_links

    network = chain_of(name).tiny()
    with torch.device("meta"):
        model = network.torch().train()
        shape = (network.batch, network.length) if hasattr(network, "length") else None
        x = torch.zeros(shape, dtype=torch.int64) if shape else images(network)
        for link, function in zip(network.links(), torch_links(network, model), strict=True):
            x = function(x)
            assert x.numel() == network.batch * link.outputs


def images(network: Chain) -> object:
    import torch

    from benchbench.model.case import Dtype
    from benchbench.workloads.base import Draw

    (array,) = network.inputs(Draw(Dtype.FLOAT32)).values()
    return torch.zeros(array.shape)
