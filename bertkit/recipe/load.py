"""Find a recipe, extend its parent, apply overrides, resolve conflicts, and check the result."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from bertkit.errors import DataError, RecipeError, did_you_mean, shorten, similar_path
from bertkit.progress import log
from bertkit.recipe.plugins import trusts_folders
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.sections import ConfigSection, expand_path
from bertkit.recipe.validation import build_recipe_error, read_names
from bertkit.recipe.yaml import KeyPath, Lines, read_value, read_yaml

_Record = TypeVar("_Record", bound=ConfigSection)

FOLDER_RECIPE = "recipe.yaml"
"""Name of the recipe that comes with a model; code that it names runs only if the user trusts the model."""

_LIST = "`bertkit recipes list` shows the shipped ones"
# Keys of `data` that apply to one source only.
_SOURCE_KEYS = ("config", "revision", "files", "splits", "documents")
# Keys of a recipe that apply to one checkpoint, or to one new model, only.
_MODEL_KEYS = ("model_labels", "tokenizer", "model_options")


def recipe_folder() -> Path:
    """Return the folder of the shipped recipes: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def recipe_names(command: str = "finetune") -> list[str]:
    """List the names of the shipped recipes for a command, `finetune` or `pretrain`."""
    return sorted(file.stem for file in (recipe_folder() / command).glob("*.yaml"))


def find_recipe(name: str, command: str = "") -> Path:
    """Find the file of a recipe by its name or path.

    Args:
        name: Name of a shipped recipe, or a path.
        command: Command whose shipped recipes are searched, `finetune` or `pretrain`; both by default.

    Raises:
        RecipeError: If there is no such shipped recipe or file; the message suggests the closest names.
    """
    if is_other_file(name):
        raise RecipeError("expected a recipe, got a file that is not YAML", _LIST, file=name)
    if name.endswith((".yaml", ".yml")) or "/" in name:
        file = expand_path(name)
        if not file.is_file():
            raise RecipeError("no such recipe file", similar_path(file) or _LIST, file=name)
        return file
    commands = (command,) if command else ("finetune", "pretrain")
    for folder in commands:
        if name in recipe_names(folder):
            return recipe_folder() / folder / f"{name}.yaml"
    other_command = "pretrain" if command == "finetune" else "finetune"
    if command and name in recipe_names(other_command):
        message = f"{name!r} is a recipe of `bertkit {other_command}`"
        raise RecipeError(message, f"`bertkit {other_command} {name}`, or {_LIST}")
    names = chain.from_iterable(map(recipe_names, commands))
    # Other tools name a task, such as text-classification.
    recipe_name = read_names("recipes").get(name)
    remedy = f"write {recipe_name}" if recipe_name else did_you_mean(name, names)
    raise RecipeError(f"no recipe is called {shorten(repr(name))}", remedy)


def is_other_file(name: str) -> bool:
    """Return whether a name is a file other than YAML, such as a file with rows."""
    file = expand_path(name)
    return file.suffix not in ("", ".yaml", ".yml") and file.is_file()


def recipe_command(name: str) -> str:
    """Return the command that a recipe is for: `pretrain` if it names an objective, otherwise `finetune`."""
    return "pretrain" if "objective" in read_values(name) else "finetune"


def read_values(name: str) -> dict[str, Any]:
    """Read the keys of a recipe and its parents without checking the values; wrong YAML is an error."""
    return _read_source(name, "").values


