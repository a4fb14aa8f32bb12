"""Train the demo model: a tiny BERT, pretrained on one core on paragraphs of the demo grammar (`make demo-model`).

This script generates the text and a tokenizer that has every word of the grammar as one token, and then runs
`bertkit pretrain` with the recipe `tools/demo/model.yaml`. It always writes the same bytes, because one thread
adds floating-point numbers in a fixed order.
"""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from transformers import BertForMaskedLM, BertTokenizer

from tools.demo.prose import (
    FIRST_TEXT,
    Paragraph,
    WriteParagraph,
    answered,
    answered_or_not,
    commented,
    demo_text,
)
from tools.demo.rows import write_question

PARAGRAPHS = 100_000, 50_000
"""Number of paragraphs in the first and in the second text."""
LETTERS = string.ascii_lowercase + "æœøßłđðþ" + string.digits
SIGNS = string.punctuation + "‘’“”–—…•°£€"
FOLDER = Path(__file__).parents[2] / "bertkit" / "data" / "demo" / "model"
CARD = """# The demo model

A BERT with less than a million parameters, pretrained by `make demo-model` on paragraphs that a small grammar writes
(`tools/demo/`). It knows a few hundred words and lets you try bertkit without a network.
**Its scores cannot be compared with the scores of other models.**

On held-out paragraphs it predicts {masked_accuracy:.0%} of the masked words. Its perplexity is {perplexity:.1f}; the
perplexity of word frequencies is {baseline:.1f}. It predicts for {pair_accuracy:.0%} of the pairs of sentences whether
the second one follows the first.
"""


def looked_for(rng: Random) -> Paragraph:
    """Write a question, and sentences that are each followed by `No`, or by `Yes` and the answer."""
    row = write_question(rng, "train", unanswerable=0.15)
    context, answer = row["context"], (row["answers"]["text"] or [""])[0]
    start, paragraph = (row["answers"]["answer_start"] or [-1])[0], row["question"]
    for match in re.finditer(r"[^.]+\.", context):
        answers = match.start() <= start < match.end()
        paragraph += f" {match[0].strip()} " + (f"Yes , {answer[0].lower()}{answer[1:]}." if answers else "No.")
    return Paragraph(paragraph.replace(" ,", ","), (context, row["question"]))


SECOND_TEXT: dict[WriteParagraph, float] = {
    **FIRST_TEXT,
    commented: 8,
    answered_or_not: 0,
    partial(answered, max_distractors=3): 3,
    looked_for: 7,
}
"""Writer of a paragraph of the second text -> how often it is used."""


def make_tokenizer(text: list[str]) -> BertTokenizer:
    """Build a tokenizer that has each word of the text as a token, and each letter, to spell all other words."""
    words = Counter(word for paragraph in text for word in re.findall("[a-z]+", paragraph.lower()))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokens += [word for word in sorted(words, key=lambda word: (-words[word], word)) if len(word) > 1]
    return BertTokenizer(vocab={token: index for index, token in enumerate(tokens)}, model_max_length=128)


def pretrain(folder: Path, paragraphs: tuple[int, int]) -> dict[str, float]:
    """Write the texts and the tokenizer, run `bertkit pretrain` on one text after the other, and return the scores.

    The first text teaches to compare sentences. Only with that does a model so small learn from the second one to find
    the sentence that answers.
    """
    first, second = paragraphs
    texts = list(demo_text(first, seed=1)), list(demo_text(second, seed=2, writers=SECOND_TEXT))
    make_tokenizer(texts[0]).save_pretrained(folder / "tokenizer")
    run_pretrain(texts[0], folder / "first", "--tokenizer", folder / "tokenizer")
    result = run_pretrain(texts[1], folder / "run", "--model", folder / "first", "--learning-rate", "1e-3")
    return {**result["scores"], "baseline": result["baselines"]["token frequencies"]["perplexity"]}


def run_pretrain(text: list[str], run: Path, *options: object) -> dict[str, Any]:
    """Run `bertkit pretrain` on a text, and return what it prints."""
    source = run.with_suffix(".txt")
    source.write_text("\n".join(text), encoding="utf-8")
    recipe = Path(__file__).with_name("model.yaml")
    command = [sys.executable, "-m", "bertkit", "pretrain", recipe, "--data", source, "--output", run, "--json"]
    command += ["--set", "data.documents=lines", *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env=one_thread)
    printed: dict[str, Any] = json.loads(ended.stdout)
    return printed


def publish(run: Path, tokenizer: Path, folder: Path) -> None:
    """Write the model of a run with half the bytes, without the head for pairs of sentences."""
    model = BertForMaskedLM.from_pretrained(run)
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    BertTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scores = pretrain(Path(name), PARAGRAPHS)
        publish(Path(name, "run"), Path(name, "tokenizer"), FOLDER)
    (FOLDER / "README.md").write_text(CARD.format(**scores), encoding="utf-8")
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
