"""Find a recipe, extend its parent, apply overrides and check the result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from bertkit.errors import RecipeError, closest
from bertkit.recipe.conflicts import Origin, settle
from bertkit.recipe.renamed import rename_changes, rename_keys
from bertkit.recipe.yaml import Lines, read_value, read_yaml

if TYPE_CHECKING:
    from bertkit.recipe.pretraining import PretrainRecipe
    from bertkit.recipe.records import Recipe, Section

_Record = TypeVar("_Record", bound="Section")


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
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if not Path(name).is_file():
            raise RecipeError("no such recipe file", "`bertkit recipes list` shows the shipped ones", file=name)
        return Path(name)
    commands = (command,) if command else ("finetune", "pretrain")
    for folder in commands:
        if (recipe_folder() / folder / f"{name}.yaml").is_file():
            return recipe_folder() / folder / f"{name}.yaml"
    raise RecipeError(f"no recipe is called {name!r}", closest(name, chain.from_iterable(map(recipe_names, commands))))


def recipe_command(name: str) -> str:
    """Return the command that a recipe is for: `pretrain` where it names an objective, else `finetune`."""
    values, _ = _read_with_parents(find_recipe(name), "", ())
    return "pretrain" if "objective" in values else "finetune"


def load_any_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe | PretrainRecipe:
    """Load a recipe for fine-tuning or pretraining; raises what `load_recipe` does."""
    return load_pretrain_recipe(name, changes) if recipe_command(name) == "pretrain" else load_recipe(name, changes)


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe for fine-tuning with its parents and with changes (dotted key -> value).

    The demo model brings its own training settings, which changes override.

    Raises:
        RecipeError: no such recipe, bad YAML, an unknown key, or a value out of range; it names the file and line, or
            the override, and the closest key.
    """
    from bertkit.recipe.records import Recipe

    return _load("finetune", Recipe, name, changes or {})


def load_pretrain_recipe(name: str, changes: Mapping[str, Any] | None = None) -> PretrainRecipe:
    """Load a recipe for pretraining with its parents and with changes; raises what `load_recipe` does."""
    from bertkit.recipe.pretraining import PretrainRecipe

    return _load("pretrain", PretrainRecipe, name, changes or {})


def _load(command: str, record: type[_Record], name: str, changes: Mapping[str, Any]) -> _Record:
    from pydantic import ValidationError

    file = find_recipe(name, command)
    values, lines = _read_with_parents(file, command, ())
    values, changes = rename_keys(values), rename_changes(changes)
    values.setdefault("name", file.stem)
    if command == "finetune" and changes.get("model", values.get("model")) == "demo":
        values = _merge(values, read_yaml((recipe_folder() / "demo.yaml").read_text("utf-8"), "demo.yaml")[0])
    for key, value in changes.items():
        _set(values, key, value)
    origin = Origin(changes, lines)
    for key, value in settle(values, origin).items():
        _set(values, key, value)
    try:
        recipe = record.model_validate(values)
    except ValidationError as error:
        raise _describe(error.errors()[0], record, changes, file, lines) from None
    is_shipped = file.parent == recipe_folder() / file.parent.name
    _note_what_was_given(recipe, "", origin, 2 if is_shipped else 1)
    return recipe


def _note_what_was_given(section: Section, name: str, origin: Origin, rank: int) -> None:
    """Leave in the records' `model_fields_set` what the user gave: the keys of this rank and above."""
    for field in list(section.model_fields_set):
        key, value = f"{name}.{field}".lstrip("."), getattr(section, field)
        if hasattr(value, "model_fields_set"):
            _note_what_was_given(value, key, origin, rank)
        elif origin.rank(key) < rank:
            section.model_fields_set.discard(field)


