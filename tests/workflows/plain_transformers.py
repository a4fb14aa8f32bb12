"""A process without bertkit: transformers alone computes what a checkpoint predicts.

Reads one JSON request per line, with the `folder` of a checkpoint, the `recipe` that it was trained with and `rows`.
Answers with one list of numbers per row.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

CLASSES = {
    "mlm": transformers.AutoModelForMaskedLM,
    "cola": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
}
MAX_ANSWER_LENGTH = 30  # tokens, as in the recipe


def load(recipe: str, folder: str) -> torch.nn.Module:
    """Load a checkpoint, or its encoder where transformers has no head for the recipe: all but a pooler."""
    auto_class = CLASSES.get(recipe, transformers.AutoModel)
    model, report = auto_class.from_pretrained(folder, output_loading_info=True)
    assert all("pooler" in name for name in report["missing_keys"]), report
    assert not report["mismatched_keys"], report
    return model.eval()


@torch.no_grad()
def answer(recipe: str, folder: str, rows: list[dict]) -> list[list[float]]:
    """Compute for each row what bertkit prints: probabilities, or the score of the best answer."""
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), load(recipe, folder)
    weights, found = load_file(Path(folder, "model.safetensors")), []
    for row in rows:
        if recipe == "cola":
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits[0]
            found.append(logits.softmax(-1))
        elif recipe == "ner":
            batch = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
            words = batch.word_ids()
            firsts = [words.index(number) for number in range(len(row["tokens"]))]
            found.append(model(**batch).logits[0][firsts].softmax(-1).amax(-1))
        elif recipe == "mlm":
            batch = tokenizer(row["text"], return_tensors="pt")
            mask = batch["input_ids"][0].tolist().index(tokenizer.mask_token_id)
            found.append(model(**batch).logits[0, mask].softmax(-1).topk(5).values)
        elif recipe == "choose":
            batch = tokenizer([row["context"]] * len(row["choices"]), row["choices"], padding=True, return_tensors="pt")
            hidden = model(**batch).last_hidden_state[:, 0] @ weights["dense.weight"].T + weights["dense.bias"]
            found.append((hidden.tanh() @ weights["classifier.weight"][0] + weights["classifier.bias"]).softmax(-1))
        else:
            batch = tokenizer(row["question"], row["context"], return_tensors="pt")
            in_context = torch.tensor([part == 1 for part in batch.sequence_ids()])
            states = model(**batch).last_hidden_state[0][in_context]
            start, end = (states @ weights["qa_outputs.weight"].T + weights["qa_outputs.bias"]).unbind(-1)
            spans = torch.ones(len(start), len(end), dtype=torch.bool).triu().tril(MAX_ANSWER_LENGTH - 1)
            found.append((start[:, None] + end)[spans].amax(0, keepdim=True))
    return [values.tolist() for values in found]


if __name__ == "__main__":
    assert "bertkit" not in sys.modules
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(**json.loads(line))) + "\n")
        sys.stdout.flush()
