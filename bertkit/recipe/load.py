"""Find a recipe, extend its parent, apply overrides and check the result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from bertkit.errors import RecipeError, closest, shorten
from bertkit.recipe.plugins import trusts_folders
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.sections import Section, typed_path
from bertkit.recipe.validation import describe
from bertkit.recipe.values import Origin, fill_language, names_language, settle
from bertkit.recipe.yaml import Lines, read_value, read_yaml

_Record = TypeVar("_Record", bound=Section)

FOLDER_RECIPE = "recipe.yaml"
"""The name of the recipe that comes with a model; one that names code to run is not the user's word."""

_LIST = "`bertkit recipes list` shows the shipped ones"
# keys of `data` that are about one source
_OF_SOURCE = ("config", "revision", "files", "splits", "documents")
# keys that are about one checkpoint or a new model
_OF_MODEL = ("model_labels", "tokenizer", "model_options")


def recipe_folder() -> Path:
    """Return the folder of the shipped recipes: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def recipe_names(command: str = "finetune") -> list[str]:
    """List the names of the shipped recipes for a command, `finetune` or `pretrain`."""
    return sorted(file.stem for file in (recipe_folder() / command).glob("*.yaml"))


def find_recipe(name: str, command: str = "") -> Path:
    """Find the file of a recipe by its name or path.

    Args:
        name: a shipped recipe, or a path.
        command: `finetune` or `pretrain`, whose shipped recipes are looked through; both by default.

    Raises:
        RecipeError: neither a shipped recipe nor a file; the message suggests the closest names.
    """
    if is_other_file(name):
        raise RecipeError("a file, and a recipe is expected", _LIST, file=name)
    if name.endswith((".yaml", ".yml")) or "/" in name:
        file = typed_path(name)
        if not file.is_file():
            raise RecipeError("no such recipe file", _LIST, file=name)
        return file
    commands = (command,) if command else ("finetune", "pretrain")
    for folder in commands:
        if name in recipe_names(folder):
            return recipe_folder() / folder / f"{name}.yaml"
    other = "pretrain" if command == "finetune" else "finetune"
    if command and name in recipe_names(other):
        raise RecipeError(f"{name!r} is a recipe of `bertkit {other}`", f"`bertkit {other} {name}`, or {_LIST}")
    names = chain.from_iterable(map(recipe_names, commands))
    raise RecipeError(f"no recipe is called {shorten(repr(name))}", closest(name, names))


def is_other_file(name: str) -> bool:
    """Tell whether a name is that of a file which is not YAML, such as one with rows."""
    file = typed_path(name)
    return file.suffix not in ("", ".yaml", ".yml") and file.is_file()


def recipe_command(name: str) -> str:
    """Return the command that a recipe is for: `pretrain` where it names an objective, else `finetune`."""
    return "pretrain" if "objective" in read_values(name) else "finetune"


def read_values(name: str, command: str = "") -> dict[str, Any]:
    """Read the keys of a recipe and its parents, unchecked; raises what `load_recipe` does of files."""
    return _read_with_parents(find_recipe(name, command), command, ())[0]


def load_any_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe | PretrainRecipe:
    """Load a recipe for fine-tuning or pretraining; raises what `load_recipe` does."""
    return load_pretrain_recipe(name, changes) if recipe_command(name) == "pretrain" else load_recipe(name, changes)


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe for fine-tuning with its parents and with changes (dotted key -> value).

    The demo model brings its own training settings, which take the place of a shipped recipe's, not of the user's.
    Changes that name other data or another model also drop what the recipe says of its own ones, such as
    ``data.config``, and so does a recipe that extends it.

    Raises:
        RecipeError: no such recipe, bad YAML, an unknown key, or a value out of range; it names the file and line, or
            the override, and the closest key.
    """
    return load_record("finetune", Recipe, name, changes or {})


def load_pretrain_recipe(name: str, changes: Mapping[str, Any] | None = None) -> PretrainRecipe:
    """Load a recipe for pretraining with its parents and with changes; raises what `load_recipe` does."""
    return load_record("pretrain", PretrainRecipe, name, changes or {})


def load_record(command: str, record: type[_Record], name: str, changes: Mapping[str, Any]) -> _Record:
    """Load the recipe of a command as one of the records; raises what `load_recipe` does."""
    file = find_recipe(name, command)
    values, lines, own_values, is_own = _read_with_parents(file, command, ())
    # In the order of who wins: parents, the file, the demo's settings, what was typed; then what no longer fits gives
    # way.
    values.setdefault("name", file.stem)
    if command == "finetune" and changes.get("model", values.get("model")) == "demo":
        settings = read_yaml((recipe_folder() / "demo.yaml").read_text("utf-8"), "demo.yaml")[0]
        for later in (settings["any"], settings.get(str(values.get("task")), {}), own_values):
            values = _merge_values(values, later)
    _drop_what_is_of_another(values, changes)
    for key, value in changes.items():
        _set_value(values, key, value)
    origin = Origin(changes, lines)
    for key, value in settle(values, origin).items():
        _set_value(values, key, value)
    if command == "finetune" and isinstance(values.get("data"), dict):
        values["data"] = fill_language(values["data"], is_change="data.language" in changes)
    try:
        recipe = record.model_validate(values)
    except ValidationError as error:
        raise describe(error.errors(), record, changes, file, lines) from None
    # Records tell what was given from defaults: `auto` and budgets change only what the user left open.
    _note_what_was_given(recipe, "", origin, 2 if _is_shipped(file) else 1)
    # A recipe.yaml comes with a downloaded model; code that it names runs only if the user trusts it.
    recipe._may_run_code = is_own or trusts_folders()
    return recipe