def parse_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Read ``key.path=value`` assignments; values are YAML.

    >>> parse_changes(["training.epochs=2", "data.columns.text=review"])
    {'training.epochs': 2, 'data.columns.text': 'review'}
    """
    changes = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"--set {assignment} is not key=value", "write e.g. --set training.epochs=2")
        changes[key.strip()] = read_value(value)
    return changes


def assignment(key: str, value: str) -> str:
    r"""Write ``key=value`` for `--set`, quoted so that the shell and YAML read exactly this value.

    >>> assignment("data.columns.text", "review"), assignment("data.columns.text", " a")
    ('data.columns.text=review', '\'data.columns.text=" a"\'')
    """
    plain = read_value(value) == value
    return shlex.quote(f"{key}={value if plain else json.dumps(value, ensure_ascii=False)}")


def _read_with_parents(file: Path, command: str, seen: tuple[Path, ...]) -> tuple[dict[str, Any], Lines]:
    if file.resolve() in seen:
        raise RecipeError("recipes extend each other in a circle", "remove one `extends:`", file=file)
    try:
        values, lines = read_yaml(file.read_text(encoding="utf-8"), file)
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8 text: byte {error.start}", "save it as UTF-8", file=file) from None
    parent = values.pop("extends", None)
    if parent is None:
        return values, lines
    beside = file.parent / str(parent)
    parent_file = beside if beside.is_file() else find_recipe(str(parent), command)
    inherited, _ = _read_with_parents(parent_file, command, (*seen, file.resolve()))
    for key in ("name", "published"):  # not inherited: published scores are about the parent's rows
        inherited.pop(key, None)
    return _merge(inherited, values), lines


def _merge(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        are_sections = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if are_sections else value
    return merged


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        content = values.get(section)
        values[section] = dict(content) if isinstance(content, dict) else {}
        values = values[section]
    values[last] = value


def _describe(error: Any, record: type[Section], changes: Mapping[str, Any], file: Path, lines: Lines) -> RecipeError:
    """Turn pydantic's first error into one that names the key, the line or the override, and what is allowed."""
    path = tuple(str(key) for key in error["loc"])
    written = max((path[:end] for end in range(len(path) + 1) if path[:end] in lines), key=len, default=())
    override = next((key for key in changes if _overlap(path, tuple(key.split(".")))), None)
    where: dict[str, Any] = {"row": lines.get(written), "file": file} if override is None else {}
    if error["type"] == "extra_forbidden":
        return RecipeError(f"unknown key {'.'.join(path)!r}", _closest_key(record, path), **where)
    if error["type"] == "missing":
        return RecipeError(f"the key {'.'.join(path)!r} is missing", "see `bertkit recipes show cola`", **where)
    variants = ("literal[", "function-", "dict[", "int", "constrained")  # pydantic's names for the types of a union
    name = ".".join(key for key in path if not key.startswith(variants))
    rule = error["msg"].removeprefix("Value error, ").replace("Input should", "must")
    bounds = "" if error["type"] == "value_error" else _range_of(record, name)
    fault = "is out of range" if bounds and isinstance(error["input"], (int, float)) else f"is wrong: {rule}"
    return RecipeError(f"{name} = {_shown(error['input'])} {fault}", bounds and f"give {bounds}", **where)


def _overlap(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Tell whether one key path is the beginning of the other, or both are the same."""
    return all(key == other_key for key, other_key in zip(first, second, strict=False))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, (int, float)) else repr(value)


def _section_of(record: type[Section], path: tuple[str, ...]) -> tuple[Any, str]:
    """Return the record that a dotted key belongs to, and the last part of the key."""
    from pydantic import BaseModel

    section: Any = record
    for key in path[:-1]:
        field = section.model_fields.get(key)
        types = (field.annotation, *get_args(field.annotation)) if field else ()  # `Section`, or `Section | None`
        subsection = next((cls for cls in types if isinstance(cls, type) and issubclass(cls, BaseModel)), None)
        if subsection is None:
            break
        section = subsection
    return section, path[-1]


def _closest_key(record: type[Section], path: tuple[str, ...]) -> str:
    section, last = _section_of(record, path)
    return closest(last, section.model_fields)


def _range_of(record: type[Section], name: str) -> str:
    """Describe the numbers that a field takes, from the bounds in its record; empty where it has none."""
    section, last = _section_of(record, tuple(name.split(".")))
    field = section.model_fields.get(last)
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {getattr(bound, word):g}"
        for bound in (field.metadata if field else [])
        for word, sign in signs.items()
        if getattr(bound, word, None) is not None
    ]
    return f"a number {' and '.join(bounds)}" if bounds else ""
