"""Record what a checkout of bertkit computes, and print what another one computes differently.

    python tools/golden.py record CHECKOUT golden.json [--only cola,mlm]
    python tools/golden.py compare before.json after.json

A record holds the SHA-256 of the weights after each of five steps of tiny runs (every task family and pretraining
objective; as usual, without unpadding, and resumed after a stop), the fingerprints of the demo splits, the `--json`
output of a few commands, and the files of a finished run. It takes about five minutes on two idle cores.

Everything is done by the command line, so a record survives renames inside the package. Records are comparable only
if they were made on the same machine with the same versions of torch and transformers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 5
FINETUNE = "--model demo --data demo --limit 64 --threads 1 --set training.precision=fp32"
PRETRAIN = "--data demo --limit 200 --threads 1 --batch-size 8 --max-length 64 --set training.precision=fp32"
EACH_STEP = (
    f"--set training.steps={STEPS} --set training.warmup_ratio=0 --set training.evaluate_every=1 "
    "--set training.keep_all_checkpoints=true"
)

TRAINED = {
    **{
        name: f"finetune {name} {FINETUNE}"
        for name in (
            *("cola", "sst2", "mnli", "stsb", "ner", "ner-features", "pos", "squad", "squad2", "swag", "wsd", "decide"),
            *("few-shot", "regress", "classify", "rerank", "similarity", "similarity-pairs", "similarity-triples"),
            *("similarity-texts", "late-interaction", "sparse"),
        )
    },
    "cola-lora": f"finetune cola {FINETUNE} --set training.lora={{}}",
    "cola-layers": f"finetune cola {FINETUNE} --set training.layerwise_lr_decay=0.9 --set training.reinit_layers=1",
    "cola-focal": f"finetune cola {FINETUNE} --set training.loss=focal --set training.gradient_accumulation=2",
    "cola-bf16": f"finetune cola {FINETUNE} --set training.precision=bf16",
    "distill": f"distill cola --teacher ../cola-plain/runs/cola --student-layers 1 {FINETUNE[len('--model demo') :]}",
    **{name: f"pretrain {name} {PRETRAIN} --size tiny --tokenizer demo" for name in ["mlm", "span", "albert", "clm"]},
    "bert": f"pretrain bert {PRETRAIN} --size tiny --tokenizer demo --limit 2000 --set training.short_length=null",
    "electra": f"pretrain electra {PRETRAIN} --size electra-small --tokenizer demo",
    "distilbert": f"pretrain distilbert {PRETRAIN} --model demo",
    "tinybert": f"pretrain tinybert {PRETRAIN} --model demo --set options.student_options.num_attention_heads=4",
}
VARIANTS = {"plain": "", "padded": "--set training.unpad=false", "resumed": "--set training.callbacks=[stop.StopOnce]"}

STOP_ONCE = f"""
import os, signal
from pathlib import Path
from transformers import TrainerCallback

