"""Modules that a recipe names: bertkit's own by their name, yours by their import path."""

from __future__ import annotations

import sys

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_recipe
from bertkit.recipe.plugins import custom_modules, find_custom_error, load_custom, load_module
from bertkit.tasks import load_task
from tests.evaluation.stored_runs import make_rows, make_run, predict


def load(name, *required):
    return load_module("format", name, ["csv", "json"], required, "docs/own-data.md")


@pytest.fixture
def mypackage(tmp_path, monkeypatch):
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "mine.py").write_text("def read(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        del sys.modules[name]


def test_a_module_of_your_own_must_have_what_is_required(mypackage):
    assert load("mypackage.mine", "read").__name__ == "mypackage.mine"
    with pytest.raises(RecipeError, match=r"the format mypackage.mine lacks ENDINGS, write - see docs/own-data.md"):
        load("mypackage.mine", "read", "ENDINGS", "write")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cvs", "no format is called 'cvs' - did you mean csv"),
        ("unheard", "no format is called 'unheard' - there are: "),
        ("mypackage.yours", "no format is called 'mypackage.yours' - there are: "),
        ("nopackage.mine", "no format is called 'nopackage.mine' - there are: "),
    ],
)
def test_a_name_that_is_neither_is_refused(mypackage, name, message):
    with pytest.raises(RecipeError) as raised:
        load(name)
    assert str(raised.value).startswith(message)
    assert ("must be importable" in str(raised.value)) == ("." in name)


@pytest.mark.parametrize("name", [".x", "..x", "x.", "a..b", "../x", "a b.c", "/tmp/x.y"])
def test_a_name_that_no_module_can_have_is_refused(name):
    with pytest.raises(RecipeError, match="no format is called"):
        load(name)


@pytest.mark.parametrize(
    ("code", "line", "fault"),
    [
        ("\nread = 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def read(:\n", 1, "SyntaxError: invalid syntax"),
        ("\n\nimport nowhere\n", 3, "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit\n", 1, "SystemExit"),
    ],
)
def test_a_module_of_your_own_that_cannot_be_imported_names_its_line(mypackage, tmp_path, code, line, fault):
    (tmp_path / "mypackage" / "broken.py").write_text(code)
    with pytest.raises(RecipeError) as raised:
        load("mypackage.broken", "read")
    file = tmp_path / "mypackage" / "broken.py"
    assert str(raised.value).startswith(f"the format mypackage.broken failed: {fault} ({file}:{line}) - correct it")


def test_an_error_in_a_function_of_your_own_names_its_line(mypackage, tmp_path):
    file = tmp_path / "mypackage" / "late.py"
    file.write_text("def read():\n    return json_of('x')\n\n\ndef json_of(text):\n    return text['a']\n")
    module = load("mypackage.late", "read")
    with pytest.raises(TypeError) as raised:
        module.read()
    fault = find_custom_error(raised.value)
    assert str(fault).startswith("the format mypackage.late failed: TypeError: string indices must be integers")
    assert (fault.file, fault.row, fault.exit_code) == (str(file), 6, 2)
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    assert find_custom_error(raised.value) is None
    assert "the format mypackage.late" in custom_modules()


def test_of_several_in_one_file_the_one_that_was_called_has_failed(mypackage, tmp_path):
    code = (
        "def score():\n    return 0\n\n\ndef loss():\n    1 / 0\n\n\nclass Bell:\n    def ring(self):\n        1 / 0\n"
    )
    (tmp_path / "mypackage" / "tricks.py").write_text(code)
    for role, name in (("metric", "score"), ("loss", "loss"), ("callback", "Bell")):
        loaded = load_custom(role, f"mypackage.tricks.{name}")
        if role != "metric":
            with pytest.raises(ZeroDivisionError) as raised:
                loaded().ring() if role == "callback" else loaded()
            assert str(find_custom_error(raised.value)).startswith(f"the {role} mypackage.tricks.{name} failed: Zero")


@pytest.fixture
def folder_of_another(mypackage, tmp_path):
    """A run whose recipe names a module that tells when it is imported."""
    (tmp_path / "mypackage" / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    return make_run(tmp_path / "theirs", predict(make_rows(4), {1}), task="mypackage.theirs", model="m")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "RUN", "--text", "a"),
        ("eval", "RUN"),
        ("calibrate", "RUN"),
        ("errors", "RUN"),
        ("compare", "RUN", "RUN"),
        ("explain", "RUN", "--text", "a"),
        ("rerun", "RUN"),
        ("export", "RUN", "--output", "x"),
        ("package", "RUN", "--output", "x"),
        ("serve", "RUN"),
        ("finetune", "RUN/recipe.yaml", "--data", "demo"),
        ("recipes", "check", "RUN/recipe.yaml"),
        ("recipes", "check", "child.yaml"),
    ],
    ids=" ".join,
)
def test_a_recipe_that_came_with_a_model_runs_no_module(run, folder_of_another, arguments, tmp_path):
    (tmp_path / "work" / "child.yaml").write_text(f"extends: {folder_of_another}/recipe.yaml\n")
    command = [part.replace("RUN", str(folder_of_another)) for part in arguments]
    ended = run(*command)
    assert not (tmp_path / "ran").exists()
    assert ended.code != 1 and ended.last.startswith("error: ")
    if arguments[0] not in ("compare", "export", "package"):  # which may refuse the folder for another reason first
        assert (ended.code, "names code to run: the task family mypackage.theirs" in ended.last) == (2, True), ended.err
        assert "the task family mypackage.theirs lacks" in run(*command, "--trust-remote-code").last
        assert (tmp_path / "ran").exists()


def test_a_recipe_of_ones_own_runs_the_same_module(folder_of_another, tmp_path):
    own = (folder_of_another / "recipe.yaml").rename(tmp_path / "mine.yaml")
    with pytest.raises(RecipeError, match=r"the task family mypackage\.theirs lacks"):
        load_task(load_recipe(str(own)))


def test_a_recipe_that_came_with_a_model_runs_no_script_as_a_metric(tmp_path):
    folder = make_run(tmp_path / "run", [], metrics=["evaluate:./script.py"], best_metric="right")
    with pytest.raises(
        RecipeError, match=r"names code to run: the metric evaluate:\./script\.py - .* --trust-remote-code"
    ):
        load_task(load_recipe(str(folder / "recipe.yaml")))
    load_task(load_recipe(str((folder / "recipe.yaml").rename(tmp_path / "mine.yaml"))))


def test_an_objective_of_a_folder_is_refused_as_a_task_is(run, mypackage, tmp_path):
    (tmp_path / "recipe.yaml").write_text("objective: mypackage.mine\n")
    ended = run("recipes", "check", tmp_path / "recipe.yaml")
    assert (ended.code, "names code to run: the objective mypackage.mine" in ended.last) == (2, True)
