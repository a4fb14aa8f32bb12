"""Train the demo model: a tiny BERT, pretrained in minutes on sentences of the demo grammar (`make demo-model`).

This script generates the text and a tokenizer that has every word of the grammar as one token, and then runs
`bertkit pretrain` with the recipe `tools/demo_model.yaml`.
"""

from __future__ import annotations

import json
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
PARAGRAPHS = 100_000
LETTERS = string.ascii_lowercase + "æœøßłđðþ" + string.digits
SIGNS = string.punctuation + "‘’“”–—…•°£€"
FOLDER = Path(__file__).parent.parent / "bertkit" / "demo" / "model"
CARD = """# The demo model

A BERT with less than a million parameters, pretrained by `make demo-model` on sentences that a small grammar generates
(`bertkit/demo/grammar.py`). It knows a few hundred words and lets you try bertkit without a network.
**Its scores cannot be compared with those of any other model.**

On held-out sentences it predicts {masked_accuracy:.0%} of the masked words. Its perplexity is {perplexity:.1f}; that of
word frequencies alone is {baseline:.1f}.
"""


def make_tokenizer(text: list[str]) -> BertTokenizer:
    """Build a tokenizer that has each word of the text as a token, and each letter, to spell all other words."""
    words = Counter(word for paragraph in text for word in re.findall("[a-z]+", paragraph.lower()))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokens += [word for word in sorted(words, key=lambda word: (-words[word], word)) if len(word) > 1]
    return BertTokenizer(vocab={token: index for index, token in enumerate(tokens)}, model_max_length=128)


def pretrain(folder: Path) -> dict[str, float]:
    """Write the text and the tokenizer, run `bertkit pretrain` on them, and return the scores of the model."""
    text = list(demo_text(PARAGRAPHS, SEED))
    # One sentence per line and document: a model could copy a masked word from the other half of a paraphrase.
    lines = (re.sub(r"(?<=[.?]) ", "\n", paragraph) for paragraph in text)
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    make_tokenizer(text).save_pretrained(folder / "tokenizer")
    recipe = Path(__file__).with_name("demo_model.yaml")
    options = ["--data", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--output", folder / "run", "--json"]
    options += ["--set", "data.documents=lines"]
    command = [sys.executable, "-m", "bertkit", "pretrain", recipe, *options]
    ended = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(ended.stdout)
    return {**result["scores"], "baseline": result["baseline"]["perplexity"]}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scores = pretrain(Path(name))
        model = BertForMaskedLM.from_pretrained(Path(name, "run"))
        model.half().save_pretrained(FOLDER)
        BertTokenizer.from_pretrained(Path(name, "tokenizer")).save_pretrained(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)
    (FOLDER / "README.md").write_text(CARD.format(**scores), encoding="utf-8")
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
