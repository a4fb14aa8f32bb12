"""What a finished pretraining leaves: a plain checkpoint, ready to fine-tune."""

from __future__ import annotations

from tests.workflows.test_pretrain import arguments


def test_the_result_is_a_checkpoint_to_finetune(run, toy_data):
    assert run(*arguments(steps=4)).code == 0
    ended = run("finetune", "classify", "--model", "run", "--data", toy_data, "--epochs", 1, "--output", "tuned")
    assert ended.code == 0, ended.err
