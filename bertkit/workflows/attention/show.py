"""Show what the heads of an encoder attend to in a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.errors import UsageError
from bertkit.progress import stage
from bertkit.recipe import typed_path
from bertkit.storage import hub
from bertkit.storage.outputs import check_page, claimed

if TYPE_CHECKING:
    import numpy as np

    from bertkit.insight.attention.weights import AttendedText


@dataclass(frozen=True)
class ShownAttention:
    """What is shown of a text."""

    text: AttendedText
    rollout: np.ndarray
    """(layers, tokens, tokens): of each position, the shares of the input tokens up to each layer."""
    entropy: np.ndarray
    """(layers, heads), in nats."""


def show(
    text: str,
    model: str,
    *,
    pair: str | None = None,
    max_tokens: int = 128,
    at: tuple[int, int] = (0, 0),
    output: Path | None = None,
) -> ShownAttention:
    """Compute what the heads of an encoder attend to in a text, or in a pair of texts.

    Args:
        text: what is read.
        model: a run or any other checkpoint.
        pair: a second text.
        max_tokens: a longer input is refused.
        at: layer and head that the page begins with.
        output: a page to write, which opens from disk.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    check_output(output, model, {})
    folder = hub.find_model(model)
    with stage(f"loading {model}"):
        from bertkit.insight.attention.weights import attend, entropies, load_attention_model, roll_out

        loaded = load_attention_model(folder, model)
    attended = attend(loaded, text, pair, max_tokens=max_tokens)
    layers, heads = attended.weights.shape[:2]
    if at[0] >= layers or at[1] >= heads:
        raise UsageError(f"the model has {layers} layers of {heads} heads", "count them from 0")
    shown = ShownAttention(attended, roll_out(attended.weights), entropies(attended.weights))
    if output is not None:
        from bertkit.reports.insight.attention import write_attention

        with claimed(output):
            write_attention(output, attended, shown.rollout, at)
    return shown


def check_output(output: Path | None, model: str, inputs: Mapping[str, Path]) -> None:
    """Check the name of a page, and that nothing that is read would be overwritten.

    Args:
        output: the page; None for none.
        model: whose folder is read.
        inputs: what each file that is read is called, and its path.

    Raises:
        UsageError: the name does not end in ``.html``, or is that of a file that is read.
    """
    if output is None:
        return
    folder = typed_path(model)
    beside = folder.rglob("*") if folder.is_dir() else ()
    check_page(output, chain(inputs.items(), (("a file of the model folder", file) for file in beside)))
