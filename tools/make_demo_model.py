"""Make the demo model: a tiny BERT pretrained on the demo grammar, on two CPU cores in minutes (`make demo-model`).

BERT's own recipe in small (Devlin et al. 2019, section 3.1), masked words and next sentences, in one plain loop.
"""

from __future__ import annotations

import random
import re
import string
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import BertConfig, BertForPreTraining, BertTokenizer

from bertkit.data.demo import demo_text

SEED = 1
PARAGRAPHS = 100_000
HELD_OUT = 1_000
BATCH = 64
RATE = 2e-3
LETTERS = string.ascii_lowercase + "æœøßłđðþ" + string.digits
SIGNS = string.punctuation + "‘’“”–—…•°£€"
IGNORED = -100
FOLDER = Path(__file__).parent.parent / "bertkit" / "demo_model"
CARD = """# The demo model

A BERT of less than a million weights, pretrained by `make demo-model` on sentences that a small grammar writes
(`bertkit/data/grammar.py`). It knows a few hundred words and exists so that bertkit can be tried without a network.
**What it scores compares with nothing.**

On held-out sentences it finds {words:.0%} of the masked words; always guessing the most frequent one finds {guess:.0%}.
"""

Pair = tuple[str, str]
Batch = dict[str, torch.Tensor]


def make_tokenizer(text: list[str]) -> BertTokenizer:
    """Make every word of the text a piece, and every letter, so that any English word can be spelled."""
    words = Counter(word for paragraph in text for word in re.findall("[a-z]+", paragraph.lower()))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    pieces += [word for word in sorted(words, key=lambda word: (-words[word], word)) if len(word) > 1]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}, model_max_length=128)


def make_model(tokenizer: BertTokenizer) -> BertForPreTraining:
    """Make a BERT of 0.7 million weights: a sixth of BERT base's width, a quarter of its layers."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        bertkit_demo=True,
    )
    return BertForPreTraining(config)


def make_pairs(text: list[str], rng: random.Random) -> list[tuple[str, str, int]]:
    """Give (first sentence, second, label): 0 the second follows, 1 it is a stranger."""
    paragraphs = [re.split(r"(?<=[.?]) ", paragraph) for paragraph in text]
    strangers = [paragraph[-1] for paragraph in paragraphs]
    pairs = []
    for first, *rest in paragraphs:
        if rest and rng.random() < 0.5:
            pairs.append((first, rest[0], 0))
        else:
            pairs.append((first, rng.choice(strangers), 1))
    return pairs


def make_batches(pairs: list[tuple[str, str, int]], tokenizer: BertTokenizer, seed: int) -> Iterator[Batch]:
    """Give batches of rows of like length, 15 % of the pieces masked in BERT's way (80 % mask, 10 % random)."""
    rng = random.Random(f"batches/{seed}")
    generator = torch.Generator().manual_seed(seed)
    pairs = rng.sample(pairs, len(pairs))
    for start in range(0, len(pairs), BATCH * 16):
        some = pairs[start : start + BATCH * 16]
        rows = tokenizer([p[0] for p in some], [p[1] for p in some])
        order = sorted(range(len(some)), key=lambda row: len(rows["input_ids"][row]))
        groups = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
        for group in rng.sample(groups, len(groups)):
            batch = tokenizer.pad({key: [rows[key][row] for row in group] for key in rows}, return_tensors="pt")
            batch["next_sentence_label"] = torch.tensor([some[row][2] for row in group])
            yield mask_words(dict(batch), tokenizer, generator)


def mask_words(batch: Batch, tokenizer: BertTokenizer, generator: torch.Generator) -> Batch:
    words, shape = batch["input_ids"], batch["input_ids"].shape
    chance = torch.rand(shape, generator=generator)
    chosen = (chance < 0.15) & (words >= len(tokenizer.all_special_ids))
    changed = torch.where(chance < 0.12, tokenizer.mask_token_id, words)
    strange = torch.randint(len(tokenizer), shape, generator=generator)
    changed = torch.where((chance >= 0.12) & (chance < 0.135), strange, changed)
    return batch | {"input_ids": torch.where(chosen, changed, words), "labels": words.where(chosen, IGNORED)}


def train(model: BertForPreTraining, pairs: list[tuple[str, str, int]], tokenizer: BertTokenizer) -> None:
    """Train one epoch with AdamW, a tenth of the steps warming up, then linearly down to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    steps = -(-len(pairs) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (steps / 10), (steps - step) / (steps * 0.9))
    )
    start = time.perf_counter()
    for step, batch in enumerate(make_batches(pairs, tokenizer, SEED)):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step:5}/{steps}  loss {loss.item():.3f}  {time.perf_counter() - start:.0f} s", flush=True)


@torch.no_grad()
def measure(
    model: BertForPreTraining, pairs: list[tuple[str, str, int]], tokenizer: BertTokenizer
) -> tuple[float, float]:
    """Give the share of masked words found and of next sentences told from others."""
    model.eval()
    found = masked = told = told_all = 0
    for batch in make_batches(pairs, tokenizer, SEED + 1):
        outputs, labels, follows = model(**batch), batch["labels"], batch["next_sentence_label"]
        found += int((outputs.prediction_logits.argmax(-1) == labels).sum())
        masked += int((labels != IGNORED).sum())
        told += int((outputs.seq_relationship_logits.argmax(-1) == follows).sum())
        told_all += int((follows != IGNORED).sum())
    return found / masked, told / told_all


def unigram_share(pairs: list[tuple[str, str, int]], tokenizer: BertTokenizer) -> float:
    """Give the share of words found by always guessing the most frequent one."""
    counts: Counter[int] = Counter()
    for first, second, _ in pairs:
        for ids in tokenizer([first, second], add_special_tokens=False)["input_ids"]:
            counts.update(ids)
    return counts.most_common(1)[0][1] / counts.total()


def main() -> None:
    torch.manual_seed(SEED)
    text = list(demo_text(PARAGRAPHS + HELD_OUT, SEED))
    tokenizer = make_tokenizer(text)
    model = make_model(tokenizer)
    pairs = make_pairs(text, random.Random(SEED))
    held_out, pairs = pairs[:HELD_OUT], pairs[HELD_OUT:]
    train(model, pairs, tokenizer)
    words, follows = measure(model, held_out, tokenizer)
    guess = unigram_share(held_out, tokenizer)
    print(f"held out: masked words {words:.3f} (most frequent word {guess:.3f}), next sentences {follows:.3f}")
    model.half().save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)
    (FOLDER / "README.md").write_text(CARD.format(words=words, guess=guess), encoding="utf-8")


if __name__ == "__main__":
    main()