class StopOnce(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        stopped = Path("stopped")
        if state.global_step == {STEPS - 2} and not stopped.exists():
            stopped.touch()
            os.kill(os.getpid(), signal.SIGTERM)
"""

# Commands that read the run of the recipe cola, in the folder that holds it.
RUN = "cola-plain/runs/cola"
COMMANDS = {
    "recipes-show": "recipes show cola",
    "check": "check sst2 --model demo --data demo --limit 100 --json",
    "guess": "recipes guess rows.csv",
    "tokenize": "tokenize playing --model demo --json",
    "predict": f"predict {RUN} --text 'The bird sings.' --json",
    "eval": f"eval cola --model {RUN} --data demo --split test --limit 100 --threads 1 --json",
    "compare": f"compare {RUN} cola-padded/runs/cola --json",
    "calibrate": f"calibrate {RUN} --json",
    "errors": f"errors {RUN} --json",
    "explain": f"explain {RUN} --text 'The bird sings.' --json",
    "embed": f"embed --model {RUN} --text 'The bird sings.' --json",
    "similar": f"similar 'A bird sings.' 'A bird flies.' --model {RUN} --json",
    "fill-mask": "fill-mask 'The [MASK] sings.' --model demo --json",
    "runs": "runs show cola-plain/runs/cola --json",
    "dry-run": "finetune cola --model demo --data demo --limit 64 --threads 1 --dry-run --json",
}
ROWS = "text,label\n" + "\n".join(f"text number {number},{'good' if number % 3 else 'bad'}" for number in range(30))

# Keys whose values depend on the clock, the machine, or the folder that the record is made in.
UNSTABLE = {
    *("seconds", "started", "finished", "date", "train_runtime", "step_times", "timed_steps", "notes", "command"),
    *("versions", "platform", "machine", "sha256", "modified", "memory_bytes", "peak_memory_bytes", "disk_bytes"),
    *("bytes", "size"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("output", type=Path)
    recording.add_argument("--only", default="", help="names of runs, separated by commas; no fingerprints or commands")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        restart_in(arguments.checkout.resolve())
        record = make_record([name for name in arguments.only.split(",") if name])
        arguments.output.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    else:
        before, after = (json.loads(file.read_text(encoding="utf-8")) for file in (arguments.before, arguments.after))
        differences = list(list_differences(before, after))
        print(*differences, f"{len(differences)} differences", sep="\n")
        sys.exit(bool(differences))


def restart_in(checkout: Path) -> None:
    """Run this script again, if need be, with the package of a checkout on the path and one thread per process."""
    if os.environ.get("PYTHONPATH") != str(checkout):
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment).returncode)


def make_record(only: list[str]) -> dict[str, Any]:
    """Train, ask and read everything that a record holds, in a temporary folder."""
    # Nearly every run imports these. They are imported once, because each run is a fork of this process.
    import datasets  # noqa: F401
    import sklearn.linear_model
    import transformers
    from transformers import Trainer  # noqa: F401

    print("bertkit of", os.environ["PYTHONPATH"], file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BERTKIT_CACHE"] = str(Path(folder, "cache"))
        os.chdir(folder)
        Path("rows.csv").write_text(ROWS, encoding="utf-8")
        names = only or list(TRAINED)
        runs = [(f"{name}-{variant}", name, variant) for name in names for variant in VARIANTS]
        weights = dict(run_all(train, runs))
        if only:
            return {"weights": weights}
        return {
            "versions": {module.__name__: module.__version__ for module in (transformers, sklearn)},
            "weights": weights,
            "run": {str(file.relative_to(RUN)): describe(file) for file in sorted(Path(RUN).glob("*"))},
            "commands": dict(run_all(ask, list(COMMANDS.items()))),
            "fingerprints": dict(run_all(find_fingerprints, [(name,) for name in list_recipes()])),
        }


def run_all(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Iterator[tuple[str, Any]]:
    """Call a function once per tuple of arguments, two at a time, each in its own process."""
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        pending = [(values[0], pool.apply_async(function, values)) for values in arguments]
        for name, result in pending:
            value = result.get()
            print(f"{name}: {str(value)[:100]}", file=sys.stderr)
            yield name, value


def bertkit(command: str, folder: Path) -> tuple[int, str]:
    """Run a command in a folder, in a fork of this process, and return its exit status and standard output."""
    out, err = (folder / f"{kind}-{os.getpid()}.txt" for kind in ("out", "err"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(folder)
            for number, file in ((1, out.name), (2, err.name)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = ["bertkit", *shlex.split(command)]
            from bertkit.__main__ import main as run

            run()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        finally:
            sys.stdout.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, out.read_text(encoding="utf-8") if status == 0 else err.read_text(encoding="utf-8")[-300:]


def train(folder: str, name: str, variant: str) -> dict[str, str]:
    """Train one run, and return the SHA-256 of its weights after each step and at the end."""
    run_folder = Path(folder)
    run_folder.mkdir()
    (run_folder / "stop.py").write_text(STOP_ONCE, encoding="utf-8")
    command = f"{TRAINED[name]} {EACH_STEP} {VARIANTS[variant]} --output runs/{name}"
    status, printed = bertkit(command, run_folder)
    if (run_folder / "stopped").exists():
        status, printed = bertkit(command, run_folder)
    if status:
        return {"failure": f"{status}: {printed}"}
    files = sorted((run_folder / "runs" / name).rglob("*.safetensors"))
    return {str(file.relative_to(run_folder / "runs" / name)): checksum(file) for file in files}


def ask(name: str, command: str) -> Any:
    """Run a command on the trained runs, and return the JSON (or the text) that it prints."""
    status, printed = bertkit(command, Path.cwd())
    try:
        return {"status": status, "output": stable(json.loads(printed))}
    except json.JSONDecodeError:
        return {"status": status, "output": printed.splitlines()}


def list_recipes() -> list[str]:
    """Return the names of the recipes for fine-tuning."""
    _, printed = bertkit("recipes list", Path.cwd())
    return [line.split()[0] for line in printed.split("Pretraining")[0].splitlines()[1:] if line.strip()]


def find_fingerprints(recipe: str) -> Any:
    """Return the fingerprints of the demo rows of a recipe, as its run records them."""
    folder = Path(f"fingerprints-{recipe}")
    folder.mkdir()
    command = f"finetune {recipe} --model demo --data demo --threads 1 --set training.steps=1 --output run"
    status, printed = bertkit(command, folder)
    if status:
        return f"{status}: {printed}"
    return json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["identity"]["data"]


def describe(file: Path) -> Any:
    """Return what a file of a run holds: JSON as it is, rows as a checksum, a page as its existence."""
    if file.suffix == ".json":
        return stable(json.loads(file.read_text(encoding="utf-8")))
    return checksum(file) if file.suffix in (".safetensors", ".npy", ".jsonl", ".yaml") else "exists"


def stable(value: Any) -> Any:
    """Return a JSON value without what depends on the clock or the machine."""
    if isinstance(value, dict):
        return {
            key: stable(inner)
            for key, inner in value.items()
            if key not in UNSTABLE and not key.endswith("_per_second")
        }
    return [stable(inner) for inner in value] if isinstance(value, list) else value


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def list_differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each value that differs between two records."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from list_differences(before.get(key), after.get(key), f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from list_differences(*pair, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {str(before)[:120]} -> {str(after)[:120]}"


if __name__ == "__main__":
    main()
