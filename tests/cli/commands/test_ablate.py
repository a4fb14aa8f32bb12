"""`bertkit ablate`: how tasks are named, and what is printed."""

from __future__ import annotations

import pytest

from bertkit.cli.commands.ablate import parse_finetuning, print_ablation, print_ablation_plan
from bertkit.errors import RecipeError, UsageError
from bertkit.metrics.paired import Difference
from bertkit.workflows.pretrain_plan import PretrainEstimate


def task_of(seeds, p_holm=None):
    found = Difference(0.8, 0.7, -0.1, (-0.2, -0.01), 0.03, "mixed", p_holm=p_holm)
    scores = [
        {"variant": "mlm", "mean": 0.8, "seed_scores": [0.8] * seeds, "difference": None, "failures": {}},
        {"variant": "clm", "mean": 0.7, "seed_scores": [0.7] * seeds, "difference": found, "failures": {}},
    ]
    facts = {"recipe": "pos", "split": "validation", "rows": 40, "metric": "accuracy"}
    return {**facts, "scores": scores, "notes": ["a note."], "baseline": None}


def summary_of(**changes):
    variants = [
        {"name": name, "settings": {"objective": name}, "scores": {"perplexity": value}, "parameters": 1000}
        | {"steps": 5 if value else 0, "tokens": 640, "seconds": 3.0, "failure": "" if value else "the loss is nan"}
        for name, value in (("mlm", 12.0), ("clm", 20.0), ("nsp", None))
    ]
    facts = {"recipe": "mlm", "folder": "runs/x y", "space": {"objective": "mlm,clm,nsp"}, "seeds": [1, 2]}
    return {**facts, "variants": variants, "tasks": [task_of(2, 0.06)], **changes}


def test_a_task_is_a_recipe_and_its_settings():
    assert parse_finetuning("pos") == ("pos", {})
    assert parse_finetuning("'my pos.yaml' data.limit=5 'labels=[a, b]'") == (
        "my pos.yaml",
        {"data.limit": 5, "labels": ["a", "b"]},
    )
    for text in ("", "data.limit=5", "pos 'a"):
        with pytest.raises(UsageError, match="names no recipe"):
            parse_finetuning(text)
    with pytest.raises(RecipeError, match="--set limit is not key=value"):
        parse_finetuning("pos limit")


def test_encoders_scores_and_failures_are_printed(capsys):
    print_ablation(summary_of())
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "mlm: 3 encoders, by objective"
    assert lines[2].split() == ["encoder", "parameters", "steps", "tokens", "perplexity", "time"]
    assert lines[4].split()[:5] == ["clm", "1,000", "5", "640", "20.0000"]
    assert lines[5:7] == ["failed: nsp. the loss is nan", "pos, validation: 40 rows, 2 seeds"]
    assert lines[7] == "accuracy, and its difference from mlm"
    assert lines[8].split() == ["encoder", "mean", "sd", "difference", "95%", "CI", "p", "p", "(Holm)"]
    assert lines[10].split()[:4] == ["clm", "0.7000", "0.0000", "-0.1000"]
    assert lines[-1] == "open 'runs/x y/pos.html'"


def test_columns_that_nothing_fills_are_left_out(capsys):
    print_ablation(summary_of(tasks=[task_of(1)]))
    lines = capsys.readouterr().out.splitlines()
    assert "    encoder    mean  difference              95% CI      p" in lines


def test_a_plan_has_the_time_of_each_pretraining(capsys):
    own = PretrainEstimate("mlm", 1000, 10, 5, 640, 90.0, 100.0, None, None, {}, "x", 10**6)
    rows = {"pos": {"train": 40, "validation": 20}}
    print_ablation_plan({"folder": "runs/a", "variants": {"mlm": own, "clm": own}, "rows": rows, "finetunings": 4})
    out = capsys.readouterr().out
    assert "1 min 30 s" in out and "pos: train 40, validation 20" in out
    assert "2 pretrainings, 4 fine-tunings in runs/a" in out
