"""Training steps of every model type, with random weights: bertkit beside the tuned Trainer.

    python -m benchmarks.encoders --tokenizer DIR --data DIR [--types bert,modernbert] [--shapes small,base]

Each type has the shape of MiniLM (6 layers of width 384), four have their base size as well. Engines take turns as in
`benchmarks.speed`. Every case is one line of benchmarks/results/encoders.jsonl; what is there already is not measured
again, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cases import make_case
from benchmarks.harness import Report, measure_once, ratio, read_options, say, table
from benchmarks.load import describe_machine, machine, shape_of
from benchmarks.pictures import Bar, bars
from benchmarks.speed import EPOCHS, ROUNDS, measure, summarize_all
from bertkit.modeling.architectures import ARCHITECTURES, find_architecture
from bertkit.modeling.sizes import find_size

SMALL = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
BASE = {
    "bert": "base",
    "xlm-roberta": "roberta-base",
    "deberta-v2": "deberta-v3-base",
    "modernbert": "modernbert-base",
}
VOCABULARIES = {"xlm-roberta": 250_002}  # of a base size whose published model has another than the named size
MORE: dict[str, dict[str, Any]] = {  # what published models of a type have, and its config by default has not
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {k: v for k, v in find_size("deberta-v3-small").more.items() if k != "intermediate_size"},
}
TASKS = {"cola": "CoLA", "stsb": "STS-B", "ner": "CoNLL-2003"}
SHAPES = {
    "small": "6 layers of width 384, the shape of MiniLM:",
    "base": "Base size, with the published vocabulary:",
}
DRAWN = {
    ("bert", "small"): "BERT 6 x 384 (MiniLM)",
    ("bert", "base"): "BERT base",
    ("modernbert", "base"): "ModernBERT base",
}


def tuned_peer(model_type: str) -> str:
    """Name the Trainer with the best settings for a type: in fp32 where the type overflows in bf16."""
    return "hf-grouped" if find_architecture(model_type).overflows_in_bf16 else "hf-tuned"


def base_fields(model_type: str) -> dict[str, Any]:
    """Return the fields of a config of the type's base size."""
    size = find_size(BASE[model_type])
    sizes = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    return {**sizes, **size.more, "vocab_size": VOCABULARIES.get(model_type, size.vocabulary)}


