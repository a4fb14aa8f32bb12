"""The commands that attack.py attacks: every command of bertkit, every task family and every pretraining recipe."""

from __future__ import annotations

from tests.analysis.test_explanations import RECIPES

TRAIN = "--set training.steps=2 --set training.batch_size=8 --set training.precision=fp32"
TRAIN += " --set training.evaluate_every=1"
FEW = f"--model demo --data data {TRAIN}"
TEXT = "--data demo --limit 120 --steps 2 --batch-size 4 --max-length 32 --set training.precision=fp32"
TEXT += " --set training.evaluate_every=1"
SPACE = "--space training.learning_rate=1e-4,1e-3"
NEW = "--tokenizer demo --size tiny --set training.max_length=32"

PRETRAINED = {
    "albert": NEW,
    "bert": "--model demo --set training.short_length=null --set data.validation_fraction=0.1",
    "clm": NEW,
    "distilbert": "--model demo --set training.short_length=null",
    "electra": "--tokenizer demo --size electra-small --set options.generator_size=0.5 "
    "--set model_options.num_hidden_layers=2 --set model_options.embedding_size=16 --set model_options.hidden_size=32",
    "roberta": f"{NEW} --set training.workers=1",
    "span": "--model demo",
    "tinybert": "--model demo --set options.student_layers=1",
}
"""Recipe of pretraining -> options of its model; `pretrained` has the remaining recipe."""

MADE = {
    "run": f"finetune classify {FEW} -o run",
    "again": f"finetune classify {FEW} --seed 7 -o again",
    "seeds": f"finetune classify {FEW} --seeds 2 -o seeds",
    "sweep": f"sweep classify {FEW} {SPACE} -o sweep",
    "glue": f"glue --model demo --data demo --tasks cola,rte --limit 24 {TRAIN} -o glue",
    "distilled": f"distill classify --teacher run --student-layers 1 --data data {TRAIN} -o distilled",
    "repeated": "rerun run -o repeated",
    "tokenizer": "pretrain tokenizer --data demo --vocabulary-size 300 --limit 200 -o tokenizer",
    "pretrained": f"pretrain mlm --model demo {TEXT} -o pretrained",
    **{f"by-{name}": f"pretrain {name} {model} {TEXT} -o by-{name}" for name, model in PRETRAINED.items()},
    **{
        f"of-{name}": f"finetune {name} --model demo --data demo --limit {300 if name == 'wsd' else 24} {TRAIN} "
        f"-o of-{name}"
        for name in RECIPES
    },
    "ablation": "ablate mlm --space objective=mlm,clm "
    "--finetune 'cola data.limit=24 training.steps=2 data.source=demo' "
    "--data demo --tokenizer tokenizer --steps 2 --seeds 1 --set data.limit=120 --set training.max_length=32 "
    "--set training.batch_size=4 --set model_options.num_hidden_layers=1 --set model_options.hidden_size=32 "
    "--set model_options.num_attention_heads=2 --set model_options.intermediate_size=64 -o ablation",
    "pruned": "prune run --data data --layers 1 --sample 8 -o pruned",
    "exported": "export run --data data -o exported",
    "quantized": "quantize run --data data --sample 8 --margin 0.9 -o quantized",
    "scores": "eval run --data data -o scores",
    "predicted.jsonl": "predict run rows.csv -o predicted.jsonl",
    "predicted.parquet": "predict run rows.csv -o predicted.parquet",
    "vectors.npy": "embed rows.csv --model demo --precision fp32 -o vectors.npy",
    "vectors.parquet": "embed rows.csv --model demo --precision fp32 -o vectors.parquet",
    "index": "search build rows.csv --model demo --precision fp32 -o index",
    "topics": "cluster rows.csv --vectors vectors.npy --clusters 3 --save topics -o clustered.csv",
    "kept.csv": "dedup rows.csv --vectors vectors.npy --threshold 0.95 -o kept.csv --report report.csv",
    "fixed": "check classify --data data --fix fixed",
    "map.html": "map rows.csv --model demo --precision fp32 --svg map.svg -o map.html",
    "found.jsonl": "search query index --file queries.jsonl -k 3 -o found.jsonl",
    "passages.jsonl": "search passages rows.csv --model demo -o passages.jsonl",
    "similar.csv": "similar pairs.csv --model demo -o similar.csv",
    "compared.html": "compare run again -o compared.html",
    "errors.html": "errors run -o errors.html",
    "tests.xml": "test run --limit 8 --report tests.xml",
    "explained.html": "explain run --text 'the good film' --integration-steps 16 -o explained.html",
    "attention.html": "attention show 'the good film' --model demo -o attention.html",
    "heads.html": "attention heads rows.csv --model demo -o heads.html",
    "probe.html": "probe classify --model demo --data data --limit 40 --precision fp32 -o probe.html",
    "table.csv": "runs table run distilled -o table.csv",
    "mine.yaml": "recipes copy cola mine.yaml",
    "guessed.yaml": "recipes guess rows.csv --output guessed.yaml",
}
"""Name of an output -> the command that makes it, in this order."""

