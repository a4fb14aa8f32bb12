"""The values of a recipe before they are checked: ``{language}``, and settings that give way to others.

What a user gives wins over a setting of the recipe that no longer fits it, with one line that says so. Two settings
that do not fit are refused only where both were given at the same time: both on the command line (or in Python), or
both in the user's own file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bertkit.errors import DataError, RecipeError, closest
from bertkit.progress import log
from bertkit.recipe.sections import typed_path
from bertkit.recipe.yaml import KeyPath


def decided_arguments() -> dict[str, str]:
    """Read which fields of transformers' TrainingArguments bertkit decides: name -> what decides it."""
    return _read_names("training_arguments")


def other_names() -> dict[str, str]:
    """Read what other tools call a key of a recipe, whatever section they have it in: name -> bertkit's key."""
    decided = {name: key for name, key in decided_arguments().items() if not key.startswith("bertkit ")}
    return decided | _read_names("other_tools")


def other_options() -> dict[str, str]:
    """Read what other programs call an option: its name, with underscores -> bertkit's option, or its recipe key."""
    return other_names() | _read_names("options")


def option_hints() -> dict[str, str]:
    """Read what to do instead of an option of other programs: its name, with underscores -> a remedy."""
    return _read_names("hints")


def other_commands() -> dict[str, str]:
    """Read what other tools call a command: name -> bertkit's command."""
    return _read_names("commands")


def same_options() -> set[str]:
    """Read which of `other_options` mean the same as bertkit's, so that they can stand for them."""
    return set(_read_tables()["same"])


def _read_names(table: str) -> dict[str, str]:
    return {name: key for key, names in _read_tables()[table].items() for name in names}


@cache
def _read_tables() -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text(encoding="utf-8"))
    return tables


PLACEHOLDER = "{language}"
_WITH_LANGUAGE = ("source", "config", "files", "splits")  # of `data`, which may have it


def names_language(data: Mapping[str, Any]) -> bool:
    """Tell whether what a recipe says of its data has ``{language}`` in it."""
    return any(PLACEHOLDER in text for key in _WITH_LANGUAGE for text in _texts(data.get(key)))


def fill_language(data: Mapping[str, Any], *, is_change: bool) -> dict[str, Any]:
    """Put ``data.language`` into what a recipe says of its data.

    The recipe of a run has its language and no ``{language}`` any more.

    Args:
        data: the section of the recipe, unchecked.
        is_change: whether the language is an override.

    Raises:
        RecipeError: an override without ``{language}``, or ``{language}`` and no language.
        DataError: a folder has files or folders of other languages only.
    """
    language = data.get("language")
    if not names_language(data):
        if not is_change or language is None:
            return dict(data)
        where = data.get("source") or "the recipe's data"
        what = f"no {PLACEHOLDER} in {where}, so there is nothing to put {language!r} into"
        raise RecipeError(what, f"write e.g. --data 'folder/{PLACEHOLDER}', or data.config: '{PLACEHOLDER}'")
    if language is None:
        what = f"the data has {PLACEHOLDER} in its name, and the recipe no data.language"
        raise RecipeError(what, "--set data.language=en, or another; or `bertkit eval --languages en,de`")
    if not isinstance(language, str):
        return dict(data)  # an error of the record
    _check_folder(str(data.get("source") or ""), language)
    return {**data, **{key: _fill_value(data[key], language) for key in _WITH_LANGUAGE if key in data}}


def _texts(value: Any) -> list[str]:
    values = value.values() if isinstance(value, Mapping) else [value]
    return [text for text in values if isinstance(text, str)]


def _fill_value(value: Any, language: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill_value(inner, language) for key, inner in value.items()}
    return value.replace(PLACEHOLDER, language) if isinstance(value, str) else value


def _check_folder(source: str, language: str) -> None:
    """Check that a source in a folder is there, if it is there for another language: it is no name of the hub then."""
    path = typed_path(source)
    # The languages that are there are read off the folder, to name the nearest in the error.
    first = next((number for number, name in enumerate(path.parts) if PLACEHOLDER in name), None)
    if first is None or Path(_fill_value(str(path), language)).exists():
        return
    folder = Path(*path.parts[:first])
    pattern = re.escape(path.parts[first]).replace(re.escape(PLACEHOLDER), "(.+)", 1)
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    found = [match[1] for match in (re.fullmatch(pattern, name) for name in entries) if match]
    there = [name for name in found if Path(_fill_value(str(path), name)).exists()]
    if there:
        raise DataError(f"no language {language!r} in {source}", closest(language, there))


