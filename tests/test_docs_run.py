"""Every command and every block of Python in the docs runs, page by page and in the order of the page.

A page is a folder that begins with the files its text takes for granted. A block with a `title` becomes the file of
that name. Runs are short: few rows and steps, and demo data or the demo model where a command would ask the hub.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import bertkit
from bertkit.recipe.load import load_recipe, recipe_names
from bertkit.storage.hub import find_model
from bertkit.workflows import api
from tests.conftest import toy_rows, write_csv, write_jsonl

ROOT = Path(__file__).parent.parent
DOCS = (page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md") if page.name != "cli.md")
PAGES = ["README.md", *sorted(DOCS)]

NOT_RUN = {
    "pip install": "installs packages; the wheel is built and installed by hand before a release",
    "make ": "runs this test",
    "source ": "of the shell",
    "#": "a comment",
    "bertkit recipes copy cola recipes/": "writes into a clone of bertkit",
    "bertkit recipes check recipes/": "checks what the line above has written",
    "bertkit serve runs": "serves until it is stopped; tests/workflows/test_serve.py does that",
    "cd packages": "changes the folder; tests/workflows/test_package.py runs packages",
    "python -m bertkit predict model": "the same",
    "npm ": "needs the registry of npm; tests/test_browser.py opens the page where the packages are",
    "python -m http.server": "serves until it is stopped; the same",
    "cd images": "serves until it is stopped; tests/workflows/test_package.py does that",
    "docker ": "needs a daemon; tests/workflows/test_package.py runs what an image has",
    "python tools/attack": "runs for minutes; tests/test_attacks.py runs its parts",
    "curl ": "asks the server of the line above",
    "BERTKIT_RUNS=": "serves until it is stopped",
    "srun ": "needs Slurm",
    "torchrun --nnodes 2": "needs two machines",
    "accelerate launch": "sets the same variables as torchrun",
    "bertkit push runs/": "sends a run to the hub; tests/workflows/test_push.py does that",
    "bertkit predict YOUR_NAME/cola": "asks the hub for a pushed model; tests/workflows/test_push.py does that",
    "bertkit eval YOUR_NAME/cola": "the same",
    "bertkit eval --model YOUR_NAME/cola": "the same",
    "hf ": "a command of huggingface_hub, which asks the hub",
    "bertkit pretrain tokenizer --recipe mlm": "reads the text of a recipe, which is on the hub",
    "bertkit finetune classify --data stanfordnlp/imdb": "reads rows of the hub; tests/cli/test_hub.py does that",
    "bertkit eval xnli": "reads rows of the hub; tests/workflows/test_evaluate.py scores languages of a folder",
    "bertkit eval classify --model runs/classify --data 'rows/": "the same; reads a folder per language",
    "bertkit glue --model google-bert/bert-base-uncased": "reads all of GLUE from the hub",
    "bertkit probe depth": "reads trees; tests/analysis/test_probe_tasks.py has some",
    "bertkit finetune cola --data nyu-mll/glue": "reads rows of the hub; tests/cli/test_hub.py does that",
}
"""Beginning of a line -> why no test runs it."""

ALTERNATIVES = {"docs/own-data.md", "docs/pretraining.md", "docs/recipes.md"}
"""Pages whose commands are not one session: some of them write to the same folder."""

GATES = {"--fail-if-worse", "--require"}

SMALL_MODEL = ["--set", "model_options={num_hidden_layers: 1, hidden_size: 96, num_attention_heads: 3}"]

QUICK = {"README.md", "docs/extending.md"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    return [Block(*block) for block in found]


def write_files(folder: Path) -> None:
    """Write what the pages take for granted."""
    reviews = [{"review": row["text"], "stars": "5" if row["label"] == "good" else "1"} for row in toy_rows(60, seed=1)]
    write_csv(folder / "reviews.csv", reviews)
    write_csv(folder / "new.csv", reviews[:5])
    for name, count, seed in (("heldout.csv", 30, 8), ("reviews-2.csv", 40, 6), ("reviews-3.csv", 30, 7)):
        more = toy_rows(count, seed)
        new = [{"review": row["text"], "stars": "5" if row["label"] == "good" else "1"} for row in more]
        old = [{name: row[name] for name in ("review", "stars")} for row in reviews] if name == "reviews-2.csv" else []
        write_csv(folder / name, [*old, *new])
    for name in ("big.csv", "small.csv"):
        write_csv(folder / name, toy_rows(60, seed=2))
    write_csv(folder / "topics.csv", [{"text": row["text"], "label": "fun|short"} for row in toy_rows(40, seed=5)])
    paragraphs = ["\n".join(row["text"].capitalize() + "." for row in toy_rows(6, seed)) for seed in range(400)]
    (folder / "books").mkdir()
    for name in ("text.txt", "more.txt", "books/one.txt"):
        (folder / name).write_text("\n\n".join(paragraphs), encoding="utf-8")
    for name in ("news.jsonl", "texts.jsonl"):
        write_jsonl(folder / name, [{"body": text} for text in paragraphs])
    (folder / "texts.txt").write_text("The dog [MASK].\n", encoding="utf-8")
    (folder / "sentences.txt").write_text("Anna left Oslo.\nThe dog sleeps.\n", encoding="utf-8")
    (folder / "share_right.py").write_text("", encoding="utf-8")
    for name in ("my_bert", "runs/teacher"):
        shutil.copytree(find_model("demo"), folder / name)
    save_classifier(folder / "their_model")
    (folder / "my_cola").mkdir()
    cola = [{"sentence": row["text"], "label": int(row["label"] == "good")} for row in toy_rows(60, seed=3)]
    for split in ("train", "validation"):
        write_csv(folder / "my_cola" / f"{split}.csv", cola)
    words = ["Anna PROPN NNP", "sleeps VERB VBZ", ". PUNCT ."]
    lines = [f"{n}\t{w.split()[0]}\t_\t{w.split()[1]}\t{w.split()[2]}" + "\t_" * 5 for n, w in enumerate(words, 1)]
    (folder / "UD_English-EWT").mkdir()
    for name in ("en_ewt-ud-train", "en_ewt-ud-dev"):
        (folder / "UD_English-EWT" / f"{name}.conllu").write_text("\n".join([*lines, "", ""]) * 8, encoding="utf-8")


def save_classifier(folder: Path) -> None:
    """Save a model with a head for two classes that its checkpoint does not name."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    demo = find_model("demo")
    AutoModelForSequenceClassification.from_pretrained(demo).save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo).save_pretrained(folder)


