"""The training step of a bi-encoder beside that of sentence-transformers, step by step in turns.

    python -m benchmarks.similarity ENCODER PAIRS.parquet --columns premise hypothesis

Both take the same batches of random pairs, multiple negatives ranking, AdamW and clipped gradients. Printed is the
processor time of a step, as the median over all but the first two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import read_columns, read_options, table
from bertkit.data.rows import Split
from bertkit.modeling.attention import speed_paths
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.load import load_tokenizer
from bertkit.recipe import load_recipe
from bertkit.tasks import contrastive
from bertkit.tokens.feature_cache import occurring_tokens_of
from bertkit.tokens.features import Setup

Step = Callable[[np.ndarray[Any, Any]], None]


def make_ours(model: Path, split: Split, stack: ExitStack) -> Step:
    """Build bertkit's step in bf16, on the speed paths that training takes on a CPU."""
    setup = Setup(load_recipe("similarity-pairs", {"model": str(model)}), load_tokenizer(model), ())
    features, collate = contrastive.encode(split.rows, setup), contrastive.collator(setup)
    encoder = contrastive.load_model(model, setup, new_head=True).train()
    dropout = DropoutStream(1)
    tokens = {*occurring_tokens_of(features).tolist(), setup.tokenizer.pad_token_id}
    embeddings = stack.enter_context(speed_paths(encoder, dropout, unpad=True, tokens=tokens, merge=True))
    optimizer = torch.optim.AdamW([one for one in encoder.parameters() if one.requires_grad], lr=2e-5, fused=True)
    if embeddings:
        embeddings.follow(optimizer)
    steps = 0

    def step(rows: np.ndarray[Any, Any]) -> None:
        nonlocal steps
        dropout.move_to(steps)
        steps += 1
        batch = collate([features[row] for row in rows])
        with torch.autocast("cpu", torch.bfloat16):
            loss = encoder(**batch).loss
        finish(loss, encoder, optimizer)

    return step


def make_theirs(model: Path, split: Split, *, bf16: bool) -> Step:
    """Build the step of sentence-transformers, in fp32 or under autocast."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    encoder = SentenceTransformer(str(model), device="cpu").train()
    encoder.max_seq_length = 128
    loss_of = MultipleNegativesRankingLoss(encoder)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-5, fused=True)

    def step(rows: np.ndarray[Any, Any]) -> None:
        columns = [encoder.preprocess([split.rows[row][name] for row in rows]) for name in ("anchor", "positive")]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(columns, torch.zeros(len(rows)))
        finish(loss, encoder, optimizer)

    return step


def finish(loss: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Compute gradients, clip them, and update the weights."""
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    own = {"columns": ["anchor", "positive"], "batch_size": 32, "steps": 12}
    asked = read_options(__doc__, "encoder pairs", **own)
    records = read_columns(Path(asked.pairs), *asked.columns)[:4000]
    names = dict(zip(("anchor", "positive"), asked.columns, strict=True))
    rows = [{name: row[column] for name, column in names.items()} for row in records]
    split, model = Split("train", asked.pairs, rows, list(range(len(rows)))), Path(asked.encoder)
    with ExitStack() as stack:
        steps = {
            "bertkit": make_ours(model, split, stack),
            "sentence-transformers, fp32": make_theirs(model, split, bf16=False),
            "sentence-transformers, bf16": make_theirs(model, split, bf16=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        random = np.random.default_rng(0)
        for _ in range(asked.steps):
            batch = random.choice(len(rows), asked.batch_size, replace=False)
            for name, step in steps.items():
                start = time.process_time()
                step(batch)
                seconds[name].append(time.process_time() - start)
    medians = [(name, 1000 * statistics.median(values[2:])) for name, values in seconds.items()]
    columns = {
        "step": lambda each: each[0],
        "ms of one core": lambda each: f"{each[1]:,.0f}",
        "times bertkit's": lambda each: f"{each[1] / medians[0][1]:.2f}",
    }
    print(table(columns, medians))


if __name__ == "__main__":
    main()
