"""A real GPU in the place of the pretended one: see tests/test_pretend.py."""

from __future__ import annotations

import warnings

import pretend
import torch


def turn_on() -> None:
    """Note in this process, from now on, what the program waits for."""
    torch.cuda.set_sync_debug_mode("warn")
    warnings.simplefilter("always")
    show = warnings.showwarning

    def note(message, *arguments, **keywords) -> None:
        if "synchronizing CUDA operation" in str(message):
            pretend.note("wait")
        else:
            show(message, *arguments, **keywords)

    warnings.showwarning = note
