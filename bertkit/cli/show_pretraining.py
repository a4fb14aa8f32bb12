"""What the pretraining commands print on stdout."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from bertkit.cli.show import duration, number, show_json, show_rows, write

if TYPE_CHECKING:
    from bertkit.workflows.steps.estimate import Estimate
    from bertkit.workflows.steps.publish_pretrained import Pretrained


def show_pretrained(result: Pretrained, *, as_json: bool) -> None:
    """Show what a pretraining run came to, and what to do next."""
    if as_json:
        show_json(dataclasses.asdict(result))
        return
    write(
        f"{result.recipe}: {result.model}, {result.parameters:,} weights, {result.steps:,} steps, "
        f"{result.tokens:,} tokens in {duration(result.seconds)}"
    )
    write(f"  held-out text: {result.corpus['validation']['documents']:,} documents")
    for name, value in result.scores.items():
        beside = f"  by frequency alone {number(result.baseline[name])}" if name in result.baseline else ""
        write(f"  {name:<22} {number(value)}{beside}")
    show_rows("teacher and student", [_model_line(each) for each in result.compared_models])
    for warning in result.warnings:
        write(f"  {warning}")
    write("\nNext:")
    write(f"  open {result.folder}/report.html")
    write(f"  bertkit finetune cola --model {result.folder}")


def _model_line(contestant: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": contestant["role"],
        "weights": f"{contestant['parameters']:,}",
        "MB": f"{contestant['disk_bytes'] / 1e6:,.1f}",
        "ms a block": f"{1000 * contestant['row_seconds']:,.1f}",
        "blocks/s": f"{contestant['rows_per_second']:,.1f}",
    }


def show_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Show what a pretraining run would take."""
    if as_json:
        show_json(dataclasses.asdict(estimate))
        return
    write(f"{estimate.recipe}: {estimate.parameters:,} weights, {estimate.examples:,} blocks of training text")
    show_rows("text", [{"split": name, **facts} for name, facts in estimate.corpus.items()])
    write(f"speed    {estimate.tokens_per_second:,.0f} tokens/s")
    if estimate.peak_share is not None:
        write(f"         {estimate.peak_share:.0%} of this machine's fastest matrix products (head not counted)")
    if estimate.memory_mb is not None:
        write(f"memory   {estimate.memory_mb:,.0f} MB at most")
    if estimate.steps is None:
        write(f"budget   {duration(estimate.seconds)}: {estimate.tokens:,} tokens")
    else:
        write(f"steps    {estimate.steps:,}: {estimate.tokens:,} tokens in {duration(estimate.seconds)}")
    write("Nothing was kept but the prepared text.")