def shorten(words: list[str], *, fresh: bool) -> list[str]:
    """Return a command with few rows and steps, and with demo data or model where it would ask the hub."""
    words = ["demo" if word == "google-bert/bert-base-uncased" else word for word in words]
    words = ["1s" if word == "2h" else re.sub("train_limit=.*,.*", "train_limit=10,20", word) for word in words]
    words = [re.sub(r"train_limit=\d+$", "train_limit=20", word) for word in words]
    command = words[0]
    if command not in {"finetune", "sweep", "distill", "pretrain", "bench", "eval", "check"} or words[1] in {
        "tokenizer",
        "sizes",
    }:
        # a run that was shortened has a limit of its own, and so few rows show no precision
        return [*words, "--limit", "500"] if command == "calibrate" else words
    more = ["--limit", "300" if command == "pretrain" else "40"] if not {"--limit", "--fix"} & set(words) else []
    if fresh and command in {"finetune", "distill", "pretrain"}:
        more += ["--restart"]
    if "--data" not in words and command != "pretrain" and words[1] in recipe_names():
        more += ["--data", "demo"]
    if command in {"finetune", "bench"} and "--model" not in words:
        more += ["--model", "demo"]
    if command == "pretrain":
        more += ["--batch-size", "4", "--set", "training.precision=fp32"]
        more += [] if "--budget" in words else ["--steps", "2"]
        more += [] if "--max-length" in words else ["--max-length", "32"]
        more += SMALL_MODEL if "--size" in words else []
        more += ["--set", "training.short_length=null"] if words[1] in {"bert", "electra"} else []
    elif any(word.startswith("training.steps") for word in words):
        more += ["--set", "training.steps=2"]
    elif command == "distill":
        more += ["--epochs", "1", *shorten_student(words)]
    elif command == "finetune":
        more += ["--epochs", "1", "--set", "training.precision=fp32"]
    elif command == "sweep":
        more += ["--set", "training.precision=fp32"]
    return [*words, *more]


