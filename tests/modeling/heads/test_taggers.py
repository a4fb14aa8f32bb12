"""Taggers over frozen encoders, of five architectures: loaded, computed, kept on disk, and trained from file to tag."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertkit.evaluation.forward import forward
from bertkit.modeling.heads import taggers as heads
from bertkit.modeling.info import get_loading_info
from bertkit.modeling.layers import LAYER_CHOICES
from bertkit.recipe import load_recipe
from bertkit.tasks import token_classification as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune
from tests.conftest import WORDS, make_tokenizer, write_jsonl
from tests.kills import slow_unless
from tests.modeling.tiny_models import load_head

TOKENIZER = make_tokenizer()
LABELS = ("B-PER", "I-PER", "O")
SIZES = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
}
OWN_FIELDS = {
    "Bert": {},
    "Roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "DistilBert": {"dim": 16, "hidden_dim": 32, "n_layers": 5, "n_heads": 2},
    "Electra": {"embedding_size": 8},
    "ModernBert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))


def make_checkpoint(folder: Path, prefix: str, suffix: str) -> Path:
    torch.manual_seed(5)
    config = getattr(transformers, f"{prefix}Config")(**SIZES, **OWN_FIELDS[prefix])
    getattr(transformers, f"{prefix}{suffix}")(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def head_of(layers="last", tagger="linear", size=6):
    return {"layers": layers, "tagger": tagger, "size": size}


def load(folder, new_head=True, **head):
    torch.manual_seed(6)
    model = load_head(heads.build_tagger_class, folder, LABELS, new_head=new_head, tagger=head_of(**head))
    if new_head and model.weights is not None:
        assert not model.weights.any()
        torch.nn.init.normal_(model.weights)
    return model.eval()


def batch_of(*lengths):
    """Build a padded batch of rows of random tokens."""
    rng = np.random.default_rng(7)
    ids, mask = torch.zeros(len(lengths), max(lengths), dtype=torch.int64), torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.from_numpy(rng.integers(5, len(TOKENIZER), length))
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask.long()}


# --- any architecture


@pytest.mark.parametrize("suffix", ["Model", pytest.param("ForMaskedLM", marks=pytest.mark.slow)])
@pytest.mark.parametrize("prefix", slow_unless(["Bert", "DistilBert", "ModernBert"], OWN_FIELDS))
def test_a_tagger_takes_the_encoder_and_leaves_it_alone(tmp_path, prefix, suffix):
    folder = make_checkpoint(tmp_path / "one", prefix, suffix)
    model = load(folder, layers="weighted_sum", tagger="bilstm")
    assert type(model).__name__ == f"{prefix}ForLayerTagging"
    assert get_loading_info(model).head == "new"
    plain = getattr(transformers, f"{prefix}{suffix}").from_pretrained(folder).base_model.state_dict()
    own = model.base_model.state_dict()
    assert own
    assert all(torch.equal(weight, plain[name]) for name, weight in own.items())

    model.train()
    assert not model.base_model.training
    batch = batch_of(9, 4)
    loss = model(**batch, labels=torch.zeros_like(batch["input_ids"])).loss
    loss.backward()
    assert all(parameter.grad is None for parameter in model.base_model.parameters())
    others = {name: p for name, p in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")}
    assert {name.split(".")[0] for name in others} == {"weights", "lstm", "output"}
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in others.values())

    model.eval()
    model.save_pretrained(tmp_path / "two")
    TOKENIZER.save_pretrained(tmp_path / "two")
    again = load(tmp_path / "two", new_head=False, layers="weighted_sum", tagger="bilstm")
    assert get_loading_info(again).head is None
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, again(**batch).logits)


# --- layers


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "bert", "Bert", "Model")


EXPECTED = {
    "embeddings": lambda states: states[0],
    "last": lambda states: states[5],
    "second_to_last": lambda states: states[4],
    "sum_last_four": lambda states: states[2] + states[3] + states[4] + states[5],
    "concat_last_four": lambda states: torch.cat([states[2], states[3], states[4], states[5]], dim=-1),
    "weighted_sum_last_four": lambda states: torch.stack(states[2:6], dim=2),
    "weighted_sum": lambda states: torch.stack(states[1:6], dim=2),
}


@pytest.mark.parametrize("layers", slow_unless(["last", "concat_last_four", "weighted_sum"], LAYER_CHOICES))
def test_layers_are_those_of_their_name(encoder, layers):
    model = load(encoder, layers=layers)
    batch = batch_of(7, 3)
    plain = transformers.BertModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        expected = EXPECTED[layers](plain(**batch, output_hidden_states=True).hidden_states)
        states = model.read_states(**batch)
        torch.testing.assert_close(states, expected)
        rounded = expected.half().float()
        if expected.ndim == 4:
            shares = np.exp(model.weights.numpy()) / np.exp(model.weights.numpy()).sum()
            rounded = sum(float(share) * rounded[:, :, layer] for layer, share in enumerate(shares))
        assert model.output.in_features == rounded.shape[-1] == (64 if layers == "concat_last_four" else 16)
        logits = rounded @ model.output.weight.T + model.output.bias
        torch.testing.assert_close(model(**batch).logits, logits, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(model(**batch, states=states.half()).logits, model(**batch).logits)


@pytest.mark.parametrize("tagger", ["linear", "bilstm"])
@pytest.mark.parametrize("layers", ["concat_last_four", "weighted_sum"])
def test_padding_changes_no_logits(encoder, tagger, layers):
    model = load(encoder, layers=layers, tagger=tagger)
    batch = {name: values[1:] for name, values in batch_of(12, 9, 5, 1).items()}  # no row is as wide as the batch
    with torch.no_grad():
        together = model(**batch).logits
        assert together.shape == (3, 12, 3)
        for row, length in enumerate((9, 5, 1)):
            alone = model(**{name: values[row : row + 1, :length] for name, values in batch.items()}).logits[0]
            torch.testing.assert_close(together[row, :length], alone, atol=1e-3, rtol=1e-3)


def test_the_loss_is_a_mean_over_labelled_tokens(encoder):
    model = load(encoder)
    batch = batch_of(5, 4)
    labels = torch.full_like(batch["input_ids"], -100)
    labels[0, 2], labels[1, 1] = 1, 2
    output = model(**batch, labels=labels)
    log_probabilities = output.logits.log_softmax(dim=-1)
    assert output.loss.item() == pytest.approx(
        -(log_probabilities[0, 2, 1] + log_probabilities[1, 1, 2]).item() / 2, abs=1e-5
    )


# --- states on disk


@pytest.fixture
def context() -> TaskContext:
    return TaskContext(load_recipe("ner-features"), TOKENIZER, LABELS)


@pytest.fixture
def features(context):
    rows = [{"tokens": words.split()} for words in ("the film", "a very good book so dull", "song", "so unheard of")]
    return task.encode(rows, context)


class Counting:
    """Runs modules as training does, and counts how often; may fail at one of the calls."""

    def __init__(self, context: TaskContext, fails_at: int = 0) -> None:
        self.context, self.fails_at, self.calls = context, fails_at, 0

    def __call__(self, module, features):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        return forward(module, features, task.collator(self.context), precision="fp32")[0]


def fresh(features):
    return [{name: value for name, value in each.items() if name != "states"} for each in features]


def states_files(tmp_path):
    return sorted((tmp_path / "cache" / "states").glob("*/manifest.json"))


@pytest.mark.parametrize("layers", ["concat_last_four", "weighted_sum"])
def test_states_are_computed_once_and_read_afterwards(encoder, context, features, tmp_path, monkeypatch, layers):
    monkeypatch.setattr(heads, "_CHUNK_ROWS", 3)
    model, run = load(encoder, layers=layers), Counting(context)
    again = fresh(features)
    heads.cache_states(model, features, run, "content")
    assert run.calls == 2
    heads.cache_states(model, again, run, "content")
    assert run.calls == 2
    assert len(states_files(tmp_path)) == 1
    for one, other in zip(features, again, strict=True):
        ids = torch.tensor([one["input_ids"]])
        expected = model.read_states(input_ids=ids, attention_mask=torch.ones_like(ids))[0].numpy()
        assert one["states"].dtype == np.float16
        np.testing.assert_array_equal(one["states"], other["states"])
        np.testing.assert_allclose(one["states"], expected, atol=2e-3)


def test_states_make_the_same_logits_as_tokens_do(encoder, context, features):
    model, run = load(encoder, layers="concat_last_four", tagger="bilstm"), Counting(context)
    without = run(model, features)
    heads.cache_states(model, features, run, "content")
    batch = task.collator(context)(features)
    assert batch["states"].shape == (4, max(len(each["input_ids"]) for each in features), 64)
    for one, other, feature in zip(without, run(model, features), features, strict=True):
        length = len(feature["input_ids"])
        np.testing.assert_allclose(one["logits"][:length], other["logits"][:length], atol=1e-3)


def test_other_contents_layers_and_texts_have_other_files(encoder, context, features, tmp_path):
    run = Counting(context)
    for layers, content in (("last", "a"), ("last", "b"), ("sum_last_four", "a")):
        heads.cache_states(load(encoder, layers=layers), fresh(features), run, content)
    heads.cache_states(load(encoder), fresh(features[1:]), run, "a")
    heads.cache_states(load(encoder), fresh(features[::-1]), run, "a")
    assert len(states_files(tmp_path)) == run.calls == 5


@pytest.mark.parametrize("damage", ["flipped", "half", "empty", "missing"])
def test_damaged_states_are_computed_again_and_said(encoder, context, features, tmp_path, caplog, damage):
    model, run = load(encoder), Counting(context)
    expected = fresh(features)
    heads.cache_states(model, expected, run, "content")
    expected = [each["states"].copy() for each in expected]
    file = states_files(tmp_path)[0].with_name("states.npy")
    content = bytearray(file.read_bytes())
    content[200] ^= 64
    file.write_bytes({"flipped": content, "half": content[: len(content) // 2]}.get(damage, b""))
    if damage == "missing":
        file.unlink()
    caplog.set_level("INFO", logger="bertkit")
    heads.cache_states(model, features, run, "content")
    assert run.calls == 2
    assert f"the numbers in {file.parent} are damaged and are computed again" in caplog.messages
    for each, states in zip(features, expected, strict=True):
        np.testing.assert_array_equal(each["states"], states)


def test_a_stop_while_writing_leaves_no_half_file(encoder, context, features, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "_CHUNK_ROWS", 2)
    model = load(encoder)
    with pytest.raises(KeyboardInterrupt):
        heads.cache_states(model, features, Counting(context, fails_at=2), "content")
    assert states_files(tmp_path) == []
    assert not any("states" in each for each in features)
    run = Counting(context)
    heads.cache_states(model, features, run, "content")
    assert run.calls == 2
    assert len(states_files(tmp_path)) == 1


# --- from file to tag


def toy_row(rng: random.Random) -> dict:
    """Good words are persons, with the `film` or `book` that may follow."""
    tokens: list[str] = []
    tags: list[str] = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.5:
            more = [rng.choice(["film", "book"])] * rng.randint(0, 1)
            tokens += [rng.choice(WORDS["good"]), *more]
            tags += ["B-PER", *["I-PER"] * len(more)]
        tokens.append(rng.choice(["the", "a", "is", *WORDS["bad"]]))
        tags.append("O")
    return {"tokens": tokens, "ner_tags": tags}


def toy_rows(count: int, seed: int) -> list[dict]:
    rng = random.Random(seed)
    return [toy_row(rng) for _ in range(count)]


LEARN = {
    "options.tagger_size": 16,
    "training.epochs": 16,
    "training.evaluate_every": 999,
    "training.batch_size": 16,
    "training.learning_rate": 6e-2,
    "training.precision": "fp32",
}


def settings_of(changes):
    return [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "data"
    write_jsonl(folder / "train.jsonl", toy_rows(150, seed=1))
    write_jsonl(folder / "validation.jsonl", toy_rows(40, seed=2))
    return folder


@pytest.fixture(scope="module")
def tagger(data, tiny_model, tmp_path_factory) -> Path:
    """A run folder: a tagger over the frozen tiny model that begins to find the toy persons."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BERTKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return train_tagger(tiny_model, data, data.parent / "run", epochs=4)


