"""How images lie in memory: channels first or last, as the session says, and what that is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchbench.workloads.base import DeviceContext

NAMES = {4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}  # by the number of axes: of images, of videos


def images_layout(context: DeviceContext, axes: int = 4) -> str:
    """`NHWC` where channels are last; "" where there are no images (`axes` is 0)."""
    return NAMES[axes][context.channels_last] if axes else ""


def torch_layout(context: DeviceContext, axes: int = 4) -> Any:
    """torch's memory format of the same."""
    import torch

    if not context.channels_last:
        return torch.contiguous_format
    return {4: torch.channels_last, 5: torch.channels_last_3d}[axes]
