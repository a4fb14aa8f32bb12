"""CUDA graphs of training steps: the kernels of a step are captured once per batch shape, and launched together.

A GPU computes a small step faster than a program launches its kernels one by one. A graph is launched by one call, but
it always reads and writes the same memory. So each batch is copied into the graph's inputs, and gradients stay in the
tensors that they were in when the graph was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import RecipeError
from bertkit.hardware.process import is_memory_error

Tensors = dict[str, Tensor]

_WARM_UP = 2  # passes before a capture, in which libraries choose kernels and allocate their memory


@dataclass(frozen=True)
class _CapturedStep:
    inputs: Tensors
    graph: Any
    output: Tensor


class StepGraphs:
    """Captured forward and backward passes of batches; a replay adds to the gradients like the original passes.

    Args:
        weights: All weights of the model.
        compute: Function that runs both passes of a batch on the GPU and returns a tensor, without waiting for the GPU.
        preserve_state: Context manager that undoes all effects of the passes inside it, such as drawn random numbers.
    """

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        compute: Callable[[Tensors], Tensor],
        preserve_state: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.weights, self.compute, self.preserve_state = list(weights), compute, preserve_state
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.captured_steps: dict[tuple[object, ...], _CapturedStep] = {}
        self.pool: Any = None

    def run(self, batch: Tensors, device: torch.device) -> Tensor:
        """Run a batch and return the result of `compute`; the first batch of a shape is captured first.

        Raises:
            RecipeError: If the passes cannot be captured.
        """
        shape = tuple((name, values.shape, values.dtype) for name, values in sorted(batch.items()))
        if shape not in self.captured_steps:
            self.captured_steps[shape] = self._capture(batch, device)
        step = self.captured_steps[shape]
        for name, values in batch.items():
            step.inputs[name].copy_(values, non_blocking=True)
        # The graph adds to the tensors of its capture, so restore gradients that an optimizer step has dropped.
        dropped_weights = [weights for weights in self.gradients if weights.grad is None]
        if dropped_weights:
            torch._foreach_zero_([self.gradients[weights] for weights in dropped_weights])
            _set_gradients(self.gradients)
        step.graph.replay()
        return step.output.clone()  # the next graph can overwrite its memory

    def _capture(self, batch: Tensors, device: torch.device) -> _CapturedStep:
        inputs = {name: values.to(device, copy=True) for name, values in batch.items()}
        # The capture must not change gradients of earlier micro-batches.
        earlier_gradients = {weights: weights.grad for weights in self.weights}
        with self.preserve_state():
            # 1. Warm up in a separate stream, as torch requires before a capture.
            _set_gradients(dict.fromkeys(self.weights))
            warm_up(lambda: self.compute(inputs), device)

            # 2. Allocate the gradients that graphs add to. Weights that do not affect the loss get no gradient, so that
            # no optimizer changes them.
            for weights in self.weights:
                if weights.grad is not None and weights not in self.gradients:
                    self.gradients[weights] = torch.zeros_like(weights.grad)
            _set_gradients(dict.fromkeys(self.weights) | self.gradients)

            # 3. Capture the passes.
            try:
                graph, output = capture(lambda: self.compute(inputs), self.pool, device)
            except RuntimeError as error:
                if is_memory_error(error):
                    raise
                reason = str(error).strip().splitlines()[0]
                message = f"training.cuda_graphs: the steps of this training cannot be captured: {reason}"
                raise RecipeError(message, "leave it out") from error
        self.pool = self.pool or graph.pool()
        _set_gradients(earlier_gradients)
        return _CapturedStep(inputs, graph, output)


def _set_gradients(gradients: Mapping[nn.Parameter, Tensor | None]) -> None:
    for weights, gradient in gradients.items():
        weights.grad = gradient


def warm_up(compute: Callable[[], object], device: torch.device) -> None:
    """Run a function a few times in a separate stream, which is required before a capture."""
    streams = torch.get_device_module(device)
    stream = streams.Stream()
    stream.wait_stream(streams.current_stream())
    with streams.stream(stream):
        for _ in range(_WARM_UP):
            compute()
    streams.current_stream().wait_stream(stream)


def capture(compute: Callable[[], Tensor], pool: Any, device: torch.device) -> tuple[Any, Tensor]:
    """Capture the kernels that a function launches, without running them.

    Args:
        compute: Function that launches the kernels.
        pool: Memory pool of earlier graphs to share, or None for new memory.
        device: The GPU.

    Returns:
        The graph, and the tensor that a replay writes.
    """
    graphs = torch.get_device_module(device)
    graph = graphs.CUDAGraph()
    # Capture only this thread, because other threads pin memory at the same time.
    with graphs.graph(graph, pool=pool, capture_error_mode="thread_local"):
        output = compute()
    return graph, output
