"""A model for inference has the outputs of transformers' own, or leaves the checkpoint to that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto import modeling_auto

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.inference.encoder import get_encoder_shapes, has_known_encoder
from bertkit.modeling.inference.model import InferenceModel, load_for_inference, read_known_config
from bertkit.modeling.info import set_tagger_head
from tests.kills import slow_unless
from tests.modeling.tiny_models import load_head, make_tiny, make_tiny_batch

HEADS = {
    "AutoModelForSequenceClassification": "single_label_classification",
    "AutoModelForMultipleChoice": None,
    "AutoModelForTokenClassification": None,
    "AutoModelForQuestionAnswering": None,
}
TEXT_HEADS = ("AutoModelForSequenceClassification", "AutoModelForMultipleChoice")
LABELS = ("no", "yes")
KNOWN = [name for name, architecture in ARCHITECTURES.items() if architecture.weight_prefix]
CASES = [(name, head) for name in KNOWN for head in HEADS if (name, head) != ("electra", "AutoModelForMultipleChoice")]


def save_tiny(folder: Path, model_type: str, head: str) -> Path:
    model = make_tiny(model_type, getattr(transformers, head))
    with torch.no_grad():
        for parameter in model.parameters():  # no bias is 0, no norm is 1
            parameter += torch.randn_like(parameter) / 10
    model.save_pretrained(folder)
    return folder


QUICK = {("bert", head) for head in HEADS} | {(name, "AutoModelForSequenceClassification") for name in KNOWN}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", slow_unless(QUICK, CASES), ids="-".join)
def test_outputs_are_equal_or_packed_up_to_rounding(case, packed, tmp_path):
    model_type, head = case
    folder = save_tiny(tmp_path, model_type, head)
    options = {"problem_type": HEADS[head], "cls_only": head in TEXT_HEADS}
    wide = load_head(head, folder, LABELS, new_head=False, **options).eval()
    for in_bf16 in (False, True):
        narrow = load_for_inference(head, folder, LABELS, **options)
        assert isinstance(narrow, InferenceModel)
        if packed:
            narrow.pack_texts()
        for lengths in ((3, 9, 5, 4), (7,) * 34):
            real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
            batch = make_tiny_batch(lengths)
            if ARCHITECTURES[model_type].reads_token_types:
                batch["token_type_ids"] = (torch.arange(max(lengths)) > 2).long().expand_as(batch["input_ids"])
            if head == "AutoModelForMultipleChoice":
                batch = {name: values.view(-1, 2, values.shape[1]) for name, values in batch.items()}
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
                expected, found = dict(wide(**batch)), dict(narrow(**batch))
            assert expected.keys() == found.keys()
            exact = 5e-3 if in_bf16 and model_type == "electra" else 0  # its sums are in bf16 too
            tolerance = (0.05 if in_bf16 else 1e-5) if packed else exact
            for name, values in expected.items():
                rows = real if values.shape[:2] == real.shape else slice(None)  # padding of a text means nothing
                torch.testing.assert_close(found[name][rows], values[rows], rtol=tolerance, atol=tolerance)


def test_it_has_the_parameters_of_the_whole_model(tmp_path):
    folder = save_tiny(tmp_path, "bert", "AutoModelForSequenceClassification")
    narrow = load_for_inference("AutoModelForSequenceClassification", folder, LABELS)
    wide = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert sum(map(torch.numel, narrow.parameters())) == wide.num_parameters()


def spoil_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def drop_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["bert.pooler.dense.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def damage_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"none")


def set_keys(**keys):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | keys))

    return change


def add_tagger(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    set_tagger_head(config, {"layers": "last", "tagger": "linear", "size": 0})
    config.save_pretrained(folder)


@pytest.mark.parametrize(
    "change",
    [
        *(spoil_weight, drop_weight, damage_file, add_tagger),
        set_keys(architectures=["BertForMaskedLM"]),
        set_keys(hidden_act="relu"),
        set_keys(output_hidden_states=True),
        set_keys(is_decoder=True),
        set_keys(problem_type="regression"),
        set_keys(vocab_size=61),
        set_keys(num_attention_heads=3),
    ],
)
def test_what_is_unusual_is_left_to_transformers(change, tmp_path):
    folder = save_tiny(tmp_path, "bert", "AutoModelForSequenceClassification")
    options = {"problem_type": "single_label_classification"}
    assert load_for_inference("AutoModelForSequenceClassification", folder, LABELS, **options)
    change(folder)
    assert load_for_inference("AutoModelForSequenceClassification", folder, LABELS, **options) is None


@pytest.mark.parametrize(
    ("model_type", "head"), [("albert", "Sequence"), ("deberta-v2", "Sequence"), ("mpnet", "Token")]
)
def test_other_types_are_left_to_transformers(model_type, head, tmp_path):
    head = f"AutoModelFor{head}Classification"
    assert load_for_inference(head, save_tiny(tmp_path, model_type, head), LABELS) is None


@pytest.mark.parametrize("model_type", KNOWN)
def test_a_config_is_read_as_transformers_reads_it_or_left_to_it(model_type, tmp_path):
    make_tiny(model_type, transformers.AutoModel).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    theirs, left = load_config(tmp_path), set()
    for key in content:
        file.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        if key == "model_type":
            continue
        ours = read_known_config(tmp_path)
        if ours is None:
            left.add(key)
            continue
        # what may be missing changes nothing
        assert get_encoder_shapes(ours) == get_encoder_shapes(theirs)
        assert has_known_encoder(ours)
        for name in ("num_attention_heads", "num_hidden_layers", "pad_token_id", "problem_type"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert getattr(ours, "layer_norm_eps", 1e-12) == getattr(theirs, "layer_norm_eps", 1e-12)
    assert {"vocab_size", "pad_token_id", "max_position_embeddings"} < left
    for key in left:
        file.write_text(json.dumps({**content, key: str(content[key])}))
        assert read_known_config(tmp_path) is None


@pytest.mark.parametrize("model_type", KNOWN)
def test_classes_have_transformers_names(model_type):
    names = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    assert names[model_type] == f"{ARCHITECTURES[model_type].class_prefix}ForSequenceClassification"


@pytest.mark.slow
def test_a_prediction_of_a_run_does_without_transformers(tmp_path, trained, light_zygote):
    """And without what that brings: sympy with torch's compiler, scipy with losses, and accelerate."""
    imported = light_zygote.imports(
        tmp_path, ["predict", trained / "recipe.yaml", "--model", trained, "--text", "good"]
    )
    assert "torch" in imported
    assert not {"transformers", "sympy", "scipy", "accelerate", "datasets", "sklearn", "pandas"} & imported
