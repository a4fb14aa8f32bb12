"""Vectors of texts, compared with those of a plain forward pass."""

from __future__ import annotations

import pickle
import shutil
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.modeling.sentence.folder import Normalize, SentenceModules, write_modules
from bertkit.progress import Silent
from bertkit.vectors.batches import split_texts
from bertkit.vectors.embedder import Embedder
from tests.conftest import make_tokenizer

TEXTS = ["the cat sleeps", "a dog", "the old man with the red hat sees a bird in the garden"]


def plain(folder, text):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0).numpy()


def test_a_vector_is_the_mean_of_the_tokens(tiny_model):
    vectors = Embedder(str(tiny_model), precision="fp32").encode(TEXTS)
    np.testing.assert_allclose(vectors, [plain(tiny_model, text) for text in TEXTS], atol=1e-6)


def test_texts_too_many_to_be_sorted_at_once_have_the_same_vectors(tiny_model, monkeypatch):
    class PruningPlan(Silent):
        done = 0

        def update(self, done, figures):
            self.done = done

    embedder, progress = Embedder(str(tiny_model), precision="fp32"), PruningPlan()
    whole = embedder.encode(TEXTS)
    monkeypatch.setattr("bertkit.vectors.embedder.split_texts", partial(split_texts, max_size=20))
    np.testing.assert_allclose(embedder.encode(TEXTS, progress=progress), whole, atol=1e-6)
    assert progress.done == len(TEXTS)


def test_a_batch_gets_a_column_and_a_copy_in_another_process_loads_the_model_itself(tiny_model):
    embedder = Embedder(str(tiny_model), precision="fp32")
    batch = embedder({"id": [1, 2, 3], "text": np.array(TEXTS)})
    copy = pickle.loads(pickle.dumps(embedder))
    assert "_loaded" not in vars(copy)
    np.testing.assert_array_equal(copy(batch)["embedding"], batch["embedding"])


def test_a_prompt_that_the_model_lacks_is_refused(tiny_model):
    with pytest.raises(UsageError, match="no prompt 'quer'"):
        Embedder(str(tiny_model), prompt="quer").encode(TEXTS)


