"""Networks that are chains of convolutions, max-pools and dense layers, with ReLUs between them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv, Dense, MaxPool
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.network import Chain, Link

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw


class PlainCnn(Chain):
    """Base of such networks. A subclass defines its layers; the first dense one takes the flattened image."""

    relu_in_place: ClassVar[bool] = True  # in torch, as torchvision's VGG

    def layers(self) -> Sequence[Conv | MaxPool | Dense]:
        """Layers in the order of application: a convolution first, a dense layer last."""
        raise NotImplementedError

    def links(self) -> list[Link]:
        """Links: a convolution with its ReLU and max-pool, or a dense layer with its ReLU."""
        links: list[Link] = []
        for layer in self.layers():
            if isinstance(layer, MaxPool):
                conv = links[-1].layers[0]
                assert isinstance(conv, Conv)
                pooled = conv.outputs * prod(size // layer.window for size in conv.output_sizes)
                links[-1] = Link(layers=(conv, layer), outputs=pooled)
            else:
                outputs = layer.pixels()[1] if isinstance(layer, Conv) else layer.outputs
                links.append(Link(layers=(layer,), outputs=outputs))
        return links

    @property
    def output_shape(self) -> tuple[int, int]:
        last = self.layers()[-1]
        assert isinstance(last, Dense)
        return self.batch, last.outputs

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Images with the channels and the size of the first convolution."""
        first = self.layers()[0]
        assert isinstance(first, Conv)
        return {"images": draw.normal("images", self.batch, first.inputs, *first.sizes)}

    def torch(self) -> Any:
        from torch import nn

        modules: OrderedDict[str, Any] = OrderedDict()
        for at, layer in enumerate(self.layers()):
            if isinstance(layer, MaxPool):
                modules[f"pool{at}"] = nn.MaxPool2d(layer.window)
                continue
            if isinstance(layer, Dense) and layer.image:
                modules["flatten"] = nn.Flatten()
            modules[layer.name] = torch_layers.module_of(layer)
            modules[f"relu{at}"] = nn.ReLU(inplace=self.relu_in_place)
        modules.popitem()  # no ReLU after the logits
        return nn.Sequential(modules)

    def apply(self, nn: FunctionalForward, images: Any) -> Any:
        x, layers = images, self.layers()
        for layer in layers:
            if isinstance(layer, MaxPool):
                x = nn.max_pool(x, layer.window)
                continue
            if isinstance(layer, Conv):
                x = nn.conv(x, layer)
            else:
                x = nn.reshape(x, (x.shape[0], -1)) if layer.image else x
                x = nn.dense(x, layer.name)
            x = x if layer is layers[-1] else nn.relu(x)
        return x
