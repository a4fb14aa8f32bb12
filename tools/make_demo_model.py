"""Make the demo model: a tiny BERT that `bertkit pretrain` trains on the demo grammar in minutes (`make demo-model`).

Its text and its tokenizer, of which every word of the grammar is a token, are made here; `tools/demo_model.yaml` is its
recipe.
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

A BERT of less than a million weights, pretrained by `make demo-model` on sentences that a small grammar writes
(`bertkit/data/grammar.py`). It knows a few hundred words and exists so that bertkit can be tried without a network.
**What it scores compares with nothing.**

On held-out sentences it finds {masked_accuracy:.0%} of the masked words. Its perplexity is {perplexity:.1f}, by the
frequencies of words alone {baseline:.1f}.
"""


def make_tokenizer(text: list[str]) -> BertTokenizer:
    """Make every word of the text a token, and every letter, so that any English word can be spelled."""
    words = Counter(word for paragraph in text for word in re.findall("[a-z]+", paragraph.lower()))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokens += [word for word in sorted(words, key=lambda word: (-words[word], word)) if len(word) > 1]
    return BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}, model_max_length=128)


def pretrain(folder: Path) -> dict[str, float]:
    """Write text and tokenizer, run `bertkit pretrain` on them, and give what the model scores."""
    text = list(demo_text(PARAGRAPHS, SEED))
    # a sentence a line, each a document: from the other half of a paraphrase a word could be copied, not understood
    (folder / "text.txt").write_text("\n".join(re.sub(r"(?<=[.?]) ", "\n", each) for each in text), encoding="utf-8")
    make_tokenizer(text).save_pretrained(folder / "tokenizer")
    recipe = Path(__file__).with_name("demo_model.yaml")
    given = ["--data", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--output", folder / "run", "--json"]
    given += ["--set", "data.documents=lines"]
    command = [sys.executable, "-m", "bertkit", "pretrain", recipe, *given]
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
