"""The habits of the house, kept by a machine."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bertkit.cli.main import app
from bertkit.recipe import load_recipe, recipe_names
from bertkit.tasks import Task, load_task, task_names

ROOT = Path(__file__).parent.parent
CODE = sorted((ROOT / "bertkit").rglob("*.py"))
HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "evaluate",
    "sklearn",
    "scipy",
    "accelerate",
    "numpy",
    "pandas",
    "pyarrow",
}


def imported_by(*arguments: str, folder: Path) -> set[str]:
    """Run a command in a new process and give the heavy packages it imported."""
    script = (
        "import sys\nfrom bertkit.cli.main import main\n"
        f"sys.argv = ['bertkit', *{list(arguments)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write('\\n' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    return HEAVY & set(ended.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("finetune", "--help"),
        ("distill", "cola", "--model", "demo", "--student-layers", "1"),
        ("recipes", "list"),
        ("pretrain", "sizes"),
        ("pretrain", "tokenizer", "--help"),
        ("version",),
        ("finetune", "colla"),
        ("finetune", "cola", "--set", "training.epoch=1"),
    ],
)
def test_light_commands_import_nothing_heavy(arguments, tmp_path):
    assert imported_by(*arguments, folder=tmp_path) == set()


@pytest.mark.parametrize("content", [None, "text,label\nok\n"])
def test_bad_data_is_answered_before_torch_is_imported(content, tmp_path, tiny_model):
    if content:
        (tmp_path / "d.csv").write_text(content)
    arguments = ("finetune", "classify", "--model", str(tiny_model), "--data", "d.csv")
    assert imported_by(*arguments, folder=tmp_path) <= {"numpy"}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_names_an_existing_task_and_metrics(name):
    recipe = load_recipe(name)
    load_task(recipe)
    assert recipe.about
    assert recipe.best_metric in recipe.metrics


@pytest.mark.parametrize("name", task_names())
def test_every_task_module_has_what_a_task_needs(name):
    module = importlib.import_module(f"bertkit.tasks.{name}")
    for part in [*Task.__annotations__, *(part for part in vars(Task) if not part.startswith("_"))]:
        assert hasattr(module, part), part


@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_stay_small(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} has {node.end_lineno - node.lineno + 1} lines"


def test_one_place_touches_the_trainer():
    found = [file.name for file in CODE if re.search(r"\bTrainer\b\)|import Trainer\b", file.read_text())]
    assert found == ["fit.py"]


def commands_in(page: Path) -> list[str]:
    """Give the bertkit command lines of a page's code blocks, continuation lines joined."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("bertkit ")]


def test_the_docs_have_commands_to_check():
    assert sum(len(commands_in(page)) for page in PAGES) > 20


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page.name != "cli.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_docs_parses(page):
    group = typer.main.get_command(app)
    for line in commands_in(page):
        words = shlex.split(re.sub(r"\s(#|\||>|&&).*", "", line))[1:]
        command = group
        context = command.make_context("bertkit", list(words), resilient_parsing=True)
        while hasattr(command, "resolve_command"):
            _, command, words = command.resolve_command(context, words)
            assert command is not None, line
            context = command.make_context(command.name, list(words), resilient_parsing=True)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
            "-h",
            "--help",
        }
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
        assert not unknown, f"{line}: {unknown}"


def test_the_cli_page_is_the_generated_one():
    spec = importlib.util.spec_from_file_location("make_cli_page", ROOT / "tools" / "make_cli_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == module.cli_page(), "run `make docs`"


def test_every_command_has_an_example():
    named = typer.main.get_command(app).commands.values()
    commands = [command for each in named for command in getattr(each, "commands", {"": each}).values()]
    assert len(commands) > 10
    assert all(command.epilog and command.epilog.startswith("Example: bertkit ") for command in commands)


def test_recipe_names_are_completed():
    from bertkit.cli.options import complete_recipe

    assert complete_recipe("st") == ["stsb"]


def test_the_public_functions_are_there_and_cost_nothing_until_used(tmp_path):
    import bertkit

    assert {"load_recipe", "finetune", "evaluate", "predict", "bench"} <= set(dir(bertkit))
    assert bertkit.load_recipe("cola").name == "cola"
    with pytest.raises(AttributeError, match="has no attribute 'train'"):
        _ = bertkit.train
