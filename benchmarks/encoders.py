"""Training steps of every model type, with random weights: bertkit beside the tuned Trainer.

    python -m benchmarks.encoders --tokenizer DIR --data DIR [--types bert,modernbert] [--shapes small,base]

Each type has the shape of MiniLM (6 layers of width 384), four have their base size as well. Engines take turns as in
`benchmarks.speed`. Every case is added to benchmarks/results/encoders.json; what is there already is not measured
again, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cases import make_case, write_results
from benchmarks.load import machine, shape_of
from benchmarks.speed import EPOCHS, add_round_options, measure, say, summarize_all
from bertkit.modeling.architectures import ARCHITECTURES, find_architecture
from bertkit.modeling.sizes import find_size

SMALL = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
BASE = {"bert": "base", "xlm-roberta": "roberta-base", "deberta-v2": "deberta-v3-base", "modernbert": "modernbert-base"}
VOCABULARIES = {"xlm-roberta": 250_002}  # of a base size whose published model has another than the named size
MORE: dict[str, dict[str, Any]] = {  # what published models of a type have, and its config by default has not
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {k: v for k, v in find_size("deberta-v3-small").more.items() if k != "intermediate_size"},
}
TASKS = ("cola", "stsb", "ner")


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


def measure_type(model_type: str, shape: str, task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of both engines for a type, a shape and a task."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(model_type, shape, arguments.tokenizer, folder / "model")
        case = make_case(task, str(folder / "model"), arguments.data, limit=arguments.limit, epochs=EPOCHS)
        engines = ["bertkit", tuned_peer(model_type)]
        measured = measure(case, engines, arguments, folder / "engines")
        config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
    summed = summarize_all(measured, shape_of(config))["engines"]
    figures = ("tokens_per_second", "median_step", "memory_mb", "clean_rounds", "first_step")
    return {
        "type": model_type,
        "shape": shape,
        "task": task,
        "layers": shape_of(config)["layers"],
        "hidden": shape_of(config)["hidden"],
        "rounds": arguments.rounds,
        "engines": {name: {figure: each[figure] for figure in figures} for name, each in summed.items()},
        "machine": machine(arguments.threads),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer of all models")
    parser.add_argument("--data", type=Path, required=True, help="folder with cola, stsb and conll2003")
    parser.add_argument("--types", default=",".join(ARCHITECTURES), help="model types; all that bertkit knows")
    parser.add_argument("--shapes", default="small,base")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--limit", type=int, default=3200, help="rows of each split")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every engine; all cores by default")
    add_round_options(parser)
    arguments = parser.parse_args()
    file = arguments.output / "encoders.json"
    cases: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.exists() else []
    for shape, model_type, task in product(
        arguments.shapes.split(","), arguments.types.split(","), arguments.tasks.split(",")
    ):
        is_there = any((each["type"], each["shape"], each["task"]) == (model_type, shape, task) for each in cases)
        if is_there or (shape == "base" and model_type not in BASE):
            continue
        say(f"{model_type}, {shape}, {task}:")
        cases.append(measure_type(model_type, shape, task, arguments))
        write_results({"cases": cases}, file)
        show(cases[-1])


def show(case: dict[str, Any]) -> None:
    """Print one line."""
    (ours, theirs) = case["engines"].values()
    ratio, memory = (ours[name] / theirs[name] for name in ("tokens_per_second", "memory_mb"))
    print(
        f"{case['type']:20} {case['shape']:6} {case['task']:5} {ours['tokens_per_second']:8,.0f} /"
        f" {theirs['tokens_per_second']:7,.0f} tokens/s = {ratio:5.2f}x {ours['memory_mb']:6,} /"
        f" {theirs['memory_mb']:6,} MB = {memory:4.2f}  clean: {ours['clean_rounds']} and {theirs['clean_rounds']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
