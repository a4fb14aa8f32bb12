"""Toy texts for objectives: words that follow each other by a rule, and setups of tiny models."""

import math

import numpy as np

from bertkit.pretraining.objectives import PretrainContext
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.recipe.records import PretrainRecipe
from tests.conftest import WORDS, make_tokenizer

LENGTH = 32


def make_corpus(documents=60, seed=0, vocabulary="none", one_sentence=()):
    """Documents of 6 sentences, in which each word is followed by the next of a list.

    The list is the whole vocabulary, or a share of it: one of four that `documents` take in turn, or one for each of
    the six `sentences` of a document.
    """
    random = np.random.default_rng(seed)
    tokenizer = make_tokenizer()
    words = np.array(tokenizer.convert_tokens_to_ids([word for group in WORDS.values() for word in group]))
    tokens, sentences, edges = [], [0], [0]
    for number in range(documents):
        first = int(random.integers(len(words)))
        for sentence in range(1 if number in one_sentence else 6):
            shares = {"none": [words], "documents": np.array_split(words, 4), "sentences": np.array_split(words, 6)}
            share = {"none": 0, "documents": number % 4, "sentences": sentence}[vocabulary]
            choices = shares[vocabulary][share]
            size = int(random.integers(4, 8))
            tokens += [int(choices[(first + step) % len(choices)]) for step in range(size)]
            first += size
            sentences.append(len(tokens))
        edges.append(len(sentences) - 1)
    starts = np.ones(len(tokens), bool)
    return TokenizedCorpus(np.array(tokens, np.uint16), starts, np.array(sentences), np.array(edges), {})


def make_setup(objective, model_type="bert", options=None, model_folder=None, **training):
    """Build the setup of a tiny model without dropout."""
    from transformers import CONFIG_MAPPING

    tokenizer = make_tokenizer()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    more = {"albert": {"embedding_size": 16}, "electra": {"embedding_size": 16, "num_attention_heads": 4}}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0}
    config = CONFIG_MAPPING[model_type](
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        **{**shape, **more.get(model_type, {})},
        **dropout,
        initializer_range=0.1,
    )
    recipe = PretrainRecipe(
        name="toy", objective=objective, options=options or {}, training={"max_length": LENGTH, **training}
    )
    return PretrainContext(recipe, tokenizer, model_folder, config)


def make_features(objective, context, corpus, epoch=0, progress=0.0):
    """Build the features of an epoch."""
    examples = objective.examples(corpus, LENGTH, context, epoch)
    return [
        objective.feature(examples[number], progress, np.random.default_rng((1, epoch, number)), context)
        for number in range(len(examples))
    ]


def train(objective, context, corpus, steps, rate=3e-3, rows=16):
    """Train a model for some steps by the losses and counts of its objective."""
    import torch

    torch.manual_seed(0)
    model = objective.load_model(context).train()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    collate = objective.collator(context)
    epoch, features = 0, []
    for _ in range(steps):
        if len(features) < rows:
            features, epoch = make_features(objective, context, corpus, epoch), epoch + 1
            np.random.default_rng(epoch).shuffle(features)
        batch, features = collate(features[:rows]), features[rows:]
        sums, counts = objective.sum_losses(model, batch), objective.count(batch)
        optimizer.zero_grad()
        sum(objective.LOSS_TERMS[name] * sums[name] / counts[name] for name in sums).backward()
        optimizer.step()
    return model.eval()


def measure(objective, context, model, corpus):
    """Score held-out text."""
    import torch

    with torch.inference_mode():
        batch = objective.collator(context)(make_features(objective, context, corpus, progress=None))
        return objective.score(objective.accumulate(model, batch))


def assert_toy_pairs_are_learned(objective, vocabulary):
    """Check that a tiny model learns both terms of an objective over pairs, on held-out text too."""
    context = make_setup(objective.__name__.rpartition(".")[2])
    model = train(objective, context, make_corpus(vocabulary=vocabulary), steps=200)
    held_out = make_corpus(30, seed=9, vocabulary=vocabulary)
    scores = measure(objective, context, model, held_out)
    shares = np.bincount(held_out.tokens) / len(held_out.tokens)
    unigram = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert math.log(scores["perplexity"]) < unigram - 0.5
    assert scores["pair_accuracy"] > 0.75
