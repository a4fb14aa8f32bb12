"""A package of each task family says what `predict` says of the run that it was made from, and imports nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.workflows.package.families import FAMILIES, canonical_columns, rows_to_predict, run_package, run_server, same

PRECISE = ["--set", "training.precision=fp32"]
TRAIN = ["--data", "demo", "--limit", 40, "--epochs", 1, "--set", "training.batch_size=8", *PRECISE]
VECTORS = ("similarity", "pairs to find")


def make_package(run, family: str, model: object, *options: object) -> list[dict[str, object]]:
    """Fine-tune a model, and package it as `packages/made`, module ``made``; return rows to predict."""
    recipe, changes = FAMILIES[family]
    sets = [part for change in changes for part in ("--set", change)]
    length = ["--set", "training.max_length=48"]
    ended = run("finetune", recipe, "--model", model, *TRAIN, *length, *sets, "--output", "trained")
    assert ended.code == 0, ended.err
    ended = run("export", "trained", "-o", "exported", *options)
    assert ended.code == 0, ended.err
    ended = run("package", "exported", "-o", "packages", "--name", "made", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["notes"] == []
    return rows_to_predict(recipe, changes, Path("rows.jsonl"))


def refuse_torch_in_a_server(run, rows, expected, tolerance: float) -> None:
    ended = run("package", "exported", "-o", "image", "--name", "made", "--serve")
    assert ended.code == 0, ended.err
    for row, one, other in zip(rows, expected, run_server(Path("image").resolve(), "made", rows), strict=True):
        assert same({name: one[name] for name in one if name not in row or name in other}, other, tolerance), row


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_package_says_what_predict_says(family, run):
    rows = make_package(run, family, "demo")
    recipe = Path("trained/recipe.yaml")
    options = [*canonical_columns(rows), *PRECISE]
    ended = run("predict", recipe, "rows.jsonl", "--model", "trained", *options)
    assert ended.code == 0, ended.err
    packaged = run_package(Path("packages").resolve(), "made", stdin=Path("rows.jsonl").read_bytes())
    assert packaged.returncode == 0, packaged.stderr
    expected, found = ([json.loads(line) for line in text.splitlines()] for text in (ended.out, packaged.stdout))
    assert len(found) == len(rows)
    for one, other in zip(expected, found, strict=True):
        one.pop("id")
        assert same(one, other, 1e-3 if family == "late" else 2e-5), (one, other)
    refuse_torch_in_a_server(run, rows, found, 1e-3 if family == "late" else 2e-5)
    if family in VECTORS:
        from bertkit import Embedder

        texts = [str(row.get("text", row.get("anchor"))) for row in rows]
        vectors = run_package(Path("packages").resolve(), "made", "--embed", "--texts", stdin="\n".join(texts))
        found = np.array([json.loads(line)["vector"] for line in vectors.stdout.splitlines()])
        expected = Embedder("trained", precision="fp32", prompt=None).encode(texts)
        assert np.abs(found - expected).max() < 1e-5
