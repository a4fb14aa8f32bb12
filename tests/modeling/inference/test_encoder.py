"""States of texts without padding are those of transformers' own encoder, up to rounding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from torch.nn import functional

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.inference.encoder import (
    FusedLinear,
    InferenceEncoder,
    get_encoder_shapes,
    has_known_encoder,
    load_encoder,
)
from bertkit.modeling.inference.model import load_for_inference
from tests.modeling.inference.test_model import damage_file, save_tiny, set_keys
from tests.modeling.tiny_models import load_head, make_tiny, make_tiny_batch

KNOWN = [name for name, architecture in ARCHITECTURES.items() if architecture.weight_prefix]
LENGTHS = (9, 9, 5, 3)


def load_both(folder, dtype=torch.float32):
    wide = transformers.AutoModel.from_pretrained(folder).eval()
    narrow = load_encoder(folder, wide.config, dtype)
    assert isinstance(narrow, InferenceEncoder)
    return wide, narrow


@pytest.mark.parametrize("loader", ["encoder", "answers", "transformers"])
def test_a_model_does_not_change_with_the_file_that_it_was_loaded_from(loader, tmp_path):
    head = "AutoModelForSequenceClassification"
    folder = save_tiny(tmp_path, "bert", head)
    config = transformers.AutoConfig.from_pretrained(folder)
    load = {
        "encoder": lambda: load_encoder(folder, config, torch.float32),
        "answers": lambda: load_for_inference(head, folder, ("no", "yes")),
        "transformers": lambda: load_head(head, folder, ("no", "yes"), new_head=False).eval(),
    }
    model, batch = load[loader](), make_tiny_batch(LENGTHS)

    def compute():
        return next(iter(model(**batch).values()))

    with torch.inference_mode():
        before = compute().clone()
        file = folder / "model.safetensors"
        with file.open("r+b") as stream:  # as `cp` does: the same inode
            stream.write(bytes(file.stat().st_size))
        assert torch.equal(compute(), before)


def assert_equal_states(folder, batch, dtype=torch.float32, **tolerance):
    wide, narrow = load_both(folder, dtype)
    with torch.inference_mode():
        expected, found = (model(**batch, output_hidden_states=True) for model in (wide, narrow))
        last = narrow(**batch)["last_hidden_state"]
        first = narrow(**batch, first_only=True)["last_hidden_state"]
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(last[real], expected["last_hidden_state"][real], **tolerance)
    torch.testing.assert_close(first, expected["last_hidden_state"][:, :1], **tolerance)
    assert not last[~real].any()
    for ours, theirs in zip(found["hidden_states"], expected["hidden_states"], strict=True):
        torch.testing.assert_close(ours[real], theirs[real], **tolerance)


@pytest.mark.parametrize("model_type", KNOWN)
def test_states_are_equal_up_to_rounding(model_type, tmp_path):
    folder = save_tiny(tmp_path, model_type, "AutoModelForTokenClassification")  # with a prefix and a head
    batch = make_tiny_batch(LENGTHS)
    if ARCHITECTURES[model_type].reads_token_types:
        batch["token_type_ids"] = (torch.arange(max(LENGTHS)) > 2).long().expand_as(batch["input_ids"])
    assert_equal_states(folder, batch, rtol=1e-5, atol=1e-5)
    assert_equal_states(folder, make_tiny_batch(LENGTHS), torch.bfloat16, rtol=0, atol=0.05)


def test_texts_may_come_in_any_order_and_be_empty(tmp_path):
    folder = save_tiny(tmp_path, "bert", "AutoModel")
    assert_equal_states(folder, make_tiny_batch((3, 9, 3)), rtol=1e-5, atol=1e-5)
    _, narrow = load_both(folder)
    assert not narrow(**make_tiny_batch((4, 0)))["last_hidden_state"][1].any()


@pytest.mark.parametrize("change", [damage_file, set_keys(hidden_act="relu"), set_keys(num_hidden_layers=1)])
def test_what_is_unusual_is_left_to_transformers(change, tmp_path):
    folder = save_tiny(tmp_path, "bert", "AutoModel")
    assert load_encoder(folder, transformers.AutoConfig.from_pretrained(folder), torch.float32)
    change(folder)
    assert load_encoder(folder, transformers.AutoConfig.from_pretrained(folder), torch.float32) is None


def test_the_types_that_are_not_known_are_left_to_transformers(tmp_path):
    folder = save_tiny(tmp_path, "mpnet", "AutoModel")
    assert load_encoder(folder, transformers.AutoConfig.from_pretrained(folder), torch.float32) is None


def test_products_in_bf16_are_those_of_plain_layers_whoever_lays_the_weights_out():
    random = torch.Generator().manual_seed(0)
    weights = {"of.weight": torch.randn(48, 64, generator=random), "of.bias": torch.randn(48, generator=random)}
    values = torch.randn(37, 64, generator=random)
    layer = FusedLinear(weights, torch.float32, "of")
    torch.testing.assert_close(layer(values), functional.linear(values, weights["of.weight"], weights["of.bias"]))

    def compute(_):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return layer(values), layer(values, gelu=True)

    with ThreadPoolExecutor(8) as pool:
        computed = list(pool.map(compute, range(32)))
    expected = functional.linear(*(part.bfloat16() for part in (values, weights["of.weight"], weights["of.bias"])))
    exact = functional.linear(*(part.bfloat16().double() for part in (values, *weights.values())))
    # a CPU without bf16 rounds the product before the activation, too
    activates = exact if torch.ops.mkldnn._is_mkldnn_bf16_supported() else expected.double()
    for products, activated in computed:
        torch.testing.assert_close(products, expected, rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(activated.double(), functional.gelu(activates), rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("model_type", KNOWN)
def test_weights_have_the_names_and_shapes_of_the_encoder(model_type):
    model = make_tiny(model_type, transformers.AutoModel)
    assert has_known_encoder(model.config)
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if "pooler" not in name}
    assert get_encoder_shapes(model.config) == expected


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("mpnet", {}),
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"is_decoder": True}),
        ("roberta", {"return_dict": False}),
    ],
)
def test_another_type_or_setting_is_not_known(model_type, change):
    config = make_tiny(model_type, transformers.AutoModel).config
    for name, value in change.items():
        setattr(config, name, value)
    assert not has_known_encoder(config)
