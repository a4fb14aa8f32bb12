"""The habits of the house, asserted: where modules stand, what they are called, and what they may touch."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import ANY

import pytest
import typer
import yaml

from bertkit.cli.main import app
from bertkit.pretraining.objectives import Objective, objective_names
from bertkit.recipe import load_recipe, recipe_names
from bertkit.tasks import Task, load_task, task_names
from tests.kills import HEAVY

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bertkit"
CODE = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted(file.parent for file in CODE if file.name == "__init__.py" and file.parent != PACKAGE)
DOORS = {"__init__", "__main__", "errors", "progress"}


@cache
def trees() -> dict[str, ast.Module]:
    """Parse all modules, once, in the process that needs them."""
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text(encoding="utf-8")) for file in CODE}


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """List the nodes of each module, once as well: to walk the trees takes longer than to look at what is there."""
    return {module: list(ast.walk(tree)) for module, tree in trees().items()}


def functions(module: str) -> list[ast.FunctionDef]:
    return [node for node in nodes()[module] if isinstance(node, ast.FunctionDef)]


@pytest.fixture(scope="module", autouse=True)
def _no_trees_afterwards() -> Iterator[None]:
    """Drop the trees after these tests: each later training would look for garbage among a million nodes."""
    yield
    trees.cache_clear()
    nodes.cache_clear()


def load_tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- What is imported when ---


def test_help_imports_nothing_heavy(tmp_path):
    """In a fresh process, where nothing has been imported before."""
    script = "import sys; from bertkit.cli.main import main; sys.argv = ['bertkit', '--help']\ntry: main()\n"
    script += "finally: sys.stderr.write(' '.join({name.partition('.')[0] for name in sys.modules}))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert "finetune" in ended.stdout
    assert HEAVY & set(ended.stderr.split()) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        "finetune --help",
        "distill cola --model demo --student-layers 1",
        "recipes list",
        "finetune cola --set training.epoch=1",
        *(
            pytest.param(line, marks=pytest.mark.slow)
            for line in (
                *("runs list", "doctor --help", "doctor nowhere", "pretrain sizes"),
                *("pretrain tokenizer --help", "finetune colla"),
            )
        ),
    ],
)
def test_light_commands_import_nothing_heavy(arguments, tmp_path, light_zygote):
    assert HEAVY & light_zygote.imports(tmp_path, arguments.split()) == set()


@pytest.mark.parametrize("content", [pytest.param(None, marks=pytest.mark.slow), "text,label\nok\n"])
def test_bad_data_is_answered_before_torch_is_imported(content, tmp_path, tiny_model, light_zygote):
    if content:
        (tmp_path / "d.csv").write_text(content)
    arguments = ["finetune", "classify", "--model", str(tiny_model), "--data", "d.csv"]
    assert HEAVY & light_zygote.imports(tmp_path, arguments) <= {"numpy"}


@pytest.mark.parametrize("recipe", ["similarity", "similarity-pairs"])  # not for its rows; rows lack a negative
def test_a_loss_that_does_not_fit_is_answered_before_torch_is_imported(recipe, tmp_path, tiny_model, light_zygote):
    arguments = ["finetune", recipe, "--model", str(tiny_model), "--data", "demo", "--set", "options.loss=TripletLoss"]
    assert HEAVY & light_zygote.imports(tmp_path, arguments) <= {"numpy"}


def test_files_are_split_at_line_feeds_alone():
    """`splitlines` splits a line of JSON at U+2028 too, which a text may have; the files of Linux have none."""
    files = [*CODE, *sorted((ROOT / "benchmarks").glob("*.py"))]
    for file in files:
        for line in file.read_text(encoding="utf-8").split("\n"):
            assert not re.search(r"read_text\([^()]*\)\.splitlines\(", line) or "/proc/" in line, f"{file}: {line}"


def test_one_module_names_accelerators():
    """All others ask `bertkit.hardware.device` what a device can do."""
    named = re.compile(r"(cuda|mps|xpu|npu|hpu|xla)(:\d+)?")
    for module, inside in nodes().items():
        words = {node.attr for node in inside if isinstance(node, ast.Attribute)}
        words |= {node.value for node in inside if isinstance(node, ast.Constant) and type(node.value) is str}
        if module != "hardware/device.py":
            assert [word for word in words if named.fullmatch(word)] == [], module


# --- Where modules stand ---


def test_loose_modules_are_the_doors():
    assert {file.stem for file in PACKAGE.glob("*.py")} == DOORS


def test_every_package_is_in_one_layer():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.findall(r"bertkit\.\w+", re.search(r"^layers = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)[1])
    packages = {f"bertkit.{folder.name}" for folder in PACKAGES if folder.parent == PACKAGE}
    loose = {f"bertkit.{name}" for name in DOORS if not name.startswith("__")}
    assert sorted(layers) == sorted(packages | loose)


def test_no_imports_go_in_a_circle():
    """Neither at run time nor for types alone."""
    names = {module: module.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for module in trees()}
    modules = {f"bertkit.{name}": module for module, name in names.items()} | {"bertkit": "__init__.py"}
    imports = {module: set() for module in trees()}
    for module, inside in nodes().items():
        for node in inside:
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                imports[module] |= {modules[name if name in modules else node.module] for name in inner}
    assert len([target for targets in imports.values() for target in targets]) > 500
    while leaves := [module for module, targets in imports.items() if not targets & imports.keys()]:
        for module in leaves:
            del imports[module]
    assert sorted(imports) == []


def test_tests_stand_where_one_looks_for_them():
    """Tests mirror packages: a folder of tests has tests, and is one of the package, or tests the tools."""
    folders = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")}
    packages = {folder.relative_to(PACKAGE) for folder in PACKAGES} | {Path(), Path("tools")}
    assert sorted(folders - packages) == []
    with_code = {Path(module).parent for module in trees() if not Path(module).name.startswith("__")}
    assert sorted(with_code - folders) == []


# --- What modules touch ---


def test_one_place_touches_the_trainer():
    trainer = re.compile(r"\bTrainer(\):|\()|\btrainer\._(?!_)")  # derived from, or made, or its private parts
    assert [file.name for file in CODE if trainer.search(file.read_text(encoding="utf-8"))] == ["trainer.py"]


def test_models_are_patched_in_one_package():
    """A forward, a hook or an attention function of our own is put on a model in modeling/ alone."""
    patch = re.compile(r"\.forward = |register_forward|set_attn_implementation\(|AttentionInterface")
    patching = {file.relative_to(PACKAGE).parts[0] for file in CODE if patch.search(file.read_text(encoding="utf-8"))}
    assert patching == {"modeling"}


def test_the_ignored_label_has_one_name():
    literals = [
        module
        for module, inside in nodes().items()
        for node in inside
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and getattr(node.operand, "value", 0) == 100
    ]
    assert literals == ["tokens/features.py"]


# --- What they are called ---


def test_class_names_are_unique():
    classes = [node.name for inside in nodes().values() for node in inside if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")] == []


def test_docstrings_say_what_comes_out():
    """Return, build, compute, find, read or yield: the verb that is true, and never "Give"."""
    found = [
        (module, text)
        for module, inside in nodes().items()
        for node in inside
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        and (text := ast.get_docstring(node) or "").startswith("Give ")
    ]
    assert found == []


def test_notes_of_fields_stand_alone():
    """A note that begins with "Of" needs the name of its field to be understood."""
    notes = [
        (module, node.value.value)
        for module, inside in nodes().items()
        for node in inside
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and type(node.value.value) is str
    ]
    assert len(notes) > 1000
    assert [note for note in notes if note[1].startswith(("Of ", "That of ", "Those of "))] == []


# --- What is complete ---


@pytest.mark.parametrize("name", objective_names())
def test_every_objective_module_has_what_an_objective_needs(name):
    module = importlib.import_module(f"bertkit.pretraining.objectives.{name}")
    for part in [*Objective.__annotations__, *(part for part in vars(Objective) if not part.startswith("_"))]:
        assert hasattr(module, part), part


def test_every_recipe_names_an_existing_task_and_metrics():
    for name in recipe_names():
        recipe = load_recipe(name)
        load_task(recipe)
        assert recipe.about, name
        assert recipe.best_metric in recipe.metrics, name


@pytest.mark.parametrize("name", task_names())
def test_every_task_module_has_what_a_task_needs(name):
    module = importlib.import_module(f"bertkit.tasks.{name}")
    for part in [*Task.__annotations__, *(part for part in vars(Task) if not part.startswith("_"))]:
        assert hasattr(module, part), part


def commands_in(page: Path) -> list[str]:
    """Return the bertkit command lines of a page's code blocks, continuation lines joined."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("bertkit ")]