def small_fields(usual: Any) -> dict[str, Any]:
    """Return the fields of a config of MiniLM's shape; feed-forward layers are as wide as in the usual config."""
    name = "intermediate_size" if hasattr(usual, "intermediate_size") else "hidden_dim"  # DistilBERT's
    fields = {**SMALL, name: SMALL["hidden_size"] * getattr(usual, name) // usual.hidden_size}
    if hasattr(usual, "num_key_value_heads"):
        fields["num_key_value_heads"] = SMALL["num_attention_heads"]
    return {**fields, **MORE.get(usual.model_type, {})}


def make_model(model_type: str, shape: str, tokenizer_folder: Path, folder: Path) -> None:
    """Write an encoder with random weights and the given tokenizer."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config_class = CONFIG_MAPPING[model_type]
    usual = config_class()
    fields = base_fields(model_type) if shape == "base" else {**small_fields(usual), "vocab_size": len(tokenizer)}
    for name, source in {"bos": "cls", "eos": "sep"}.items() | {(name, name) for name in ("pad", "cls", "sep", "mask")}:
        if hasattr(usual, f"{name}_token_id"):
            fields[f"{name}_token_id"] = getattr(tokenizer, f"{source}_token_id")
    config = config_class(**{config_class.attribute_map.get(name, name): value for name, value in fields.items()})
    if find_architecture(model_type).counts_from_padding or model_type == "mpnet":
        config.max_position_embeddings = 512 + config.pad_token_id + 1
    if getattr(config, "type_vocab_size", 1) == 1:  # as the tokenizers of such models have it
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, model_input_names=["input_ids", "attention_mask"])
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure_type(names: dict[str, str], asked: argparse.Namespace) -> Report:
    """Return the figures of both engines for a type, a shape and a task."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(names["type"], names["shape"], asked.tokenizer, folder / "model")
        case = make_case(names["task"], folder / "model", asked.data, limit=asked.limit, epochs=EPOCHS)
        engines = asked.engines.split(",") if asked.engines else ["bertkit", tuned_peer(names["type"])]
        measured = measure(case, engines, asked, folder / "engines")
        shape = shape_of(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8")))
    summed = summarize_all(measured, shape)["engines"]
    figures = ("tokens_per_second", "median_step", "memory_mb", "clean_rounds", "first_step")
    return {
        "layers": shape["layers"],
        "hidden": shape["hidden"],
        "rounds": asked.rounds,
        "engines": {name: {figure: each[figure] for figure in figures} for name, each in summed.items()},
        "machine": machine(asked.threads),
    }


def encoders_part(reports: Sequence[Report]) -> str:
    """Build a table of model types for each shape."""
    newest = max((case["machine"] for case in reports), key=lambda machine: str(machine["date"]))
    parts = [describe_machine(newest)]
    for shape, title in SHAPES.items():
        types: dict[str, dict[str, Report]] = {}
        for case in reports:
            if case["shape"] == shape:
                types.setdefault(case["type"], {})[case["task"]] = case
        columns: dict[str, Any] = {"model type": lambda item, shape=shape: _name(item[0], item[1], shape)}
        for task, name in TASKS.items():
            columns[name] = lambda item, task=task: _speed(item[1][task]) if task in item[1] else ""
        columns["memory"] = lambda item: _memory(list(item[1].values()))
        if types:
            parts.append(f"{title}\n\n" + table(columns, sorted(types.items())))
    return "\n\n".join(parts)


def encoders_picture(reports: Sequence[Report]) -> str:
    """Draw the real tokens per second of bertkit and the tuned Trainer for three encoders."""
    groups = []
    for drawn, title in DRAWN.items():
        for case in reports:
            if (case["type"], case["shape"]) == drawn and case["task"] in TASKS:
                ours, theirs = (each["tokens_per_second"] for each in case["engines"].values())
                own = Bar("bertkit", ours, f"{ours:,.0f} ({ratio(ours, theirs)})", True)
                groups.append(
                    (f"{title}, {TASKS[case['task']]}", [own, Bar("tuned Trainer", theirs, f"{theirs:,.0f}")])
                )
    return bars(groups, "Real tokens per second in training, more is better")


def _name(model_type: str, by_task: dict[str, Report], shape: str) -> str:
    return f"`{model_type}`" + (f" {next(iter(by_task.values()))['layers']} x 768" if shape == "base" else "")


def _speed(case: Report) -> str:
    ours, theirs = (each["tokens_per_second"] for each in case["engines"].values())
    return f"{ours:,.0f} / {theirs:,.0f} = **{ratio(ours, theirs)}**"


def _memory(cases: Sequence[Report]) -> str:
    """Format the range of the tasks' peak memory, relative to the tuned Trainer's."""
    shares = [ours["memory_mb"] / theirs["memory_mb"] for ours, theirs in (case["engines"].values() for case in cases)]
    low, high = f"{min(shares):.2f}", f"{max(shares):.2f}"
    return f"{low}x" if low == high else f"{low} to {high}x"


def main() -> None:
    own = {"tokenizer": Path, "types": ",".join(ARCHITECTURES), "shapes": "small,base", "tasks": ",".join(TASKS)}
    engines = ("", "two to compare; by default bertkit and the tuned Trainer")
    asked = read_options(__doc__, "data limit threads foreign output", **own, **ROUNDS, engines=engines)
    asked.limit = asked.limit or 3200
    for choice in product(asked.shapes.split(","), asked.types.split(","), asked.tasks.split(",")):
        names = dict(zip(("shape", "type", "task"), choice, strict=True))
        if names["shape"] == "small" or names["type"] in BASE:
            say(f"{', '.join(choice)}:")
            case = measure_once(asked.output / "encoders.jsonl", names, partial(measure_type, names, asked))
            print(f"{', '.join(choice)}: {_speed(case)} tokens/s, memory {_memory([case])}", flush=True)


if __name__ == "__main__":
    main()
