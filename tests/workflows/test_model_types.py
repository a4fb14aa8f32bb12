"""A tiny random encoder of every model type, by whole commands: trained, killed, resumed, scored, read elsewhere."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, SplinterTokenizer

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.storage.hub import find_model
from tests.conftest import write_jsonl
from tests.kills import TRAINING_STEP, check_equal, read_lines, slow_unless
from tests.modeling.heads.test_text import CHOICE, HEADS, QUESTION
from tests.modeling.tiny_models import make_tiny

LACKING = {"squad": HEADS[QUESTION], "choose": HEADS[CHOICE]}
CASES = [
    *((recipe, model_type) for recipe in ("mlm", "cola", "ner") for model_type in ARCHITECTURES),
    *((recipe, model_type) for recipe in LACKING for model_type in sorted(LACKING[recipe])),
]
QUICK = [("ner", "gte")]  # and BERT in test_resume.py
INPUTS = {"cola": ["text"], "ner": ["tokens"], "squad": ["question", "context"], "choose": ["context", "choices"]}
MASKED = [{"text": "The [MASK] admired the pear."}, {"text": "A bear carried this [MASK] near the market."}]


def name_case(case: tuple[str, str]) -> str:
    return "-".join(case)


def rename(name: str, new: dict[str, str]) -> str:
    return next((name.replace(old, new[old]) for old in new if old in name), name)


def save_encoder(model_type: str, folder: Path, auto_class: type = AutoModelForMaskedLM) -> None:
    """Write a random model, with the demo's tokenizer; BERT's under its oldest names."""
    tokenizer = AutoTokenizer.from_pretrained(find_model("demo"))
    if model_type == "splinter":  # it answers from a token at the end of the question
        vocabulary = {**tokenizer.get_vocab(), "[QUESTION]": len(tokenizer)}
        tokenizer = SplinterTokenizer(vocab=vocabulary)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    fields = {"pad_token_id": tokenizer.pad_token_id, "mask_token_id": tokenizer.mask_token_id}
    fields |= {"bos_token_id": cls, "cls_token_id": cls, "eos_token_id": sep, "sep_token_id": sep}
    fields |= {"vocab_size": len(tokenizer), "max_position_embeddings": 130}
    fields["initializer_range"] = 0.3  # so wide that rows get different predictions
    if model_type == "splinter":
        fields["question_token_id"] = tokenizer.convert_tokens_to_ids("[QUESTION]")
    if model_type == "xlnet":
        del fields["max_position_embeddings"]
    make_tiny(model_type, auto_class, config=fields).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if model_type == "bert":
        file = folder / "model.safetensors"
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        weights = {rename(name, names): weight for name, weight in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})


def train(zygote, recipe: str, model: Path, folder: Path, fault: dict | None = None) -> tuple[int, str]:
    """Train in a folder for 10 steps, with a checkpoint every 3; return how it ended, and what it printed."""
    command = ["pretrain" if recipe == "mlm" else "finetune", recipe, "--model", model, "--data", "demo"]
    if recipe == "mlm":
        command += ["--steps", 10, "--limit", 200, "--max-length", 32, "--set", "training.eval_blocks=20"]
        command += ["--set", "training.packing=joined"]  # which every type can read
    else:
        command += ["--epochs", 2, "--limit", 40]
    command += ["--batch-size", 8, "--learning-rate", "3e-3", "--output", "run", "--json"]
    for setting in ("training.evaluate_every=3", "training.precision=fp32"):
        command += ["--set", setting]
    return zygote.run(folder, command, fault)


UNMASKED = [  # encoders without a head for masked tokens, and a task for which transformers has a head
    ("similarity", "embedding_gemma2_text"),
    ("cola", "gemma3_text"),
    ("ner", "lilt"),
    ("cola", "llama"),
    ("ner", "openai_privacy_filter"),
    ("squad", "splinter"),
    ("ner", "xlnet"),
]
MASKED_TYPES = [("ner", name) for name in ("data2vec-text", "ernie", "esmc", "longformer", "roformer", "xmod")]


@pytest.mark.parametrize("case", [*UNMASKED, *MASKED_TYPES], ids=name_case)
def test_an_encoder_is_trained_for_two_steps_and_scored(case, run, tmp_path):
    recipe, model_type = case
    save_encoder(model_type, tmp_path / "encoder", AutoModelForMaskedLM if case in MASKED_TYPES else AutoModel)
    data = ["--data", "demo", "--limit", 16, "--json"]
    options = ["--model", tmp_path / "encoder", "--epochs", 1, "--batch-size", 8, "--output", "run"]
    trained = run("finetune", recipe, *data, *options, "--set", "training.precision=fp32")
    assert trained.code == 0, trained.err
    result = json.loads(trained.out)
    scored = run("eval", recipe, "--model", "run", *data)
    assert scored.code == 0, scored.err
    assert json.loads(scored.out)["results"][0]["scores"] == result["results"][0]["scores"]
    assert [line["step"] for line in read_lines(Path("run/metrics.jsonl")) if "loss" in line] == [1, 2]


@pytest.fixture(scope="module")
def trained(request, zygote, tmp_path_factory) -> tuple[Path, dict]:
    """A folder with an encoder and the run of its training, and the result that was printed."""
    recipe, model_type = request.param
    folder = tmp_path_factory.mktemp(model_type)
    save_encoder(model_type, folder / "encoder")
    code, text = train(zygote, recipe, folder / "encoder", folder)
    assert code == 0, text
    return folder, json.loads(text.splitlines()[-1])


@pytest.fixture(scope="module")
def plain() -> Iterator[subprocess.Popen]:
    """A process that has transformers, and no bertkit."""
    file = Path(__file__).parent / "plain_transformers.py"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(file)], text=True, **streams) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("trained", slow_unless(QUICK, CASES), indirect=True, ids=name_case)
def test_a_kill_changes_nothing_for_any_model_type(trained, request, zygote, tmp_path):
    folder, _ = trained
    recipe, model_type = request.node.callspec.params["trained"]
    step = random.Random(f"{recipe}/{model_type}").randint(4, 10)  # after the first checkpoint
    assert train(zygote, recipe, folder / "encoder", tmp_path, {"function": TRAINING_STEP, "call": step})[0] == -9
    code, text = train(zygote, recipe, folder / "encoder", tmp_path)
    assert (code, "resuming" in text) == (0, True), text
    check_equal(tmp_path / "run", folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("trained", CASES, indirect=True, ids=name_case)
def test_a_model_of_any_type_is_scored_as_in_its_run_and_read_by_transformers_alone(trained, request, run, plain):
    folder, result = trained[0] / "run", trained[1]
    recipe, _ = request.node.callspec.params["trained"]
    if recipe != "mlm":
        ended = run("eval", recipe, "--model", folder, "--data", "demo", "--limit", 40, "--json")
        assert json.loads(ended.out)["results"][0]["scores"] == result["results"][0]["scores"], ended.err
    rows, printed = predict(run, recipe, folder)
    plain.stdin.write(json.dumps({"recipe": recipe, "folder": str(folder), "rows": rows}) + "\n")
    plain.stdin.flush()
    computed = json.loads(plain.stdout.readline())
    for ours, theirs in zip(printed, computed, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-5)


def predict(run, recipe: str, folder: Path) -> tuple[list[dict], list[list[float]]]:
    """Return some rows, and the numbers that bertkit prints for each."""
    if recipe == "mlm":
        ended = run("fill-mask", *(row["text"] for row in MASKED), "--model", folder, "--json")
        answers = [text["masks"][0]["answers"] for text in json.loads(ended.out)["texts"]]
        return MASKED, [[answer["probability"] for answer in five] for five in answers]
    rows = [{name: row[name] for name in INPUTS[recipe]} for row in read_lines(folder / "predictions.jsonl")[:8]]
    file = write_jsonl(Path("rows.jsonl"), rows)
    ended = run("predict", recipe, file, "--model", folder, "--set", "data.columns={}")
    assert ended.code == 0, ended.err
    read = {
        "cola": lambda record: list(record["probabilities"].values()),
        "ner": lambda record: record["word_probabilities"],
        "squad": lambda record: [record["score"]],
        "choose": lambda record: record["choice_probabilities"],
    }
    return rows, [read[recipe](json.loads(line)) for line in ended.out.splitlines()]