def load_any_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe | PretrainRecipe:
    """Load a recipe for fine-tuning or pretraining; see `load_recipe` for the errors."""
    source = _read_source(name, "")
    if "objective" in source.values:
        return _load(source, PretrainRecipe, changes or {})
    return _load(source, Recipe, changes or {})


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe for fine-tuning with its parents and with changes (dotted key -> value).

    The training settings of the demo model override the settings of a shipped recipe, but not the user's. If a change,
    or a recipe that extends this one, names other data or another model, keys that belong to the old data or model are
    dropped, such as ``data.config``.

    Raises:
        RecipeError: If there is no such recipe, or its YAML, a key or a value is wrong; the message names the file and
            line, or the override, and the closest key.
    """
    return _load(_read_source(name, "finetune"), Recipe, changes or {})


def load_pretrain_recipe(name: str, changes: Mapping[str, Any] | None = None) -> PretrainRecipe:
    """Load a recipe for pretraining with its parents and with changes; see `load_recipe` for the errors."""
    return _load(_read_source(name, "pretrain"), PretrainRecipe, changes or {})


@dataclass(frozen=True)
class _Source:
    """Contents of a recipe file and its parents, before changes and checks."""

    file: Path
    values: dict[str, Any]
    """Keys of the recipe and its parents."""
    custom_values: dict[str, Any]
    """Keys from files that are not shipped."""
    lines: Lines
    """Lines of the keys in `file`."""
    is_trusted: bool
    """Whether none of the files came with a model."""


def _load(source: _Source, record: type[_Record], changes: Mapping[str, Any]) -> _Record:
    """Apply the demo's settings and the changes, resolve conflicts, and check the result."""
    # 1. Merge the settings. Later ones win: parents, the file, the demo's settings, changes.
    values = {"name": source.file.stem, **source.values}
    if record is Recipe and changes.get("model", values.get("model")) == "demo":
        settings = read_yaml((recipe_folder() / "demo.yaml").read_text("utf-8"), "demo.yaml")[0]
        for overrides in (settings["any"], settings.get(str(values.get("task")), {}), source.custom_values):
            values = _merge_values(values, overrides)
    _drop_outdated_keys(values, changes)
    for key, value in changes.items():
        _set_value(values, key, value)
    # 2. Resolve conflicts in which one setting was made by the user and the other by the recipe.
    origin = Origin(changes, source.lines)
    for key, value in resolve_conflicts(values, origin).items():
        _set_value(values, key, value)
    if record is Recipe and isinstance(values.get("data"), dict):
        values["data"] = fill_language(values["data"], is_change="data.language" in changes)
    # 3. Check all values.
    try:
        # A recipe.yaml comes with a downloaded model; code that it names runs only if the user trusts it.
        recipe = record.model_validate(values, context={"trusted": source.is_trusted or trusts_folders()})
    except ValidationError as error:
        raise build_recipe_error(error.errors(), record, changes, source.file, source.lines) from None
    # 4. Distinguish explicit values from defaults: `auto` and budgets change only values that the user left open.
    _mark_explicit_keys(recipe, "", origin, 2 if _is_shipped(source.file) else 1)
    return recipe


def _mark_explicit_keys(section: ConfigSection, name: str, origin: Origin, rank: int) -> None:
    """Keep in `model_fields_set` only the keys that the user set: keys with this rank or a higher one; see `Origin`."""
    for field in list(section.model_fields_set):
        key, value = f"{name}.{field}".lstrip("."), getattr(section, field)
        if hasattr(value, "model_fields_set"):
            _mark_explicit_keys(value, key, origin, rank)
        # pydantic adds all keys of the merged recipe, including keys that the user never wrote.
        elif origin.rank(key) < rank:
            section.model_fields_set.discard(field)


