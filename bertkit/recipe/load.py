"""Find a recipe, extend its parent, apply overrides, check the result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from bertkit.errors import RecipeError, closest
from bertkit.recipe.renamed import rename_changes, rename_keys
from bertkit.recipe.yaml import Lines, read_value, read_yaml

if TYPE_CHECKING:
    from bertkit.recipe.pretraining import PretrainRecipe
    from bertkit.recipe.records import Recipe, Section

_Record = TypeVar("_Record", bound="Section")


def recipe_folder() -> Path:
    """Give the folder of the shipped recipes: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def recipe_names(kind: str = "finetune") -> list[str]:
    """List the shipped recipes of a kind, `finetune` or `pretrain`, by name."""
    return sorted(file.stem for file in (recipe_folder() / kind).glob("*.yaml"))


def find_recipe(name: str, kind: str = "") -> Path:
    """Find the file of a recipe given by name or by path; of either kind unless one is named.

    Raises:
        RecipeError: neither a shipped recipe nor a file; the closest names are given.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if not Path(name).is_file():
            raise RecipeError("no such recipe file", "`bertkit recipes list` shows the shipped ones", file=name)
        return Path(name)
    kinds = (kind,) if kind else ("finetune", "pretrain")
    for folder in kinds:
        if (recipe_folder() / folder / f"{name}.yaml").is_file():
            return recipe_folder() / folder / f"{name}.yaml"
    raise RecipeError(f"no recipe is called {name!r}", closest(name, chain.from_iterable(map(recipe_names, kinds))))


def recipe_kind(name: str) -> str:
    """Tell whether a recipe, shipped or a file, is for `finetune` or for `pretrain`: the latter names an objective."""
    values, _ = _read_with_parents(find_recipe(name), "", ())
    return "pretrain" if "objective" in values else "finetune"


def load_any_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe | PretrainRecipe:
    """Load a recipe of either kind; raises as `load_recipe` does."""
    return load_pretrain_recipe(name, changes) if recipe_kind(name) == "pretrain" else load_recipe(name, changes)


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe for fine-tuning with its parents and the given changes (dotted key -> value).

    The demo model brings training settings of its own, which changes override.

    Raises:
        RecipeError: no such recipe, bad YAML, an unknown key, or a value out of its range; it names the
            file and line, or the override, and the closest key.
    """
    from bertkit.recipe.records import Recipe

    return _load("finetune", Recipe, name, changes or {})


def load_pretrain_recipe(name: str, changes: Mapping[str, Any] | None = None) -> PretrainRecipe:
    """Load a recipe for pretraining with its parents and the given changes; raises as `load_recipe` does."""
    from bertkit.recipe.pretraining import PretrainRecipe

    return _load("pretrain", PretrainRecipe, name, changes or {})


def _load(kind: str, record: type[_Record], name: str, changes: Mapping[str, Any]) -> _Record:
    from pydantic import ValidationError

    file = find_recipe(name, kind)
    values, lines = _read_with_parents(file, kind, ())
    values, changes = rename_keys(values), rename_changes(changes)
    values.setdefault("name", file.stem)
    if kind == "finetune" and changes.get("model", values.get("model")) == "demo":
        values = _merge(values, read_yaml((recipe_folder() / "demo.yaml").read_text("utf-8"), "demo.yaml")[0])
    for key, value in changes.items():
        _set(values, key, value)
    try:
        return record.model_validate(values)
    except ValidationError as error:
        raise _describe(error.errors()[0], record, changes, file, lines) from None


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
    r"""Write ``key=value`` for `--set`, quoted so that shell and YAML give back the very value.

    >>> assignment("data.columns.text", "review"), assignment("data.columns.text", " a")
    ('data.columns.text=review', '\'data.columns.text=" a"\'')
    """
    plain = read_value(value) == value
    return shlex.quote(f"{key}={value if plain else json.dumps(value, ensure_ascii=False)}")


def _read_with_parents(file: Path, kind: str, seen: tuple[Path, ...]) -> tuple[dict[str, Any], Lines]:
    if file.resolve() in seen:
        raise RecipeError("recipes extend each other in a circle", "drop one `extends:`", file=file)
    try:
        values, lines = read_yaml(file.read_text(encoding="utf-8"), file)
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8 text: byte {error.start}", "save it as UTF-8", file=file) from None
    parent = values.pop("extends", None)
    if parent is None:
        return values, lines
    beside = file.parent / str(parent)
    above = beside if beside.is_file() else find_recipe(str(parent), kind)
    inherited, _ = _read_with_parents(above, kind, (*seen, file.resolve()))
    for key in ("name", "published"):  # the parent's own: a child with other rows compares with nothing
        inherited.pop(key, None)
    return _merge(inherited, values), lines


def _merge(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        below = values.get(parent)
        values[parent] = dict(below) if isinstance(below, dict) else {}
        values = values[parent]
    values[last] = value


def _describe(error: Any, record: type[Section], changes: Mapping[str, Any], file: Path, lines: Lines) -> RecipeError:
    path = tuple(str(part) for part in error["loc"])
    known = max((path[:end] for end in range(len(path) + 1) if path[:end] in lines), key=len, default=())
    override = next((key for key in changes if _overlap(path, tuple(key.split(".")))), None)
    place: dict[str, Any] = {"row": lines.get(known), "file": file} if override is None else {}
    if error["type"] == "extra_forbidden":
        return RecipeError(f"unknown key {'.'.join(path)!r}", _closest_key(record, path), **place)
    if error["type"] == "missing":
        return RecipeError(f"the key {'.'.join(path)!r} is missing", "see `bertkit recipes show cola`", **place)
    name = ".".join(
        part for part in path if not part.startswith(("literal[", "function-", "dict[", "int", "constrained"))
    )
    wanted = error["msg"].removeprefix("Value error, ").replace("Input should", "must")
    bounds = "" if error["type"] == "value_error" else _range_of(record, name)
    fault = "is out of range" if bounds and isinstance(error["input"], (int, float)) else f"is wrong: {wanted}"
    return RecipeError(f"{name} = {_shown(error['input'])} {fault}", bounds and f"give {bounds}", **place)


def _overlap(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    return all(one == other for one, other in zip(first, second, strict=False))


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, (int, float)) else repr(value)


def _section_of(record: type[Section], path: tuple[str, ...]) -> tuple[Any, str]:
    from pydantic import BaseModel

    section: Any = record
    for part in path[:-1]:
        field = section.model_fields.get(part)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()  # a section, or one or none
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below is None:
            break
        section = below
    return section, path[-1]


def _closest_key(record: type[Section], path: tuple[str, ...]) -> str:
    section, last = _section_of(record, path)
    return closest(last, section.model_fields)


def _range_of(record: type[Section], name: str) -> str:
    """Say which numbers a field takes, from the bounds its record declares."""
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