COPIES = {"spare": "again", "calibrated": "run", "larger": "index", "smaller": "index"}
CHANGED = {
    "calibrated": "calibrate calibrated --data data",
    "spare": "runs rm spare --yes",
    "larger": "search add larger more.csv",
    "smaller": "search delete smaller --id 3 --id 8",
}
"""Name of a copy -> the command that changes it in place."""

READ = {
    "run": (
        "eval run --data data",
        "predict run rows.csv -o result.csv",
        "errors run",
        "test run --limit 8",
        "compare run again",
        "explain run --errors 1 --integration-steps 8",
        "doctor run",
        "runs show run",
        "runs table run distilled",
        "push run me/run --dry-run",
        "calibrate run --data data",
        "embed rows.csv --model run --precision fp32 -o result.npy",
        f"finetune classify --model run --data data {TRAIN} -o result",
        f"distill classify --teacher run --student-layers 1 --data data {TRAIN} -o result",
        MADE["run"],
    ),
    "calibrated": ("predict calibrated rows.csv -o result.csv", "eval calibrated --data data"),
    "seeds": ("predict seeds rows.csv -o result.csv", "runs show seeds", MADE["seeds"]),
    "sweep": (MADE["sweep"], "runs list sweep"),
    "glue": (MADE["glue"],),
    "pretrained": (
        f"finetune classify --model pretrained --data data {TRAIN} -o result",
        "runs show pretrained",
        "fill-mask 'the [MASK] film' --model pretrained",
    ),
    "exported": ("predict exported rows.csv -o result.csv", "eval exported --data data", "package exported -o result"),
    "quantized": ("predict quantized rows.csv -o result.csv",),
    "index": (
        "search query index --file queries.jsonl -k 3 --verify",
        "search add index more.csv",
        "search eval index judged.jsonl",
    ),
    "topics": ("cluster rows.csv --vectors vectors.npy --assign topics -o result.csv",),
    "tokenizer": (
        f"pretrain mlm --tokenizer tokenizer --size tiny {TEXT} -o result",
        "tokenize rows.csv --model tokenizer",
    ),
    "scores": ("compare scores run",),
    "predicted.jsonl": ("search passages predicted.jsonl --model demo -o result.jsonl",),
    "predicted.parquet": ("dedup predicted.parquet -o result.csv",),
    "vectors.npy": ("cluster rows.csv --vectors vectors.npy --clusters 3 -o result.csv",),
    "vectors.parquet": ("dedup rows.csv --vectors vectors.parquet --threshold 0.9 -o result.csv",),
    "rows.csv": ("recipes guess rows.csv", "errors run --group-by label", "predict run rows.csv -o result.csv"),
    "mine.yaml": ("recipes check mine.yaml", "recipes show mine.yaml"),
    "data": (f"bench classify {FEW} --steps 2", "check classify --data data"),
    **{f"of-{name}": (f"eval of-{name} --data demo --limit 24 --on-overlap mark",) for name in RECIPES},
}
READ["of-mnli"] += ("predict classify rows.csv --zero-shot --model of-mnli --set labels=[good,bad] -o result.csv",)
"""Name of a damaged input -> commands that read it."""

ALONE = ("recipes list", "encoders", "pretrain sizes")
"""Commands that read no output of another command."""

UNCHECKED = {
    *("scores", "tokenizer", "predicted.jsonl", "predicted.parquet", "vectors.npy", "vectors.parquet"),
    *("rows.csv", "mine.yaml", "data"),
}
"""User files without a checksum, which may be read when they are damaged."""
KEEPS = ("run", "distilled", "pretrained", "probe.html", "heads.html", "map.html", "ablation")
"""Outputs whose command reads the cache, which is damaged."""
RESUMES = ("run", "seeds", "sweep", "pretrained", "vectors.npy", "vectors.parquet", "index", "distilled", "glue")
"""Outputs whose command resumes after a kill; the remaining files are damaged."""
SHOWS = ("runs ", "doctor ", "bench ")
"""Commands that print the state of files, or times."""
SLOW = ("export ", "quantize ", "package ", "bench ")
"""Commands that run in one round of ten, because each takes tens of seconds."""


def list_commands() -> list[str]:
    """Return all commands without duplicates, in their order."""
    readers = [command for commands in READ.values() for command in commands]
    return [*dict.fromkeys([*MADE.values(), *CHANGED.values(), *readers, *ALONE])]
