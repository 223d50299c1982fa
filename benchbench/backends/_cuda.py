"""CUDA as torch has it: a step captured in a graph and replayed, and events that time blocks of steps."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchbench.backends.base import HostTimer
from benchbench.model.measurement import Batch


class Replay:
    """A step captured in a CUDA graph at its second call; the first, on a side stream, allocates.

    Inputs stand where they were captured and the output is overwritten by each call, as CUDA graphs do. A
    training step's losses are the eager ones: the first call is the first step.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._graph: Any = None
        self._output: Any = None
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        """Run one step."""
        self._calls += 1
        if self._calls == 1:
            return self._aside(arguments)
        if self._graph is None:
            self._capture(arguments)
        self._graph.replay()
        return self._output

    def _aside(self, arguments: tuple[Any, ...]) -> Any:
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            output = self._step(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        return output

    def _capture(self, arguments: tuple[Any, ...]) -> None:
        import torch

        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = self._step(*arguments)


class EventTimer(HostTimer):
    """Pairs of CUDA events, recorded around blocks that are queued together and synchronised once."""

    name = "cuda_event"
    batch_s = 0.05  # deep enough a queue to keep the device busy between blocks

    def __init__(
        self,
        wait: Callable[[Any], None],
        *,
        before: Callable[[], Any] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`before` is queued ahead of each block, outside its events."""
        super().__init__(wait, before=before, clock=clock)
        self.batches: list[Batch] = []

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Device seconds of each block; what the host took is added to `batches`."""
        import torch

        ahead, *marks = (torch.cuda.Event(enable_timing=True) for _ in range(2 * count + 1))
        pairs = list(zip(marks[::2], marks[1::2], strict=True))
        start = self.now()
        ahead.record()
        self._queue(step, iterations, *pairs[0])
        enqueued = self.now()
        for begin, end in pairs[1:]:
            self._queue(step, iterations, begin, end)
        self._wait(None)
        done = self.now()
        self.batches.append(
            Batch(
                blocks=count,
                enqueue_s=enqueued - start,
                device_s=ahead.elapsed_time(pairs[0][1]) / 1e3,
                host_s=done - start,
            )
        )
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]

    def _queue(self, step: Callable[[], Any], iterations: int, begin: Any, end: Any) -> None:
        if self._before:
            self._before()
        begin.record()
        for _ in range(iterations):
            step()
        end.record()
