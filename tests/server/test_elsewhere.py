"""How other servers serve a run."""

from __future__ import annotations

import json
import shutil

import pytest

from bertkit.errors import UsageError
from bertkit.modeling.sentence.modules import SentenceModules
from bertkit.modeling.sentence.writing import write_modules
from bertkit.server.elsewhere import TEI, VLLM, hand_over


def test_a_classifier_goes_to_both_without_its_decisions(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    recipe = (run / "recipe.yaml").read_text()
    (run / "run.json").unlink()
    (run / "recipe.yaml").write_text(
        f"{recipe}options: {{temperature: 1.5, abstain_below: 0.9}}\n" if "options:" not in recipe else recipe
    )
    (vllm,), (tei,) = hand_over([str(run)], VLLM), hand_over([str(run)], TEI)
    assert vllm.command == f"vllm serve {run} --runner pooling --served-model-name run"
    assert tei.command.endswith("--model-id /run --auto-truncate")
    assert f"-v {run}:/run:ro" in tei.command
    assert vllm.addresses == "POST /classify"
    assert "temperature 1.5, abstain_below 0.9" in vllm.left_out[0]


def test_an_encoder_keeps_its_pooling_and_may_lose_its_prompts(sentence_folder):
    (vllm,) = hand_over([str(sentence_folder)], VLLM)
    assert (vllm.head, vllm.left_out) == ("vectors", ["prompts (query): add them to the texts yourself"])


def test_tei_is_told_the_pooling_and_the_prompt_that_it_does_not_read(sentence_folder, tmp_path):
    (tei,) = hand_over([str(sentence_folder)], TEI)
    assert tei.command.endswith("--auto-truncate --pooling mean")
    modules = SentenceModules(pooling=("cls",), prompts={"query": "q "}, default_prompt="query", dimension=8)
    folder = shutil.copytree(sentence_folder, tmp_path / "cls")
    write_modules(folder, modules, width=32)
    (tei,) = hand_over([str(folder)], TEI)
    assert tei.command.endswith("--pooling cls --default-prompt-name query")
    assert tei.left_out[1] == "truncate_dim 8: ask for it by dimensions"
    write_modules(folder, SentenceModules(pooling=("lasttoken",)), width=32)
    with pytest.raises(UsageError, match="text-embeddings-inference does not pool by lasttoken"):
        hand_over([str(folder)], TEI)  # it does so for decoders alone
    assert hand_over([str(folder)], VLLM)
    write_modules(folder, SentenceModules(pooling=("max",)), width=32)
    with pytest.raises(UsageError, match="vLLM does not pool by max"):
        hand_over([str(folder)], VLLM)


def test_tei_takes_the_softmax_of_several_labels_and_how_not_is_said(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "run.json").unlink()
    with (run / "recipe.yaml").open("a") as recipe:
        recipe.write("options: {multi_label: true}\n")
    (tei,), (vllm,) = hand_over([str(run)], TEI), hand_over([str(run)], VLLM)
    assert "raw_scores: true, and take 1 / (1 + exp(-score)) of each" in " ".join(tei.left_out)
    assert "several labels" not in " ".join(vllm.left_out)


def test_a_head_that_a_server_does_not_know_is_refused(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "run.json").unlink()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "architectures": ["BertForQuestionAnswering"]}))
    with pytest.raises(UsageError, match="does not serve"):
        hand_over([str(run)], VLLM)
