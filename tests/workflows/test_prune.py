"""Pruned models: plain checkpoints that every command takes, and what cannot be pruned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertkit.recipe import load_recipe
from tests.conftest import LEARN, distill, write_jsonl
from tests.kills import HEAVY

pytestmark = pytest.mark.usefixtures("timed_once")


def scores_of(ended):
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["results"][0]["scores"]


def test_a_run_becomes_a_smaller_run_that_transformers_loads(run, trained, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ended = run("prune", trained, "-o", "small", "--layers", 1, "--intermediate", 16, "--vocabulary", "rows", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    model, report = AutoModelForSequenceClassification.from_pretrained("small", output_loading_info=True)
    assert not any(report.values())
    config, tokenizer = model.config, AutoTokenizer.from_pretrained("small")
    assert (config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (1, 16, found["vocabulary"])
    assert len(tokenizer) == found["vocabulary"] < len(AutoTokenizer.from_pretrained(trained))
    assert found["after"]["parameters"] == sum(one.numel() for one in model.parameters())
    assert found["texts"] == 460 and found["changed_rows"] == 0 and found["measured_rows"] == 400
    assert scores_of(run("eval", "small/recipe.yaml", "--model", "small", "--json")) == found["after"]["scores"]
    text = "the film was superb"
    predicted = run("predict", "small/recipe.yaml", "--model", "small", "--text", text)
    logits = model(**tokenizer(text, return_tensors="pt")).logits
    probabilities = json.loads(predicted.out)["probabilities"]
    assert torch.allclose(
        logits.softmax(-1)[0], torch.tensor([probabilities[name] for name in ("bad", "good")]), atol=1e-4
    )
    assert run("rerun", "small").last.startswith("error: a pruned model is made from a run without training")
    assert run("prune", trained, "-o", "small", "--layers", 1).last.startswith(
        "error: the folder exists already, and bertkit does not replace it"
    )
    assert not list(Path().glob(".small*"))
    assert run("prune", trained, "-o", "few", "--layers", 1, "--limit", 20).code == 0
    assert load_recipe("few/recipe.yaml").data.limit is None


@pytest.mark.slow
def test_only_the_vocabulary_is_trimmed_and_every_prediction_stays(run, trained):
    ended = run("prune", trained, "-o", "trimmed", "--vocabulary", "rows")
    assert ended.code == 0, ended.err
    assert "after - before: +0.0000" in ended.out and "finetune trimmed/recipe.yaml --model trimmed" in ended.out
    facts = json.loads(Path("trimmed/pruned.json").read_text())
    for folder, ids in ((trained, facts["tokens"]), ("trimmed", slice(None))):
        weights = load_file(f"{folder}/model.safetensors")
        assert weights["bert.embeddings.word_embeddings.weight"][ids].shape == (len(facts["tokens"]), 32)
    kept = [json.loads(line) for line in Path("trimmed/predictions.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (trained / "predictions.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in kept] == [row["prediction"] for row in before]
    for one, other in zip(kept, before, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_a_pruned_model_is_trained_again_alone_and_by_the_one_that_it_was(run, trained, toy_data):
    ended = run("prune", trained, "-o", "small", "--layers", 1, "--intermediate", 8, "--vocabulary", "train")
    assert ended.code == 0, ended.err
    again = run("finetune", "small/recipe.yaml", "--model", "small", *LEARN, "--epochs", 1, "--output", "again")
    assert again.code == 0 and "new head: " not in again.err
    taught = distill(run, trained, toy_data, "--model", "small", "--epochs", 1, "--output", "taught")
    assert taught.code == 0, taught.err
    assert json.loads(Path("taught/config.json").read_text())["intermediate_size"] == 8
    matched = distill(run, trained, toy_data, "--model", "small", "--set", "distillation.hidden=last")
    assert matched.last.startswith("error: the student has only a part of the vocabulary of the teacher")


def test_a_plain_encoder_is_pruned_to_named_layers_and_a_corpus(run, tiny_model, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    corpus = write_jsonl(tmp_path / "text" / "corpus.jsonl", [{"text": "the good film"}, {"text": "a song, or so?"}])
    ended = run("prune", tiny_model, "-o", "plain", "--layers", "1", "--vocabulary", corpus)
    assert (
        ended.last.startswith("error:") and "is not a run, so there are no rows to measure importance on" in ended.last
    )
    ended = run("prune", tiny_model, "-o", "plain", "--layers", "1,,", "--vocabulary", corpus)
    assert ended.code == 2
    ended = run("prune", tiny_model, "-o", "plain", "--layers", "0,1", "--vocabulary", corpus)
    assert ended.code == 0, ended.err
    models = [AutoModel.from_pretrained(folder).eval() for folder in (tiny_model, "plain")]
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (tiny_model, "plain")]
    for text in ("the good film", "a song, or so?"):
        states = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state
            for model, tokenizer in zip(models, tokenizers, strict=True)
        ]
        assert torch.allclose(*states, atol=1e-6)
    assert not Path("plain/run.json").exists() and "bertkit finetune RECIPE --model plain" in ended.out


MISTAKES = [
    (["{trained}"], 2, "nothing to prune"),
    (["{trained}", "--layers", "0"], 2, "--layers 0"),
    (["{trained}", "--heads", "3"], 2, "--heads 3: a layer of the model has 2"),
    (["{trained}", "--heads", "1"], 4, "--heads: the config of a bert model cannot describe fewer heads"),
    (["{trained}", "--intermediate", "65"], 2, "--intermediate 65: the feed-forward of a layer has 64 neurons"),
    (["{tiny}", "--intermediate", "8"], 2, "{tiny} is not a run, so there are no rows to measure importance on"),
    (["{tiny}", "--vocabulary", "rows"], 2, "{tiny} is not a run, so there are no rows to trim the vocabulary to"),
    (["{tiny}", "--intermediate", "8", "--recipe", "classify", "--data", "demo"], 4, "no trained head for this task"),
    (["{trained}", "--vocabulary", "./nowhere.txt"], 3, "no such file or folder (nowhere.txt)"),
    (["./nowhere", "--layers", "1"], 4, "no such directory: ./nowhere"),
    (["{damaged}", "--layers", "1"], 4, "the file does not match its checksum"),
    (["{tiny}", "--layers", "0,1", "--data", "demo"], 2, "data.source without a recipe"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES)
def test_mistakes_end_in_one_line_and_write_nothing(run, trained, tiny_model, tmp_path, arguments, code, message):
    paths = {"trained": trained, "tiny": tiny_model, "damaged": tmp_path / "damaged"}
    if "{damaged}" in arguments:
        shutil.copytree(trained, paths["damaged"])
        with (paths["damaged"] / "model.safetensors").open("r+b") as stream:
            stream.seek(-1, 2)
            stream.write(b"\x7f")
    ended = run("prune", *(argument.format(**paths) for argument in arguments), "--output", "new")
    assert (ended.code, ended.last.startswith(f"error: {message.format(**paths)}")) == (code, True), ended.err
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_a_mistake_is_told_before_torch_is_loaded(light_zygote, trained, tmp_path):
    heavy = light_zygote.imports(tmp_path, ["prune", trained, "-o", "new", "--intermediate", 65])
    assert HEAVY & heavy <= {"numpy"}
