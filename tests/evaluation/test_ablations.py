"""What an ablation comes to: names of variants, and what is known of each."""

from __future__ import annotations

import pytest

from bertkit.evaluation.ablations import describe_variant, find_unlearned, name_variants


def test_variants_are_named_by_their_values_and_no_two_alike():
    points = [{"objective": name, "options.mask_rate": rate} for name in ("mlm", "nsp") for rate in (0.15, 0.5)]
    assert list(name_variants(points)) == [
        f"{name}-mask_rate={rate}" for name in ("mlm", "nsp") for rate in (0.15, 0.5)
    ]
    assert list(name_variants([{"tokenizer": "a/tok"}, {"tokenizer": "b/tok"}])) == ["tok-1", "tok-2"]
    assert list(name_variants([{"options.last_mask_rate": None}, {"options.last_mask_rate": 0.1}])) == [
        "last_mask_rate=null",
        "last_mask_rate=0.1",
    ]
    assert list(name_variants([{"data.column": ".."}, {"data.column": "a b?"}])) == ["..-1", "a_b_"]


def test_only_a_finished_pretraining_has_facts():
    facts = {"scores": {"loss": 2.0}, "parameters": 10, "steps": 5, "tokens": 100, "seconds": 1.5}
    record = {"status": "finished", "result": {**facts, "recipe": "mlm"}}
    found = describe_variant("mlm", {"objective": "mlm"}, record)
    assert (found.scores, found.parameters, found.steps, found.tokens, found.seconds) == tuple(facts.values())
    assert describe_variant("mlm", {}, {"status": "running"}, ValueError("why")).failure == "why"
    assert describe_variant("mlm", {}, None).steps == 0


@pytest.mark.parametrize(
    ("metric", "means", "is_unlearned"),
    [
        ("accuracy", [0.4, 0.5], True),
        ("accuracy", [0.4, 0.6], False),
        ("mean_absolute_error", [0.5, 0.7], True),
        ("mean_absolute_error", [0.4, 0.7], False),
    ],
)
def test_scores_that_beat_no_baseline_are_said_to_be_unlearned(metric, means, is_unlearned):
    notes = find_unlearned("cola", means, {"nothing": {metric: 0.5}, "words": {metric: 0.5}}, metric)
    assert len(notes) == is_unlearned
    assert all("No encoder has learned cola" in note and "'cola training.epochs=10'" in note for note in notes)
