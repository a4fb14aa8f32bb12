"""Mistakes on the command line, in one form: what is wrong, and what to type instead."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Sequence
from typing import Any

from bertkit.errors import UsageError, closest
from bertkit.hardware.launch import is_launched


def refuse_undecodable(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8, since no tokenizer, recipe or record could take them.

    Raises:
        UsageError: one is not.
    """
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            shown = argument.encode("utf-8", "backslashreplace").decode()[:80]
            raise UsageError(f"an argument is not UTF-8: {shown}", "convert the text, or rename the file")


def usage_error(error: Any) -> UsageError:
    """Return an error of the parser of the command line as one of ours, with what to type instead."""
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context else "bertkit"
    what, remedy = error.format_message().removesuffix("."), f"see `{command} --help`"
    if option := getattr(error, "option_name", None):
        if what.startswith("No such option"):
            what, remedy = f"no option is called {option[:80]}", _suggest_option(option, context) or remedy
        elif what.endswith("requires an argument"):
            what, remedy = f"{option} needs a value", f"write {option} VALUE"
    elif hasattr(error.__cause__, "errors"):  # typer has pydantic convert the values
        from bertkit.recipe.validation import rule_of, shown

        (fault, *_) = error.__cause__.errors()
        what = f"{'/'.join(error.param.opts)} = {shown(fault['input'])} is wrong: {rule_of(fault)}"
    elif unknown := re.match("No such command '(.*?)'", what):
        from bertkit.recipe.values import other_commands

        what = f"no command is called {unknown[1][:80]!r}"
        commands, meant = context.command.list_commands(context), other_commands().get(unknown[1].lower(), "")
        remedy = f"write {command} {meant}" if meant in commands else closest(unknown[1], commands)
    return UsageError(what, remedy)


def read_other_names(arguments: Sequence[str], context: Any) -> list[str]:
    """Return the arguments of a command, with the options of the Trainer's scripts under bertkit's names.

    Only names that mean the same are read so, and each is logged. A batch per device is one per step in one process.
    """
    options = _options_of(context)
    read: list[str] = []
    rest = list(arguments)
    while rest:
        typed, equals, value = (argument := rest.pop(0)).partition("=")
        if argument == "--":
            return [*read, argument, *rest]
        meant = _same_option(typed, options)
        if not meant:
            read.append(argument)
            continue
        logging.getLogger("bertkit").info(f"{typed} is read as {meant}")
        if meant.startswith("--set "):
            if not equals:  # an option of truth values needs none there
                value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
            read += ["--set", f"{meant.removeprefix('--set ')}={value}"]
        else:
            read.append(meant + equals + value)
    return read


def _same_option(typed: str, options: Sequence[str]) -> str:
    """Return what an option of other programs is called here, ``--epochs`` or ``--set key``; empty where nothing is."""
    if not typed.startswith("--") or typed in options:
        return ""
    name = typed[2:].replace("-", "_")
    # bertkit's own, spelled with underscores
    if (dashed := "--" + name.replace("_", "-")) in options:
        return dashed
    from bertkit.recipe.values import other_options, same_options

    several = name.startswith("per_device") and is_launched()
    if name not in same_options() or several:
        return ""
    meant = other_options()[name]
    for option in (meant, "--" + meant.rpartition(".")[2].replace("_", "-")):
        if option in options:
            return option
    key = _recipe_key(meant) if meant.startswith("--") else meant
    return f"--set {key}" if key and {"--set", "--fresh"} <= set(options) else ""


def _options_of(context: Any) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]


def _suggest_option(typed: str, context: Any) -> str:
    """Suggest the command's options for an unknown one, or the key of a recipe; empty where nothing is close."""
    from bertkit.recipe.values import other_options

    options = _options_of(context)
    name = typed.lower().replace("_", "-")
    if not name.startswith("--"):
        return ""
    # First the names of other libraries, then keys of recipes, then what is spelled alike.
    meant = other_options().get(name[2:].replace("-", "_"), name)
    if meant in options:
        return f"write {meant}"
    key = _recipe_key(meant) if meant.startswith("--") else meant
    trains = "--fresh" in options
    if key and "--set" in options and (trains or not key.startswith("training.")):
        return f"write --set {key}=..."
    words = set(name[2:].split("-"))
    matches = [option for option in options if words <= set(option[2:].split("-"))][:2]
    matches = matches or difflib.get_close_matches(name, options, n=2, cutoff=0.7)
    return f"did you mean {' or '.join(matches)}?" if matches else ""


def _recipe_key(option: str) -> str:
    """Find the key in `data` or `training` of a recipe that an option is called like; empty where there is none."""
    from bertkit.recipe import Corpus, Data, Pretraining, Training

    name = option.removeprefix("--").replace("-", "_")
    sections = {"training": {**Training.model_fields, **Pretraining.model_fields}}
    sections["data"] = {**Data.model_fields, **Corpus.model_fields}
    return next((f"{section}.{name}" for section, keys in sections.items() if name in keys), "")