def shorten_ablation(words: list[str]) -> list[str]:
    """Return an ablation of tiny models with few rows, steps and seeds."""
    before = ["", *words]
    tasks = [
        f"{word} data.limit=40 training.epochs=1" if last == "--finetune" else word
        for last, word in zip(before, words, strict=False)
    ]
    small = ["--set", "data.limit=300", "--set", "training.batch_size=4", "--set", "training.max_length=32"]
    return [*tasks, "--steps", "2", "--seeds", "2", *small, "--set", "training.precision=fp32", *SMALL_MODEL]


def shorten_student(words: list[str]) -> list[str]:
    """Set the layers of a student to one; return what makes a new student small, with the heads of the demo model."""
    if "--student-layers" in words:
        words[words.index("--student-layers") + 1] = "1"
        return []
    small = "options.student_options={hidden_size: 48, num_attention_heads: 4}"
    return ["--set", small] if words[1] == "tinybert" else []


def run_commands(zygote, folder: Path, block: Block, environment: dict[str, str], *, fresh: bool) -> None:
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        words = shlex.split(line, comments=True)
        if not words or line.startswith(tuple(NOT_RUN)):
            continue
        if words[0] == "export":
            environment.update(word.split("=", 1) for word in words[1:])
            continue
        processes = 1
        if words[0] == "torchrun":
            processes, words = 2, words[words.index("-m") + 1 :]
        assert words[0] == "bertkit", f"{line}: bring this test to run it, or say in NOT_RUN why not"
        stdin = folder / "new.csv" if "-" in words else None
        short = shorten_ablation(words[1:]) if words[1] == "ablate" else shorten(words[1:], fresh=fresh)
        path = environment.get("PYTHONPATH")
        codes, out, err = zygote.launch(folder, short, processes, path, stdin)
        ended = {0, 8} if words[1] == "test" or GATES & set(words) else {0}  # of a model that has seen a few rows
        assert set(codes) <= ended, f"{line}\n{out}{err}"


def run_python(block: Block, names: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a block with few rows, whether it loads a recipe or names it; `names` are those of the blocks before it."""
    short = {"data.limit": 40, "training.epochs": 1, "training.precision": "fp32"}

    def load_short(name, changes=None):
        layers = {"distillation.student_layers": 1} if "distillation.student_layers" in (changes or {}) else {}
        return load_recipe(name, {**(changes or {}), **short, **layers, "data.source": "demo"})

    with monkeypatch.context() as patched:
        patched.setattr(bertkit, "load_recipe", load_short)
        load_named = api.load_recipe
        patched.setattr(api, "load_recipe", lambda name, changes: load_named(name, {**changes, **short}))
        patched.syspath_prepend(".")
        exec(compile(block.text, "block", "exec"), names)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # the Trainer's default where there is no GPU
@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_the_page_runs(page, zygote, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    environment: dict[str, str] = {}
    names: dict[str, object] = {"__name__": "block"}
    for block in blocks_of(page):
        if block.title:
            file = tmp_path / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            run_commands(zygote, tmp_path, block, environment, fresh=page in ALTERNATIVES)
        elif block.language == "python":
            run_python(block, names, monkeypatch)
        elif block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "own-rows.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])  # nothing that a machine has printed is kept
    names: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(cells, 1):
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert "<table>" in names["trained"]._repr_html_()


def test_the_workflow_files_run_the_steps_that_the_page_runs():
    blocks = blocks_of("docs/ci.md")
    steps = {line for block in blocks if block.language == "bash" for line in block.text.splitlines()}
    files = [yaml.safe_load(block.text) for block in blocks if block.title]
    assert len(files) == 2
    for file in files:
        commands = [text for text in strings_in(file) if text.startswith("bertkit ")]
        assert len(commands) == 5
        assert set(commands) <= steps


def strings_in(value: object) -> list[str]:
    """List the strings in a nested value."""
    if isinstance(value, dict | list):
        return [text for item in (value.values() if isinstance(value, dict) else value) for text in strings_in(item)]
    return [value] if isinstance(value, str) else []
