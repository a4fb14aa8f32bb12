"""CUDA graphs of training steps: the kernels of a step are captured once per shape of a batch, and launched together.

A GPU computes a small step faster than a program launches its kernels one by one; a graph is launched by one call. It
reads and writes the same memory each time, so batches are copied into its inputs, and gradients are where they were
when it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bertkit.errors import RecipeError
from bertkit.hardware.process import is_memory_error

Tensors = dict[str, torch.Tensor]

_WARM_UP = 2  # passes before one is captured, in which libraries choose kernels and take memory of their own


@dataclass(frozen=True)
class _Captured:
    inputs: dict[str, torch.Tensor]
    graph: Any
    output: torch.Tensor


class StepGraphs:
    """Runs the forward and backward pass of batches by graphs, which add to gradients as the passes do.

    Args:
        weights: all of the model.
        compute: runs both passes of a batch on the GPU, and returns what it tells of them. It may not wait for the GPU.
        without_trace: opens what leaves nothing of the passes before the captured one.
    """

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        compute: Callable[[Tensors], torch.Tensor],
        without_trace: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.weights, self.compute, self.without_trace = list(weights), compute, without_trace
        self.gradients: dict[nn.Parameter, torch.Tensor] = {}
        self.captured: dict[tuple[object, ...], _Captured] = {}
        self.pool: Any = None

    def run(self, batch: Tensors, device: torch.device) -> torch.Tensor:
        """Run a batch, captured first where none of its shape was, and return what `compute` returned of it.

        Raises:
            RecipeError: the passes cannot be captured.
        """
        shape = tuple((name, values.shape, values.dtype) for name, values in sorted(batch.items()))
        if shape not in self.captured:
            self.captured[shape] = self._capture(batch, device)
        captured = self.captured[shape]
        for name, values in batch.items():
            captured.inputs[name].copy_(values, non_blocking=True)
        dropped = [weights for weights in self.gradients if weights.grad is None]
        if dropped:  # after an optimizer step
            torch._foreach_zero_([self.gradients[weights] for weights in dropped])
            self._hand_out(self.gradients)
        captured.graph.replay()
        return captured.output.clone()  # the next graph may use its memory

    def _capture(self, batch: Tensors, device: torch.device) -> _Captured:
        inputs = {name: values.to(device, copy=True) for name, values in batch.items()}
        # those of micro-batches before this one, which its capture leaves as they are
        before = {weights: weights.grad for weights in self.weights}
        with self.without_trace():
            self._hand_out(dict.fromkeys(self.weights))
            warm_up(lambda: self.compute(inputs), device)
            # weights that a loss does not reach have no gradient, and no optimizer changes them
            for weights in self.weights:
                if weights.grad is not None and weights not in self.gradients:
                    self.gradients[weights] = torch.zeros_like(weights.grad)
            self._hand_out(dict.fromkeys(self.weights) | self.gradients)
            try:
                graph, output = capture(lambda: self.compute(inputs), self.pool, device)
            except RuntimeError as error:
                if is_memory_error(error):
                    raise
                reason = str(error).strip().splitlines()[0]
                what = f"training.cuda_graphs: the steps of this training cannot be captured: {reason}"
                raise RecipeError(what, "leave it out") from error
        self.pool = self.pool or graph.pool()
        self._hand_out(before)
        return _Captured(inputs, graph, output)

    def _hand_out(self, gradients: Mapping[nn.Parameter, torch.Tensor | None]) -> None:
        for weights, gradient in gradients.items():
            weights.grad = gradient


def warm_up(compute: Callable[[], object], device: torch.device) -> None:
    """Run something as often as it takes until it can be captured, beside the stream of the program."""
    streams = torch.get_device_module(device)
    aside = streams.Stream()
    aside.wait_stream(streams.current_stream())
    with streams.stream(aside):
        for _ in range(_WARM_UP):
            compute()
    streams.current_stream().wait_stream(aside)


def capture(compute: Callable[[], torch.Tensor], pool: Any, device: torch.device) -> tuple[Any, torch.Tensor]:
    """Capture what a GPU is given, which computes nothing yet; return the graph and the tensor that it will write.

    Args:
        compute: gives it.
        pool: memory of earlier graphs, which this one may use too; None for memory of its own.
        device: the GPU.
    """
    graphs = torch.get_device_module(device)
    graph = graphs.CUDAGraph()
    # other threads of this program pin memory meanwhile
    with graphs.graph(graph, pool=pool, capture_error_mode="thread_local"):
        output = compute()
    return graph, output
