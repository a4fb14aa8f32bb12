"""Blocks: nothing lost, nothing too long, hardly any padding, and documents that cannot see each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.pretraining.packing import block_collator, join_block, pack, pack_blocks
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.tokens.features import find_template
from tests.conftest import make_tokenizer

SPECIAL = 2


def corpus_of(sizes: list[int]) -> TokenizedCorpus:
    """Documents of one sentence each; tokens count on from 5."""
    edges = np.cumsum([0, *sizes])
    total = int(edges[-1])
    starts = np.random.default_rng(1).random(total) < 0.7
    return TokenizedCorpus(5 + np.arange(total, dtype=np.uint16) % 40, starts, edges, np.arange(len(sizes) + 1), {})


def sizes_like_text(count: int = 500) -> list[int]:
    return np.random.default_rng(0).geometric(1 / 60, count).tolist()


@pytest.mark.parametrize("packing", ["documents", "joined", "none"])
@pytest.mark.parametrize("length", [16, 64])
def test_every_token_is_in_one_block_and_no_block_is_too_long(packing, length):
    corpus = corpus_of(sizes_like_text())
    blocks = pack_blocks(corpus, length, SPECIAL, packing)
    positions = np.sort(np.concatenate([np.arange(start, end) for start, end in blocks.chunks]))
    assert positions.tolist() == list(range(len(corpus.tokens)))
    assert blocks.lengths.max() <= length
    sizes = [sum(len(chunk) + SPECIAL for chunk in block.tokens) for block in blocks]
    assert sizes == blocks.lengths.tolist()


def test_no_chunk_spans_two_documents():
    corpus = corpus_of(sizes_like_text())
    edges = corpus.document_edges()
    chunks = pack_blocks(corpus, 32, SPECIAL, "documents").chunks
    first = np.searchsorted(edges, chunks[:, 0], side="right")
    last = np.searchsorted(edges, chunks[:, 1] - 1, side="right")
    assert (first == last).all()


def test_packing_leaves_hardly_any_padding():
    corpus = corpus_of(sizes_like_text(3000))
    packed, alone = (pack_blocks(corpus, 64, SPECIAL, packing) for packing in ("documents", "none"))
    assert packed.lengths.mean() / 64 > 0.97
    assert alone.lengths.mean() / 64 < 0.8


def test_a_document_of_a_block_s_size_fills_one_block():
    blocks = pack_blocks(corpus_of([14, 14, 3]), 16, SPECIAL, "documents")
    assert [len(block.tokens) for block in blocks] == [1, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_bin_is_never_too_full_and_at_most_one_is_half_empty(seed):
    sizes = np.random.default_rng(seed).integers(1, 20, 200).tolist()
    bins = list(pack(sizes, 20))
    assert sorted(number for group in bins for number in group) == list(range(200))
    sums = [sum(sizes[number] for number in group) for group in bins]
    assert max(sums) <= 20
    assert sum(total <= 10 for total in sums) <= 1


def test_special_tokens_stand_around_each_chunk_and_are_not_maskable():
    tokenizer = make_tokenizer()
    block = pack_blocks(corpus_of([3, 4]), 16, SPECIAL, "documents")[0]
    text = join_block(block, find_template(tokenizer, pair=False))
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert text.tokens.tolist() == [cls, 5, 6, 7, sep, cls, 8, 9, 10, 11, sep]
    assert text.maskable.tolist() == [False, *[True] * 3, False, False, *[True] * 4, False]
    assert text.segment_ids.tolist() == [0] * 5 + [1] * 6


@pytest.mark.parametrize("model_type", ["bert", "electra", "roberta", "albert", "distilbert"])
def test_what_is_computed_of_a_document_in_a_block_is_what_is_computed_of_it_alone(model_type):
    import transformers

    from bertkit.modeling.architectures import first_position

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if model_type == "distilbert":
        shape = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        pad_token_id=1 if model_type == "roberta" else 0,
        **shape,
    )
    model = transformers.AutoModel.from_config(config).eval()
    collate = block_collator(tokenizer, first_position=first_position(config))

    def states(block):
        text = join_block(block, find_template(tokenizer, pair=False))
        batch = collate([{"input_ids": text.tokens, "labels": text.tokens, "segment_ids": text.segment_ids}])
        batch.pop("labels")
        with torch.no_grad():
            return model(**batch).last_hidden_state[0]

    corpus = corpus_of([9, 4, 6])
    (packed,) = pack_blocks(corpus, 32, SPECIAL, "documents")
    alone = pack_blocks(corpus, 32, SPECIAL, "none")
    assert torch.cat([states(block) for block in alone]).allclose(states(packed), atol=2e-6)


def test_documents_that_are_joined_do_see_each_other():
    tokenizer = make_tokenizer()
    text = join_block(pack_blocks(corpus_of([9, 4]), 32, SPECIAL, "joined")[0], find_template(tokenizer, pair=False))
    batch = block_collator(tokenizer)(
        [{"input_ids": text.tokens, "labels": text.tokens, "segment_ids": text.segment_ids}]
    )
    assert batch["attention_mask"].tolist() == [[1] * len(text.tokens)]
    assert "position_ids" not in batch


def test_padding_sees_and_is_seen_by_no_text():
    tokenizer = make_tokenizer()
    blocks = pack_blocks(corpus_of([9, 4, 7]), 16, SPECIAL, "documents")
    texts = [join_block(block, find_template(tokenizer, pair=False)) for block in blocks]
    features = [{"input_ids": text.tokens, "labels": text.tokens, "segment_ids": text.segment_ids} for text in texts]
    batch = block_collator(tokenizer, first_position=0)(features)
    pad = batch["input_ids"] == tokenizer.pad_token_id
    assert pad.any()
    mask = batch["attention_mask"][:, 0]
    assert not (mask & (pad[:, :, None] != pad[:, None, :])).any()