Replace = Callable[[Any, Any], Any]
"""Takes the value that wins and the one that may not fit; returns what takes its place: the same where it fits."""


def _shorter(max_length: Any, short_length: Any) -> Any:
    numbers = _read_numbers(max_length, short_length)
    return None if numbers and numbers[1] >= numbers[0] else short_length


def _listed(metrics: Any, best_metric: Any) -> Any:
    return best_metric if not isinstance(metrics, list) or not metrics or best_metric in metrics else metrics[0]


def _divisor(batch_size: Any, micro_batches: Any) -> Any:
    """Find the largest number of micro-batches, up to the recipe's, that divides the batch: the result is the same."""
    numbers = _read_numbers(batch_size, micro_batches)
    if not numbers or not numbers[0] % numbers[1]:
        return micro_batches
    # Fewer micro-batches cost memory and change no result, so this one is adjusted and not refused.
    return max(number for number in range(1, numbers[1]) if numbers[0] % number == 0)


def _padded(needs_padding: Any, unpad: Any) -> Any:
    return "auto" if needs_padding is True and unpad is True else unpad


def _kept_by_decay(schedule: Any, decay_ratio: Any) -> Any:
    return decay_ratio if schedule == "warmup_stable_decay" else None


def _absent(_winner: Any, _value: Any) -> Any:
    return None


def _read_numbers(*values: Any) -> list[int]:
    """Read whole numbers as the records will; an empty list where one is none, which they will refuse."""
    try:
        numbers = [int(value) for value in values]
    except (TypeError, ValueError):
        return []
    return numbers if min(numbers) > 0 else []


RULES: list[tuple[str, str, Replace]] = [
    ("training.max_length", "training.short_length", _shorter),
    ("training.epochs", "training.steps", _absent),
    ("training.epochs", "training.budget", _absent),
    ("training.steps", "training.budget", _absent),
    ("training.batch_size", "training.gradient_accumulation", _divisor),
    ("training.schedule", "training.decay_ratio", _kept_by_decay),
    ("training.torch_compile", "training.unpad", _padded),
    ("training.cuda_graphs", "training.unpad", _padded),
    ("options.student_layers", "options.student_size", _absent),
    ("metrics", "best_metric", _listed),
    ("data.per_class", "data.train_limit", _absent),
    ("data.train_limit", "data.per_class", _absent),
]
"""The key that wins where it was given later, the key that gives way, and what takes its place."""


class Origin:
    """Where the keys of a recipe come from: what was typed comes after the recipe's file, and that after its parents.

    Args:
        typed: dotted keys from the command line, or from Python.
        written: key paths in the recipe's own file.
    """

    def __init__(self, typed: Iterable[str], written: Iterable[KeyPath]) -> None:
        self.typed = [tuple(key.split(".")) for key in typed]
        self.written = set(written)

    def rank(self, key: str) -> int:
        """Return 2 for a key that was typed, 1 for one of the recipe's file, 0 for one of its parents or a default."""
        path = tuple(key.split("."))
        if any(path[: len(typed)] == typed for typed in self.typed):
            return 2
        return int(path in self.written)


def settle(values: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Find the settings that give way to others that were given later: dotted key -> the value that takes its place.

    Each is logged in one line. What was given at the same time is left as it is, for the records to judge.
    """
    settled: dict[str, Any] = {}
    for winner, key, replace in RULES:
        leading, value = (settled.get(name, _get_value(values, name)) for name in (winner, key))
        # Only what was given later wins; two keys that were typed together contradict each other, which is an error.
        if leading is None or value is None or origin.rank(winner) <= origin.rank(key):
            continue
        new = replace(leading, value)
        if new != value:
            settled[key] = new
            outcome = "is left out" if new is None else f"is now {new}"
            leading, value = (str(one).lower() if isinstance(one, bool) else one for one in (leading, value))
            log.warning(f"{winner} {leading} does not go with the recipe's {key} {value}, which {outcome}")
    return settled


def _get_value(values: Mapping[str, Any], key: str) -> Any:
    section, _, last = key.rpartition(".")
    content = values.get(section) if section else values
    return content.get(last) if isinstance(content, Mapping) else None
