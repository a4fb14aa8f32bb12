"""What `bertkit prune` prints."""

from __future__ import annotations

from types import SimpleNamespace

from bertkit.cli.commands.prune import _next_steps, print_pruned
from bertkit.compression.pruned_folder import ModelFigures
from bertkit.metrics.paired import Difference
from bertkit.workflows.prune import PruneResult

SIDES = (ModelFigures(2000, 8_000_000), ModelFigures(1000, 4_000_000))


def test_a_plain_checkpoint_has_sizes_only(capsys):
    print_pruned(PruneResult("model", "small", *SIDES, layers=[0, 2], heads=None, intermediate=None, vocabulary=None))
    text = capsys.readouterr().out
    assert text.startswith("small: pruned from model\n  layers: 0, 2\n  size and speed on this machine\n")
    assert "after        1,000  4.0\n" in text and "ms/row" not in text
    assert text.endswith("\nNext:\n  bertkit finetune RECIPE --model small\n")


def test_a_model_of_vectors_is_not_to_be_a_student(tmp_path):
    assert len(_next_steps(SimpleNamespace(folder=str(tmp_path), model="big", recipe="similarity"))) == 2
    (tmp_path / "modules.json").write_text("[]")
    (command,) = _next_steps(SimpleNamespace(folder=str(tmp_path), model="big", recipe="similarity"))
    assert command.startswith("bertkit finetune")


def test_a_run_has_speed_scores_and_the_paired_difference(capsys):
    sides = [
        ModelFigures(one.parameters, one.disk_bytes, 0.004, 250.0, {"accuracy": score}, {"accuracy": (0.7, 0.9)}, 0.08)
        for one, score in zip(SIDES, (0.85, 0.8), strict=True)
    ]
    difference = Difference(0.85, 0.8, -0.05, (-0.09, -0.01), 0.012, "permutation")
    pruned = PruneResult(
        "runs/x",
        "small",
        *sides,
        layers=None,
        heads=2,
        intermediate=768,
        vocabulary=7000,
        texts=3872,
        measured_rows=512,
        recipe="sst2",
        split="validation",
        rows=872,
        changed_rows=3,
        best_metric="accuracy",
        differences={"accuracy": difference},
    )
    print_pruned(pruned)
    text = capsys.readouterr().out
    assert "  feed-forward neurons per layer: 768 (selected on 512 rows)\n" in text
    assert "  tokens: 7,000 (3,872 texts are split as before)\n" in text and "4.00     250      8%\n" in text
    assert "  after - before: -0.0500 (-0.0900 to -0.0100), permutation p 0.012\n" in text
    assert "  3 rows of validation are tokenized differently than before\n" in text
    assert "--teacher runs/x --model small --output small-distilled\n" in text