def _drop_outdated_keys(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Remove keys that belong to the data or the model of a recipe, if changes or a child name other data or models."""
    # The config, revision and files of the old source do not exist in the new one.
    data, source = values.get("data"), changes.get("data.source")
    if isinstance(data, dict) and source is not None and _strip_revision(source) != _strip_revision(data.get("source")):
        values["data"] = {key: value for key, value in data.items() if key not in _SOURCE_KEYS}
        values["data"]["splits"] = _filter_splits(str(source), data.get("splits") or {})
        if source == "demo" and data.get("config") and not has_language(data):
            # The demo has generated rows for each dataset.
            values["data"]["config"] = data["config"]
        if not has_language({**values["data"], "source": source}):
            values["data"].pop("language", None)
    elif isinstance(data, dict):
        files = changes.get("data.files")
        if "data.files.train" in changes or (isinstance(files, Mapping) and "train" in files):
            values["data"] = {key: value for key, value in data.items() if key != "documents"}
    model, distillation = changes.get("model"), values.get("distillation")
    if model is not None and model != values.get("model"):
        for key in _MODEL_KEYS:
            values.pop(key, None)
        # `student_layers` would build the student from its teacher instead of from the new model.
        if isinstance(distillation, dict):
            values["distillation"] = {key: value for key, value in distillation.items() if key != "student_layers"}


def _strip_revision(source: object) -> str:
    """Return a source of data without the revision that follows the ``@`` in a Hub name."""
    name = str(source)
    return name if expand_path(name).exists() else name.partition("@")[0]


def _filter_splits(source: str, splits: dict[str, Any]) -> dict[str, Any]:
    """Return the splits that another source has too, such as a folder with a copy of the dataset."""
    folder = expand_path(source)
    # The demo and single files do not name their splits.
    if source == "demo" or folder.is_file():
        return splits
    # Python 3.13 raises if `glob` is called on a path with half a character (a lone surrogate).
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
            hint = f"{error.remedy}; for text: {format_assignment(key, value)}"
            raise RecipeError(f"--set {shorten(key)}: {error.message}", hint) from None
    return changes


def format_assignment(key: str, value: str) -> str:
    r"""Write ``key=value`` for `--set`, quoted so that the shell and YAML read exactly this value.

    >>> format_assignment("data.columns.text", "review"), format_assignment("data.columns.text", " a")
    ('data.columns.text=review', '\'data.columns.text=" a"\'')
    """
    try:
        needs_no_quotes = read_value(value) == value
    except RecipeError:
        needs_no_quotes = False
    return shlex.quote(f"{key}={value if needs_no_quotes else json.dumps(value, ensure_ascii=False)}")


def _is_shipped(file: Path) -> bool:
    return file.parent == recipe_folder() / file.parent.name


def _read_source(name: str, command: str) -> _Source:
    return _read_with_parents(find_recipe(name, command), command, ())


def _read_with_parents(file: Path, command: str, children: tuple[Path, ...]) -> _Source:
    if file.resolve() in children:
        raise RecipeError("recipes extend each other in a circle", "remove one `extends:`", file=file)
    try:
        values, lines = read_yaml(file.read_text(encoding="utf-8"), file)
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8 text: byte {error.start}", "save it as UTF-8", file=file) from None
    name = values.pop("extends", None)
    # A recipe that came with a model is called recipe.yaml. A file with another name was chosen by the user.
    source = _Source(file, values, {} if _is_shipped(file) else values, lines, file.name != FOLDER_RECIPE)
    if name is None:
        return source
    # A file in the same folder comes before a shipped recipe of that name.
    sibling = file.parent / str(name)
    parent_file = sibling if sibling.is_file() else find_recipe(str(name), command)
    parent = _read_with_parents(parent_file, command, (*children, file.resolve()))
    # Published scores are about the rows of the parent, so they are not inherited.
    inherited = {key: value for key, value in parent.values.items() if key not in ("name", "published")}
    data = values["data"] if isinstance(values.get("data"), dict) else {}
    changes = {"model": values.get("model"), "data.source": data.get("source"), "data.files": data.get("files")}
    _drop_outdated_keys(inherited, changes)
    return replace(
        source,
        values=_merge_values(inherited, values),
        custom_values=_merge_values(parent.custom_values, source.custom_values),
        is_trusted=source.is_trusted and parent.is_trusted,
    )


def _merge_values(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        are_sections = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge_values(merged[key], value) if are_sections else value
    return merged


def _set_value(values: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    # Copy each section of the path, because the merged values and the parents share their sections.
    for section in sections:
        content = values.get(section)
        values[section] = dict(content) if isinstance(content, dict) else {}
        values = values[section]
    values[last] = value


# --- The language of the data ---


PLACEHOLDER = "{language}"
# Keys of `data` that can contain the placeholder.
_WITH_LANGUAGE = ("source", "config", "files", "splits")


def has_language(data: Mapping[str, Any]) -> bool:
    """Return whether the section `data` of a recipe contains ``{language}``."""
    values = [data.get(key) for key in _WITH_LANGUAGE]
    texts = chain.from_iterable(value.values() if isinstance(value, Mapping) else [value] for value in values)
    return any(isinstance(text, str) and PLACEHOLDER in text for text in texts)


def fill_language(data: Mapping[str, Any], *, is_change: bool) -> dict[str, Any]:
    """Replace ``{language}`` in the section `data` of a recipe by ``data.language``.

    The recipe that a run stores contains the language, not the placeholder.

    Args:
        data: Section of the recipe, unchecked.
        is_change: Whether the language is an override.

    Raises:
        RecipeError: If the language is an override but no key contains ``{language}``, or if a key contains
            ``{language}`` but there is no language.
        DataError: If a folder has files or folders of other languages only.
    """
    language = data.get("language")
    if not has_language(data):
        if not is_change or language is None:
            return dict(data)
        source = data.get("source") or "the recipe's data"
        message = f"no {PLACEHOLDER} in {source}, so data.language={language} has no effect"
        raise RecipeError(message, f"write e.g. --data 'folder/{PLACEHOLDER}', or data.config: '{PLACEHOLDER}'")
    if language is None:
        message = f"the data has {PLACEHOLDER} in its name, but the recipe has no data.language"
        raise RecipeError(message, "add --set data.language=en, or another; or `bertkit eval --languages en,de`")
    # The check of the recipe reports a language that is not text.
    if not isinstance(language, str):
        return dict(data)
    _check_folder(str(data.get("source") or ""), language)
    return {**data, **{key: _fill_value(data[key], language) for key in _WITH_LANGUAGE if key in data}}


def _fill_value(value: Any, language: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill_value(inner, language) for key, inner in value.items()}
    return value.replace(PLACEHOLDER, language) if isinstance(value, str) else value


def _check_folder(source: str, language: str) -> None:
    """Check that a local source has a language; a source that exists in another language is not a Hub name."""
    path = expand_path(source)
    index = next((index for index, name in enumerate(path.parts) if PLACEHOLDER in name), None)
    if index is None or Path(_fill_value(str(path), language)).exists():
        return
    # List the languages that exist, so that the error can suggest the closest.
    folder = Path(*path.parts[:index])
    pattern = re.escape(path.parts[index]).replace(re.escape(PLACEHOLDER), "(.+)", 1)
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    names = [match[1] for match in (re.fullmatch(pattern, name) for name in entries) if match]
    languages = [name for name in names if Path(_fill_value(str(path), name)).exists()]
    if languages:
        raise DataError(f"no language {language!r} in {source}", did_you_mean(language, languages))


# --- Conflicts between settings ---

# A setting of the user wins over a conflicting setting of the recipe, and one line is logged. Two conflicting settings
# are an error only if both come from the same place: both from the command line (or Python), or both from the user's
# file. If a recipe has a `short_length` of 128, `--set training.max_length=64` drops it. If the command line has both
# values, it is an error.

FindReplacement = Callable[[Any, Any], Any]
"""Function (winning value, other value) -> new value for the other key; unchanged if they do not conflict."""


def _keep_if_shorter(max_length: Any, short_length: Any) -> Any:
    lengths = _read_counts(max_length, short_length)
    return None if lengths and lengths[1] >= lengths[0] else short_length


def _keep_if_listed(metrics: Any, best_metric: Any) -> Any:
    return best_metric if not isinstance(metrics, list) or not metrics or best_metric in metrics else metrics[0]


def _find_divisor(batch_size: Any, micro_batches: Any) -> Any:
    """Return the largest number of micro-batches, up to the recipe's, that divides the batch size.

    Fewer micro-batches need more memory but do not change the result, so this is not an error.
    """
    counts = _read_counts(batch_size, micro_batches)
    if not counts or not counts[0] % counts[1]:
        return micro_batches
    # For 30 rows, 4 micro-batches become 3.
    return max(count for count in range(1, counts[1]) if counts[0] % count == 0)


def _allow_padding(needs_padding: Any, unpad: Any) -> Any:
    return "auto" if needs_padding is True and unpad is True else unpad


def _keep_with_decay(schedule: Any, decay_ratio: Any) -> Any:
    return decay_ratio if schedule == "warmup_stable_decay" else None


def _drop(_winner: Any, _value: Any) -> Any:
    return None


def _read_counts(*values: Any) -> list[int]:
    """Read positive integers; return an empty list if a value is wrong, which the check of the recipe reports."""
    try:
        counts = [int(value) for value in values]
    except (TypeError, ValueError):
        return []
    return counts if min(counts) > 0 else []


RULES: list[tuple[str, str, FindReplacement]] = [
    ("training.max_length", "training.short_length", _keep_if_shorter),
    ("training.epochs", "training.steps", _drop),
    ("training.epochs", "training.budget", _drop),
    ("training.steps", "training.budget", _drop),
    ("training.batch_size", "training.gradient_accumulation", _find_divisor),
    ("training.schedule", "training.decay_ratio", _keep_with_decay),
    ("training.torch_compile", "training.unpad", _allow_padding),
    ("training.cuda_graphs", "training.unpad", _allow_padding),
    ("options.student_layers", "options.student_size", _drop),
    ("metrics", "best_metric", _keep_if_listed),
    ("data.train_rows_per_label", "data.train_limit", _drop),
    ("data.train_limit", "data.train_rows_per_label", _drop),
]
"""Key that wins if it comes from a later place, key that changes, and the function that returns its new value."""


class Origin:
    """Origin of the keys of a recipe: the command line comes after the recipe's file, and the file after its parents.

    Args:
        changes: Dotted keys from the command line, or from Python.
        file_keys: Key paths in the file of the recipe, without its parents.
    """

    def __init__(self, changes: Iterable[str], file_keys: Iterable[KeyPath]) -> None:
        self.changed_keys = [tuple(key.split(".")) for key in changes]
        self.file_keys = set(file_keys)

    def rank(self, key: str) -> int:
        """Return 2 for a key from the command line, 1 for a key in the recipe's file, or 0 for parents and defaults."""
        path = tuple(key.split("."))
        if any(path[: len(changed_key)] == changed_key for changed_key in self.changed_keys):
            return 2
        return int(path in self.file_keys)


def resolve_conflicts(values: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Return new values for settings that conflict with a setting from a later place: dotted key -> new value.

    Each change is logged. Settings from the same place are not changed; the check of the recipe reports their conflict.
    """
    new_values: dict[str, Any] = {}
    for winner, key, find_replacement in RULES:
        winning_value, value = (new_values.get(name, _get_value(values, name)) for name in (winner, key))
        # Some pairs of keys have a rule for either direction, so the origin decides which of the two wins.
        if winning_value is None or value is None or origin.rank(winner) <= origin.rank(key):
            continue
        new_value = find_replacement(winning_value, value)
        if new_value != value:
            new_values[key] = new_value
            outcome = "is left out" if new_value is None else f"is now {new_value}"
            winning_text, text = (
                str(setting).lower() if isinstance(setting, bool) else setting for setting in (winning_value, value)
            )
            log.warning(f"{winner} {winning_text} does not go with the recipe's {key} {text}, which {outcome}")
    return new_values


def _get_value(values: Mapping[str, Any], key: str) -> Any:
    section, _, last = key.rpartition(".")
    content = values.get(section) if section else values
    return content.get(last) if isinstance(content, Mapping) else None
