"""Training steps of every model type, with random weights: bertkit compared with the tuned Trainer.

    python -m benchmarks.encoders --tokenizer DIR --data DIR [--types bert,modernbert] [--shapes small,base]

Each type has the shape of MiniLM (6 layers of width 384), and four types have their base size as well. Engines take
turns as in `benchmarks.speed`. The same command resumes: each case is a line of benchmarks/results/encoders.jsonl.
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
from benchmarks.harness import Report, format_ratio, log, make_table, measure_once, read_options
from benchmarks.load import describe_machine, get_shape, machine
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
VOCABULARIES = {"xlm-roberta": 250_002}  # if the published model differs from the named size
PUBLISHED: dict[str, dict[str, Any]] = {  # fields of published models that differ from the default config
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {k: v for k, v in find_size("deberta-v3-small").config.items() if k != "intermediate_size"},
}
TASKS = {"cola": "CoLA", "stsb": "STS-B", "ner": "CoNLL-2003"}
SHAPES = {
    "small": "6 layers of width 384, the shape of MiniLM:",
    "base": "Base size, with the published vocabulary:",
}
FIGURES = ("tokens_per_second", "median_step", "memory_mb", "clean_rounds", "first_step")


def get_base_fields(model_type: str) -> dict[str, Any]:
    """Return the fields of a config of the type's base size."""
    size = find_size(BASE[model_type])
    sizes = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    return {**sizes, **size.more, "vocab_size": VOCABULARIES.get(model_type, size.vocabulary)}


def get_small_fields(default: Any) -> dict[str, Any]:
    """Return the fields of a config with MiniLM's shape; feed-forward layers have the ratio of the default config."""
    name = "intermediate_size" if hasattr(default, "intermediate_size") else "hidden_dim"  # DistilBERT
    fields = {**SMALL, name: SMALL["hidden_size"] * getattr(default, name) // default.hidden_size}
    if hasattr(default, "num_key_value_heads"):
        fields["num_key_value_heads"] = SMALL["num_attention_heads"]
    return {**fields, **PUBLISHED.get(default.model_type, {})}


def make_model(model_type: str, shape: str, tokenizer_folder: Path, folder: Path) -> None:
    """Write an encoder with random weights and the given tokenizer."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    fields = {**get_small_fields(default), "vocab_size": len(tokenizer)}
    if shape == "base":
        fields = get_base_fields(model_type)
    for name, source in {"bos": "cls", "eos": "sep"}.items() | {(name, name) for name in ("pad", "cls", "sep", "mask")}:
        if hasattr(default, f"{name}_token_id"):
            fields[f"{name}_token_id"] = getattr(tokenizer, f"{source}_token_id")
    config = config_class(**{config_class.attribute_map.get(name, name): value for name, value in fields.items()})
    if find_architecture(model_type).positions_follow_padding_id or model_type == "mpnet":
        config.max_position_embeddings = 512 + config.pad_token_id + 1
    if getattr(config, "type_vocab_size", 1) == 1:  # as the tokenizers of such models
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, model_input_names=["input_ids", "attention_mask"])
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure_type(names: dict[str, str], options: argparse.Namespace) -> Report:
    """Measure bertkit and the tuned Trainer for a type, a shape and a task."""
    # The tuned Trainer computes in fp32 if the type overflows in bf16.
    peer = "hf-grouped" if find_architecture(names["type"]).overflows_in_bf16 else "hf-tuned"
    engines = options.engines.split(",") if options.engines else ["bertkit", peer]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(names["type"], names["shape"], options.tokenizer, folder / "model")
        case = make_case(names["task"], folder / "model", options.data, limit=options.limit, epochs=EPOCHS)
        measured = measure(case, engines, options, folder / "engines")
        shape = get_shape(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8")))
    summaries = summarize_all(measured, shape)["engines"]
    return {
        "layers": shape["layers"],
        "hidden": shape["hidden"],
        "rounds": options.rounds,
        "engines": {name: {figure: summary[figure] for figure in FIGURES} for name, summary in summaries.items()},
        "machine": machine(options.threads),
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
        rows = []
        for model_type, cases in sorted(types.items()):
            layers = f" {next(iter(cases.values()))['layers']} x 768" if shape == "base" else ""
            speeds = [_format_speed(cases[task]) if task in cases else "" for task in TASKS]
            rows.append([f"`{model_type}`{layers}", *speeds, _format_memory(list(cases.values()))])
        if rows:
            parts.append(f"{title}\n\n" + make_table(["model type", *TASKS.values(), "memory"], rows))
    return "\n\n".join(parts)


def _format_speed(case: Report) -> str:
    ours, theirs = (engine["tokens_per_second"] for engine in case["engines"].values())
    return f"{ours:,.0f} / {theirs:,.0f} = **{format_ratio(ours, theirs)}**"


def _format_memory(cases: Sequence[Report]) -> str:
    """Format the range of the tasks' peak memory, relative to the tuned Trainer."""
    pairs = [[engine["memory_mb"] for engine in case["engines"].values()] for case in cases]
    ratios = sorted(f"{ours / theirs:.2f}" for ours, theirs in pairs)
    return " to ".join(dict.fromkeys((ratios[0], ratios[-1]))) + "x"


def main() -> None:
    settings = {"tokenizer": Path, "types": ",".join(ARCHITECTURES), "shapes": "small,base", "tasks": ",".join(TASKS)}
    engines = ("", "two engines (default: bertkit and the tuned Trainer)")
    options = read_options(__doc__, "data limit threads foreign output", **settings, **ROUNDS, engines=engines)
    options.limit = options.limit or 3200
    for choice in product(options.shapes.split(","), options.types.split(","), options.tasks.split(",")):
        names = dict(zip(("shape", "type", "task"), choice, strict=True))
        if names["shape"] == "small" or names["type"] in BASE:
            log(f"{', '.join(choice)}:")
            case = measure_once(options.output / "encoders.jsonl", names, partial(measure_type, names, options))
            print(f"{', '.join(choice)}: {_format_speed(case)} tokens/s, memory {_format_memory([case])}", flush=True)


if __name__ == "__main__":
    main()
