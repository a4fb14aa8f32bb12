"""States of texts without padding are those of transformers' own encoder, up to rounding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from torch.nn import functional

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.inference.answers import load_for_inference
from bertkit.modeling.inference.encoder import FusedLinear, InferenceEncoder, attend_in_blocks, load_encoder
from tests.modeling.inference.test_answers import damage_file, save_tiny, set_keys
from tests.modeling.tiny_models import load_head, make_tiny_batch

KNOWN = [name for name, architecture in ARCHITECTURES.items() if architecture.prefix]
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


@pytest.mark.parametrize("tokens", [1, 13, 16, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_that_of_torch(tokens, dtype):
    projected = torch.randn(70, tokens, 3, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    queries, keys, values = projected.float().permute(2, 0, 3, 1, 4)
    expected = functional.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).reshape(-1, 16)
    tolerance = 1e-6 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(
        attend_in_blocks(projected[:, :, 0], projected[:, :, 1:]).float(), expected, rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("change", [damage_file, set_keys(hidden_act="relu"), set_keys(num_hidden_layers=1)])
def test_what_is_unusual_is_left_to_transformers(change, tmp_path):
    folder = save_tiny(tmp_path, "bert", "AutoModel")
    assert load_encoder(folder, transformers.AutoConfig.from_pretrained(folder), torch.float32)
    change(folder)
    assert load_encoder(folder, transformers.AutoConfig.from_pretrained(folder), torch.float32) is None


def test_the_types_that_are_not_known_are_left_to_transformers(tmp_path):
    folder = save_tiny(tmp_path, "mpnet", "AutoModel")
    assert load_encoder(folder, transformers.AutoConfig.from_pretrained(folder), torch.float32) is None


def test_products_of_any_number_of_texts_have_the_same_shapes(monkeypatch):
    """oneDNN never frees what it has compiled for a shape, so memory would grow with the rows."""
    shapes, multiply = set(), torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda first, second: shapes.add(first.shape) or multiply(first, second))
    for texts in range(20, 120):
        attend_in_blocks(torch.randn(texts, 13, 2, 8).bfloat16(), torch.randn(texts, 13, 2, 2, 8).bfloat16())
    assert len(shapes) == 2  # scores, and the sums of values


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