def _note_what_was_given(section: Section, name: str, origin: Origin, rank: int) -> None:
    """Leave in the records' `model_fields_set` what the user gave: the keys of this rank and above."""
    for field in list(section.model_fields_set):
        key, value = f"{name}.{field}".lstrip("."), getattr(section, field)
        if hasattr(value, "model_fields_set"):
            _note_what_was_given(value, key, origin, rank)
        elif origin.rank(key) < rank:
            section.model_fields_set.discard(field)


def _drop_what_is_of_another(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Take out what a recipe says of its own data and its own model, where changes, or a child, name other ones."""
    # With other rows, the config, revision and files of the old ones would name what is not there.
    data, source = values.get("data"), changes.get("data.source")
    if isinstance(data, dict) and source is not None and _name_source(source) != _name_source(data.get("source")):
        values["data"] = {key: value for key, value in data.items() if key not in _OF_SOURCE}
        values["data"]["splits"] = _splits_in(str(source), data.get("splits") or {})
        if source == "demo" and data.get("config") and not names_language(data):
            # the made-up rows are those for this data set
            values["data"]["config"] = data["config"]
        if not names_language({**values["data"], "source": source}):
            values["data"].pop("language", None)
    elif isinstance(data, dict) and _names_training_files(changes):
        values["data"] = {key: value for key, value in data.items() if key != "documents"}
    model, distillation = changes.get("model"), values.get("distillation")
    if model is not None and model != values.get("model"):
        for key in _OF_MODEL:
            values.pop(key, None)
        if isinstance(distillation, dict):  # the student was to be made of its teacher
            values["distillation"] = {key: value for key, value in distillation.items() if key != "student_layers"}


def _name_source(source: object) -> str:
    """Return a source of data, without the revision that follows the ``@`` in a name of the hub."""
    name = str(source)
    return name if typed_path(name).exists() else name.partition("@")[0]


def _names_training_files(changes: Mapping[str, Any]) -> bool:
    files = changes.get("data.files")
    return "data.files.train" in changes or (isinstance(files, Mapping) and "train" in files)


def _splits_in(source: str, splits: dict[str, Any]) -> dict[str, Any]:
    """Return those names of splits that another source has too: the demo, or a folder with a copy of the data set."""
    folder = typed_path(source)
    if source == "demo" or folder.is_file():
        return splits  # which do not mind
    # Python 3.13 raises where a path is no text
    patterns = ("*", "data/*") if folder.is_dir() else ()
    files = [file.name.lower() for pattern in patterns for file in folder.glob(pattern)]
    return {split: name for split, name in splits.items() if any(file.startswith(str(name).lower()) for file in files)}


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Read ``key.path=value`` assignments; values are YAML.

    >>> parse_changes(["training.epochs=2", "data.columns.text=review"])
    {'training.epochs': 2, 'data.columns.text': 'review'}
    """
    changes = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"--set {shorten(text)} is not key=value", "write e.g. --set training.epochs=2")
        try:
            changes[key.strip()] = read_value(value)
        except RecipeError as error:
            hint = f"{error.remedy}; for text: {assignment(key, value)}"
            raise RecipeError(f"--set {shorten(key)}: {error.what}", hint) from None
    return changes


def assignment(key: str, value: str) -> str:
    r"""Write ``key=value`` for `--set`, quoted so that the shell and YAML read exactly this value.

    >>> assignment("data.columns.text", "review"), assignment("data.columns.text", " a")
    ('data.columns.text=review', '\'data.columns.text=" a"\'')
    """
    try:
        plain = read_value(value) == value
    except RecipeError:
        plain = False
    return shlex.quote(f"{key}={value if plain else json.dumps(value, ensure_ascii=False)}")


def _is_shipped(file: Path) -> bool:
    return file.parent == recipe_folder() / file.parent.name


def _read_with_parents(
    file: Path, command: str, seen: tuple[Path, ...]
) -> tuple[dict[str, Any], Lines, dict[str, Any], bool]:
    """Return the keys of a recipe and its parents, the lines of its own, the keys that no shipped one gives, and trust.

    The last says that none of these files came with a model.
    """
    if file.resolve() in seen:
        raise RecipeError("recipes extend each other in a circle", "remove one `extends:`", file=file)
    try:
        values, lines = read_yaml(file.read_text(encoding="utf-8"), file)
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8 text: byte {error.start}", "save it as UTF-8", file=file) from None
    parent = values.pop("extends", None)
    own_values, is_own = {} if _is_shipped(file) else values, file.name != FOLDER_RECIPE
    if parent is None:
        return values, lines, own_values, is_own
    # A file beside it comes before a shipped recipe of that name.
    beside = file.parent / str(parent)
    parent_file = beside if beside.is_file() else find_recipe(str(parent), command)
    inherited, _, own_of_parent, is_parent_own = _read_with_parents(parent_file, command, (*seen, file.resolve()))
    # not inherited: published scores are about the parent's rows
    for key in ("name", "published"):
        inherited.pop(key, None)
    data = values["data"] if isinstance(values.get("data"), dict) else {}
    named = {"model": values.get("model"), "data.source": data.get("source"), "data.files": data.get("files")}
    _drop_what_is_of_another(inherited, named)
    return _merge_values(inherited, values), lines, _merge_values(own_of_parent, own_values), is_own and is_parent_own


def _merge_values(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        are_sections = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge_values(merged[key], value) if are_sections else value
    return merged


def _set_value(values: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        content = values.get(section)
        values[section] = dict(content) if isinstance(content, dict) else {}
        values = values[section]
    values[last] = value