def train_tagger(model: Path, data: Path, output: Path, epochs: int) -> Path:
    changes = {"model": str(model), "data.source": str(data), **LEARN, "training.epochs": epochs}
    finetune(load_recipe("ner-features", changes), output=output)
    return output


def scores_of(folder: Path) -> dict[str, float]:
    return json.loads((folder / "run.json").read_text())["results"][0]["scores"]


@pytest.mark.slow
def test_a_frozen_encoder_is_enough_for_the_toy_persons(run, tiny_model, data, tmp_path):
    folder = train_tagger(tiny_model, data, tmp_path / "run", epochs=16)
    assert scores_of(folder)["f1"] > 0.8
    ended = run("predict", "ner-features", "--model", folder, "--text", "the great film is bad")
    record = json.loads(ended.out)
    assert record["prediction"] == ["O", "B-PER", "I-PER", "O", "O"]
    assert [each["text"] for each in record["entities"]] == ["great film"]


def test_the_tagger_learns_and_its_encoder_stays_frozen(tagger, tiny_model):
    result = json.loads((tagger / "run.json").read_text())["results"][0]
    assert result["scores"]["accuracy"] > result["baselines"]["most frequent tag"]["accuracy"] + 0.1
    before, after = load_file(tiny_model / "model.safetensors"), load_file(tagger / "model.safetensors")
    kept = {name.removeprefix("bert."): weight for name, weight in after.items() if name.startswith("bert.")}
    assert set(kept) == {name for name in before if not name.startswith("pooler")}
    assert all(torch.equal(weight, before[name]) for name, weight in kept.items())
    config = json.loads((tagger / "config.json").read_text())
    assert config["bertkit_head"] == {"layers": "concat_last_four", "tagger": "bilstm", "size": 16}