def test_the_docs_have_commands_to_check():
    assert sum(len(commands_in(page)) for page in PAGES) > 20


PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if page.name != "cli.md"]


def test_every_command_of_the_docs_parses():
    group = typer.main.get_command(app)
    for line in itertools.chain.from_iterable(map(commands_in, PAGES)):
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


def test_the_cli_page_is_the_generated_one(monkeypatch):
    # a parser of its own: commands keep the names of their help option from the first time they are asked
    monkeypatch.setattr(typer.main, "get_command", typer.main.get_command.__wrapped__)
    page = load_tool("make_cli_page").cli_page()
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_the_picture_of_the_packages_is_the_drawn_one():
    tool = load_tool("make_architecture_picture")
    assert tool.PICTURE.read_text(encoding="utf-8") == tool.draw(), "run `make docs`"


def test_a_detour_leaves_out_the_direct_line():
    tool = load_tool("make_architecture_picture")
    assert tool.without_detours({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_every_command_has_an_example():
    named = typer.main.get_command(app).commands.values()
    commands = [command for each in named for command in getattr(each, "commands", {"": each}).values()]
    assert len(commands) > 10
    assert all(command.epilog and command.epilog.startswith("Example: bertkit ") for command in commands)


def test_recipe_names_are_completed():
    from bertkit.cli.completion import complete_recipe

    assert complete_recipe("st") == ["stsb"]


def test_the_public_functions_are_there_and_cost_nothing_until_used(tmp_path):
    import bertkit

    assert {"load_recipe", "finetune", "evaluate", "predict", "bench"} <= set(dir(bertkit))
    assert bertkit.load_recipe("cola").name == "cola"
    with pytest.raises(AttributeError, match="has no attribute 'train'"):
        _ = bertkit.train


def test_what_a_hosted_service_runs_is_what_contributors_run():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    runs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert runs == {
        "check": [line for line in lines if line.startswith("make ")],
        "smoke": [ANY, "pip install --constraint constraints.txt .", ".ci/smoke"],
        "nightly": ["make test-all"],
        "audit": ["make audit"],
    }
    matrix = workflow["jobs"]["smoke"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert matrix == supported and project["requires-python"] == f">={supported[0]}"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\nformat:")[2].partition("\n\n")[0].replace("$(BIN)", ".venv/bin")
    assert sorted(hook["entry"] for hook in hooks) == sorted(
        line.strip().removesuffix(" .") for line in recipe.split("\n")[1:]
    )