@pytest.fixture(scope="module")
def sentence_model(tiny_model, tmp_path_factory):
    """The tiny model in a folder of sentence-transformers."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("sentence") / "model")
    prompts = {"query": "the song is ", "document": ""}
    write_modules(folder, SentenceModules(transforms=(Normalize(),), prompts=prompts, max_length=16), width=32)
    return folder


def test_prompts_stand_before_texts(sentence_model, tiny_model):
    named, written = Embedder(str(sentence_model), prompt="query"), Embedder(str(sentence_model), prefix="the song is ")
    vector = plain(tiny_model, "the song is the cat sleeps")
    for embedder in (named, written, Embedder(str(sentence_model)).with_prompt("query")):
        embedder = replace(embedder, precision="fp32")
        np.testing.assert_allclose(embedder.encode(TEXTS[:1])[0], vector / np.linalg.norm(vector), atol=1e-6)
    with pytest.raises(UsageError, match="the name of a prompt and its text"):
        Embedder(str(sentence_model), prompt="query", prefix="query: ").encode(TEXTS)


def test_several_layers_are_pooled(tiny_model):
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_model), AutoModel.from_pretrained(tiny_model).eval()
    with torch.no_grad():
        states = model(**tokenizer(TEXTS[0], return_tensors="pt"), output_hidden_states=True).hidden_states
    expected = torch.cat([states[1], states[2]], dim=-1)[0].mean(dim=0)
    embedder = Embedder(str(tiny_model), layers="concat_last_2", precision="fp32")
    np.testing.assert_allclose(embedder.encode(TEXTS)[0], expected, atol=1e-6)


def test_what_must_be_equal_is_described(sentence_model, tiny_model):
    described = Embedder(str(sentence_model), pooling="cls", dimension=8).describe()
    assert described == {
        "model": Embedder(str(tiny_model)).fingerprint,
        "pooling": ["cls"],
        "layers": "last",
        "normalize": True,
        "truncate_dim": 8,
        "max_length": 16,
        "prompts": {"query": "the song is ", "document": ""},
        "include_prompt": True,
    }


def test_a_decoder_is_taken_from_a_folder_of_sentence_transformers_alone(tmp_path):
    from transformers import Qwen3Config, Qwen3Model

    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0}
    torch.manual_seed(0)
    Qwen3Model(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads)).save_pretrained(tmp_path)
    tokenizer.padding_side = "left"  # as Qwen3-Embedding has it
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a model of type 'qwen3' is not an encoder"):
        Embedder(str(tmp_path)).encode(TEXTS)
    write_modules(tmp_path, SentenceModules(pooling=("lasttoken",), transforms=(Normalize(),)), width=32)
    model, expected = AutoModel.from_pretrained(tmp_path).eval(), []
    for text in TEXTS:
        with torch.no_grad():
            expected.append(model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1].numpy())
    expected = np.array(expected) / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(Embedder(str(tmp_path), precision="fp32").encode(TEXTS), expected, atol=1e-6)


def test_an_encoder_may_be_in_a_subfolder(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "0_Transformer")
    write_modules(tmp_path, SentenceModules(), width=32)
    modules = (tmp_path / "modules.json").read_text().replace('"path": ""', '"path": "0_Transformer"')
    (tmp_path / "modules.json").write_text(modules)
    old, new = (Embedder(str(folder), precision="fp32") for folder in (tmp_path, tiny_model))
    np.testing.assert_array_equal(old.encode(TEXTS), new.encode(TEXTS))
    assert old.fingerprint == new.fingerprint


@pytest.mark.parametrize("texts", [["fine", None], ["fine", 3.5]])
def test_what_is_not_text_is_refused(tiny_model, texts):
    with pytest.raises(DataError, match=r"text 2 is .*, not text"):
        Embedder(str(tiny_model))({"text": texts})


def test_vectors_are_finite_or_there_are_none(tiny_model, monkeypatch):
    embedder = Embedder(str(tiny_model))
    monkeypatch.setattr(Embedder, "_encode_group", lambda *_: np.array([[1.0], [np.nan], [1.0]]))
    with pytest.raises(ModelError, match="the vector of text 2 is not finite"):
        embedder.encode(TEXTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 65}, "a length of 65 tokens .* the model reads 64 tokens"),
        ({"dimension": 33}, "a dimension of 33 - the model's vectors have 32"),
        ({"max_length": 6, "prefix": "the song is very "}, "leaves none for a text"),
        ({"layers": "mean_last_3"}, "the last 3 layers: the model has 2"),
    ],
)
def test_options_that_the_model_cannot_have_are_refused(tiny_model, options, message):
    with pytest.raises(UsageError, match=message):
        Embedder(str(tiny_model), **options).encode(TEXTS)


FOLDERS = {
    **{
        mode: {"pooling_mode": mode}
        for mode in ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    },
    "two modes": {"pooling_mode": ("cls", "mean")},
    "dense": {"dense": [(32, 16, {}), (16, 24, {"bias": False, "activation_function": torch.nn.Identity()})]},
    "residual": {"dense": [(32, 32, {"use_residual": True}), (32, 8, {"use_residual": True})]},
    "normalized": {"normalize": True},
    "short": {"max_seq_length": 6},
    "lower case": {"do_lower_case": True},
    "prompt": {"prompts": {"query": "the song is "}, "default_prompt_name": "query"},
    "prompt that is not pooled": {"prompts": {"query": "the song is "}, "include_prompt": False},
    "first token of the text": {"prompts": {"query": "the "}, "include_prompt": False, "pooling_mode": "cls"},
    "Matryoshka": {"normalize": True, "truncate_dim": 8},
    "decoder": {"decoder": True, "pooling_mode": "lasttoken"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(name, tiny_model, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.base.modules import Normalize as LibraryNormalize
    from sentence_transformers.sentence_transformer.modules import Pooling

    how = dict(FOLDERS[name])
    torch.manual_seed(0)
    if how.pop("decoder", False):
        from transformers import Qwen3Config, Qwen3Model

        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = Qwen3Config(vocab_size=100, **sizes, num_key_value_heads=1, head_dim=16, pad_token_id=0)
        tiny_model = shutil.copytree(tiny_model, tmp_path / "decoder")
        Qwen3Model(config).save_pretrained(tiny_model)
    first = {name: how.pop(name) for name in ("max_seq_length", "do_lower_case") if name in how}
    pooling = {name: how.pop(name) for name in ("pooling_mode", "include_prompt") if name in how}
    modules = [Transformer(str(tiny_model), **first), Pooling(32, **pooling)]
    modules += [Dense(inputs, outputs, **rest) for inputs, outputs, rest in how.pop("dense", [])]
    modules += [LibraryNormalize()] if how.pop("normalize", False) else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = SentenceTransformer(modules=modules, device="cpu", **how)
        reference.save(str(tmp_path / "model"))
        reference = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    prompt = "query" if "prompts" in how else None
    texts = ["The Film IS good", "", "a", "a very very very dull song and a weak book " * 4]
    vectors = Embedder(str(tmp_path / "model"), prompt=prompt, precision="fp32").encode(texts)
    # those of the library are truncated without having length 1 again
    expected = reference.encode(texts, prompt_name=prompt, normalize_embeddings="truncate_dim" in how)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
