"""Named sizes: the parameters of the literature, configs that fit the tokenizer, and mistakes in one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModel

from bertkit.errors import RecipeError
from bertkit.modeling.sizes import find_size, make_config, read_sizes
from tests.kills import slow_unless


def tokenizer(tokens=100, pad=0, **special):
    names = ("bos", "eos", "cls", "sep", "mask")
    ids = {f"{name}_token_id": special.get(name) for name in names}
    return SimpleNamespace(get_vocab=lambda: {str(n): n for n in range(tokens)}, pad_token_id=pad, **ids)


BERT = tokenizer(cls=2, sep=3, mask=4)


def count_parameters(name, options=None):
    """Count the weights of an encoder with the literature's vocabulary, without memory for them."""
    config = make_config(name, tokenizer(find_size(name).vocab_size, cls=2, sep=3), options or {})
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


# one of each model type
QUICK = {find_size(name).model_type: name for name in reversed(read_sizes())}


@pytest.mark.parametrize("name", slow_unless(QUICK.values(), read_sizes()))
def test_the_written_number_of_parameters_is_the_counted_one(name):
    assert count_parameters(name) == find_size(name).parameters


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [  # Devlin 2019; Turc 2019; Jiao 2020; Lan 2020; Sanh 2019; Clark 2020; Liu 2019; Warner 2024; He 2023;
        # Weller 2025 (Ettin); Marone 2025 (mmBERT); Boizard 2025 (EuroBERT);
        # 3 and 6 layers: Sun 2019 (PKD). Lan 2020 says 235 of albert-xxlarge, and its released weights are 223.
        ("base", {}, 110),
        ("large", {}, 335),
        ("tiny", {}, 4.4),
        ("tinybert", {}, 14.5),
        ("albert-xlarge", {}, 60),
        ("albert-xxlarge", {}, 223),
        ("albert-base", {}, 12),
        ("albert-large", {}, 18),
        ("distilbert", {}, 66),
        ("electra-small", {}, 14),
        ("electra-base", {}, 110),
        ("electra-large", {}, 335),
        ("roberta-base", {}, 125),
        ("roberta-large", {}, 355),
        ("modernbert-base", {}, 149),
        ("modernbert-large", {}, 395),
        ("ettin-17m", {}, 17),
        ("ettin-32m", {}, 32),
        ("ettin-68m", {}, 68),
        ("ettin-150m", {}, 150),
        ("ettin-400m", {}, 395),
        ("ettin-1b", {}, 1028),
        ("mmbert-small", {}, 140),
        ("mmbert-base", {}, 307),
        ("eurobert-210m", {}, 210),
        ("deberta-v3-small", {}, 44 + 98),
        ("deberta-v3-base", {}, 86 + 98),
        ("deberta-v3-large", {}, 304 + 131),
        ("base", {"num_hidden_layers": 3}, 45.7),
        ("base", {"num_hidden_layers": 6}, 67),
    ],
)
def test_sizes_are_those_of_the_literature(name, options, millions):
    counted = count_parameters(name, options) if options else find_size(name).parameters  # see above
    assert counted / 1e6 == pytest.approx(millions, rel=0.04 if name == "electra-small" else 0.03)


@pytest.mark.parametrize("name", read_sizes())
def test_a_small_model_of_every_size_finds_masked_words(name):
    import torch
    from transformers import AutoModelForMaskedLM

    small = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    small |= {} if name == "distilbert" else {"intermediate_size": 16}
    model = AutoModelForMaskedLM.from_config(make_config(name, tokenizer(cls=2, sep=3, bos=2, eos=3), small))
    tokens = torch.tensor([[2, 7, 4, 3, 0]])
    output = model(input_ids=tokens, attention_mask=(tokens != 0).long(), labels=tokens)
    assert output.logits.shape == (1, 5, 100)
    assert output.loss.isfinite()


def test_tokens_and_special_ids_come_from_the_tokenizer():
    config = make_config("roberta-base", tokenizer(300, pad=5, cls=7, sep=8), {})
    assert (config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id) == (300, 5, 7, 8)
    assert config.max_position_embeddings == 518  # 512 after the id of the padding token
    assert make_config("roberta-base", tokenizer(pad=1, cls=0, sep=2), {}).max_position_embeddings == 514
    assert make_config("modernbert-base", BERT, {}).sep_token_id == 3
    assert make_config("eurobert-210m", BERT, {}).mask_token_id == 4
    assert make_config("base", BERT, {}).bos_token_id is None
    assert make_config("base", BERT, {}).max_position_embeddings == 512


def test_options_set_any_field_by_either_of_its_names():
    assert make_config("base", BERT, {"hidden_dropout_prob": 0, "vocab_size": 128}).vocab_size == 128
    assert make_config("distilbert", BERT, {"hidden_size": 96}).dim == 96
    assert make_config("distilbert", BERT, {"dim": 96}).hidden_size == 96


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ("bas", {}, "no size is called 'bas' - did you mean base?"),
        ("base", {"hiden_size": 64}, r"unknown key 'model_options.hiden_size' - did you mean hidden_size"),
        ("base", {"pad_token_id": 3}, "unknown key 'model_options.pad_token_id'"),
        ("base", {"is_decoder": True}, "unknown key 'model_options.is_decoder'"),
        ("base", {"hidden_size": "wide"}, "'hidden_size' expected int, got str"),
        ("base", {"hidden_size": 100}, "hidden_size 100 cannot be divided among 12 heads"),
        ("distilbert", {"n_heads": 5}, "hidden_size 768 cannot be divided among 5 heads"),
        ("base", {"num_hidden_layers": 0}, "num_hidden_layers is 0 - give an integer"),
        ("base", {"hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5 - give a fraction"),
        ("base", {"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
        ("base", {"hidden_act": "gellu"}, "hidden_act is 'gellu' - did you mean"),
        ("base", {"vocab_size": 64}, "vocab_size is 64 - the tokenizer has 100 tokens"),
    ],
)
def test_mistakes_end_in_one_line(size, options, message):
    with pytest.raises(RecipeError, match=message) as caught:
        make_config(size, BERT, options)
    assert "\n" not in str(caught.value)
