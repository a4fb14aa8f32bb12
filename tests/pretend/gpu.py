"""A real GPU in the place of the pretended one: see tests/test_pretend.py."""

from __future__ import annotations

import warnings

import pretend
import torch


def turn_on() -> None:
    """Note in this process, from now on, what the program waits for, and multiply in fp32."""
    torch.set_float32_matmul_precision = lambda precision: None  # TF32 would round more than tests allow for
    torch.cuda.set_sync_debug_mode("warn")
    warnings.simplefilter("always")
    show = warnings.showwarning

    def note(message, *arguments, **keywords) -> None:
        if "synchronizing CUDA operation" in str(message):
            pretend.note("wait")
        else:
            show(message, *arguments, **keywords)

    warnings.showwarning = note
