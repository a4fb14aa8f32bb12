"""Train the demo model: a tiny BERT, pretrained in minutes on paragraphs of the demo grammar (`make demo-model`).

This script generates the text and a tokenizer that has every word of the grammar as one token, and then runs
`bertkit pretrain` with the recipe `tools/demo_model.yaml`. Run again, it writes the same bytes: on one thread, sums of
floating-point numbers are always taken in the same order.
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
from pathlib import Path

from transformers import BertForMaskedLM, BertTokenizer

from bertkit.demo.rows import demo_text

SEED = 1
PARAGRAPHS = 80_000
LETTERS = string.ascii_lowercase + "æœøßłđðþ" + string.digits
SIGNS = string.punctuation + "‘’“”–—…•°£€"
FOLDER = Path(__file__).parent.parent / "bertkit" / "demo" / "model"
CARD = """# The demo model

A BERT with less than a million parameters, pretrained by `make demo-model` on paragraphs that a small grammar writes
(`bertkit/demo/`). It knows a few hundred words and lets you try bertkit without a network.
**Its scores cannot be compared with those of any other model.**

On held-out paragraphs it predicts {masked_accuracy:.0%} of the masked words. Its perplexity is {perplexity:.1f}; that
of word frequencies alone is {baseline:.1f}.
"""


def make_tokenizer(text: list[str]) -> BertTokenizer:
    """Build a tokenizer that has each word of the text as a token, and each letter, to spell all other words."""
    words = Counter(word for paragraph in text for word in re.findall("[a-z]+", paragraph.lower()))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokens += [word for word in sorted(words, key=lambda word: (-words[word], word)) if len(word) > 1]
    return BertTokenizer(vocab={token: index for index, token in enumerate(tokens)}, model_max_length=128)


def pretrain(folder: Path, paragraphs: int) -> dict[str, float]:
    """Write the text and the tokenizer, run `bertkit pretrain` on them, and return the scores of the model."""
    text = list(demo_text(paragraphs, SEED))
    (folder / "text.txt").write_text("\n".join(text), encoding="utf-8")
    make_tokenizer(text).save_pretrained(folder / "tokenizer")
    recipe = Path(__file__).with_name("demo_model.yaml")
    options = ["--data", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--output", folder / "run", "--json"]
    options += ["--set", "data.documents=lines"]
    command = [sys.executable, "-m", "bertkit", "pretrain", recipe, *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, env=one_thread)
    result = json.loads(ended.stdout)
    return {**result["scores"], "baseline": result["baselines"]["token frequencies"]["perplexity"]}


def publish(run: Path, tokenizer: Path, folder: Path) -> None:
    """Write the model of a run with half the bytes, and the dropout that fine-tuning needs and this text did not."""
    model = BertForMaskedLM.from_pretrained(run)
    model.config.update(dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1))
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