def test_eval_computes_the_states_anew_and_repeats_the_scores(run, tagger, data, tmp_path):
    for recipe in ("ner-features", "ner"):  # the checkpoint knows what it is
        ended = run("eval", recipe, "--model", tagger, "--data", data, "--json")
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["results"][0]["scores"] == scores_of(tagger)
    assert not (tmp_path / "cache").exists()


def test_a_text_to_predict(run, tagger):
    ended = run("predict", "ner-features", "--model", tagger, "--text", "the great film is bad")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert len(record["prediction"]) == 5 and {*record["prediction"]} <= {*LABELS}
    pairs = zip(["the", "great", "film", "is", "bad"], record["prediction"], strict=True)
    named = [word for word, tag in pairs if tag != "O"]
    assert " ".join(each["text"] for each in record["entities"]) == " ".join(named)


def test_a_second_run_reads_the_states_of_the_first(run, tiny_model, data, tmp_path):
    short = {**LEARN, "training.epochs": 1}
    for seed, what in ((1, " MB in "), (2, "read from ")):
        changes = settings_of({**short, "training.seed": seed})
        options = ["--model", tiny_model, "--data", data, "--output", tmp_path / f"run{seed}", *changes]
        ended = run("finetune", "ner-features", *options)
        assert ended.code == 0, ended.err
        lines = [line for line in ended.err.splitlines() if "hidden states of" in line]
        assert len(lines) == 2
        assert all(what in line for line in lines)
    assert len(states_files(tmp_path)) == 2


def test_an_ordinary_run_may_begin_with_a_tagger_of_a_frozen_encoder(run, tagger, data, tmp_path):
    changes = settings_of({name: value for name, value in LEARN.items() if not name.startswith("options")})
    folder = tmp_path / "run"
    options = ["--model", tagger, "--data", data, "--output", folder, *changes, "--set", "training.epochs=1"]
    ended = run("finetune", "ner", *options)
    assert ended.code == 0, ended.err
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForTokenClassification"]
    before, after = load_file(tagger / "model.safetensors"), load_file(folder / "model.safetensors")
    assert not any(torch.equal(after[name], before[name]) for name in before if name.endswith("query.weight"))
