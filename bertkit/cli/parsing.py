"""Parsing of the command line: the layout of the help, options of other programs, and errors with suggestions."""

from __future__ import annotations

import difflib
import logging
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from bertkit.cli import terminal
from bertkit.cli.terminal import json_output
from bertkit.errors import UsageError, did_you_mean
from bertkit.hardware.device import is_launched

# Parameters of commands that load a recipe, and of those that load a model.
_READ_RECIPES = {"run", "runs", "recipe", "task"}
_COMPUTE = _READ_RECIPES | {"model", "models"}
_TRUST = "Run code that the recipe in a model folder names: a custom task, objective or metric."
_DEVICE = "Device: auto (an accelerator if available), cpu, cuda, mps, xpu, xla, ..."
_THREADS = "Number of threads on a CPU."
SECTIONS = ("data", "training", "options", "distillation", "gates", "model_options")
"""Sections of recipes, whose keys are typed as ``training.epochs=1``, ``--training.epochs 1`` or with `--set`."""
_OVERRIDE = re.compile(rf"(--)?(?:{'|'.join(SECTIONS)})\.\S+")
_WIDEST = 100  # columns; longer lines are hard to read
_TYPED = "bertkit.typed"  # the arguments as typed, in the context
_CONFIG = "bertkit.config"  # the recipe that `--config` names, in the context
_Context: Any = TyperGroup.context_class
_Formatter: Any = _Context.formatter_class


class _FittedFormatter(_Formatter):  # type: ignore[misc]
    """Formatter that fits the help into the terminal; the names of options get at most three eighths of a line."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        super().__init__(indent_increment, width or min(shutil.get_terminal_size().columns, max_width or _WIDEST))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage without the braces that typer puts around required arguments, and without double dots."""
        super().write_usage(prog, re.sub(r"[{}]", "", args).replace("......", "...").replace("...]...", "...]"), prefix)

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and their descriptions in two columns, without the types that typer puts behind arguments."""
        rows = [(re.sub(r"^([A-Z].*) <\S+>$", r"\1", name), text) for name, text in rows]
        super().write_dl(rows, min(col_max, 3 * self.width // 8), col_spacing)


class _FittedContext(_Context):  # type: ignore[misc]
    formatter_class = _FittedFormatter


class _Readable:
    """Base of commands and groups."""

    context_class: Any = _FittedContext
    help: str | None

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the complete first paragraph of the help."""
        # The base class cuts the summary after `limit` characters, even in a wide terminal.
        return " ".join((self.help or "").partition("\n\n")[0].split())


class ReadableCommand(_Readable, TyperCommand):
    """Command with --json and the log options; if it loads a recipe or a model, also with --device and --threads."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        names = {parameter.name for parameter in self.params}
        # The list is trust, device, threads, json and three log options. A command that only reads files gets
        # the last four, and a command that loads no recipe has no code to trust.
        self.params += _process_options()[0 if names & _READ_RECIPES else 1 if names & _COMPUTE else 3 :]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments after `translate_arguments`."""
        ctx.meta[_TYPED] = args
        # While the shell completes, the arguments may end before the value of an option.
        return super().parse_args(ctx, args if ctx.resilient_parsing else translate_arguments(args, ctx))

    def invoke(self, ctx: Any) -> Any:
        """Apply the options that concern the process, and run the command without them."""
        if ctx.params.pop("trust", False):
            from bertkit.recipe.plugins import trust_folders

            trust_folders()
        # Threads and device must be set before torch is imported.
        if "threads" in ctx.params:
            from bertkit.hardware import device, process
            from bertkit.storage.cache import keep_working_folder_clean

            keep_working_folder_clean()
            process.prepare(ctx.params.pop("threads"))
            device.prepare(ctx.params.pop("device"))
        terminal.configure_log(*(ctx.params.pop(name) for name in ("quiet", "verbose", "log_file")))
        with json_output(ctx.params.pop("json")):
            return super().invoke(ctx)


@cache
def _process_options() -> list[Any]:
    """Build the options of the process, once for all commands."""

    def command(
        trust: bool = typer.Option(False, "--trust-remote-code", help=_TRUST),
        device: str | None = typer.Option(None, help=_DEVICE, metavar="TYPE", show_default="auto"),
        threads: int | None = typer.Option(None, help=_THREADS, metavar="N", show_default="available cores", min=1),
        json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
        quiet: terminal.QuietOption = False,
        verbose: terminal.VerboseOption = False,
        log_file: terminal.LogFileOption = None,
    ) -> None:
        """Hold the options."""

    # typer builds options only from the signature of a command, so a command is made and its options are taken.
    holder = typer.Typer(add_completion=False)
    holder.command()(command)
    params: list[Any] = typer.main.get_command(holder).params[:7]
    for parameter in params[4:]:
        parameter.hidden = True  # `bertkit --help` shows them
    return params


class ReadableGroup(_Readable, TyperGroup):
    """Group whose help fits the terminal."""


def check_encoding(arguments: Sequence[str]) -> None:
    """Check that the arguments are UTF-8, which tokenizers, recipes and records require.

    Raises:
        UsageError: If an argument is not UTF-8.
    """
    for argument in arguments:
        # Python decodes a byte that is not UTF-8 to half of a surrogate pair (PEP 383).
        if any("\ud800" <= character <= "\udfff" for character in argument):
            escaped = argument.encode("utf-8", "backslashreplace").decode()[:80]
            raise UsageError(f"an argument is not UTF-8: {escaped}", "convert the text, or rename the file")


def usage_error(error: Any) -> UsageError:
    """Convert an error of the parser to a UsageError with the option or command to type instead."""
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context else "bertkit"
    message, remedy = error.format_message().removesuffix("."), f"see `{command} --help`"
    if option := getattr(error, "option_name", None):
        if message.startswith("No such option"):
            message, remedy = f"no option is called {option[:80]}", _suggest_option(option, context) or remedy
        elif message.endswith("requires an argument"):
            message, remedy = f"{option} needs a value", f"write {option} VALUE"
    elif hasattr(error.__cause__, "errors"):  # typer converts values with pydantic
        from bertkit.recipe.validation import describe_rule, format_value

        (problem, *_) = error.__cause__.errors()
        message = f"{'/'.join(error.param.opts)} = {format_value(problem['input'])} is wrong: {describe_rule(problem)}"
    # The parser has no codes for its errors, so their English messages are matched. Tests fail if a release rewords
    # them.
    elif extra := re.match(r"Got unexpected extra argument\S* \((.*)\)", message):
        message = f"unexpected argument: {extra[1][:80]}"
        if _CONFIG in context.meta:
            message = f"--config {context.meta[_CONFIG]} and {extra[1][:80]}"
            remedy = "name the recipe once"
        elif "--set" in _list_options(context) and (setting := re.search(r"\S+=.*", extra[1])):
            remedy = _suggest_section(setting[0][:80]) or f"write --set {setting[0][:80]}"
        elif "--data" in _list_options(context) and Path(extra[1]).is_file():
            remedy = f"write --data {shlex.quote(extra[1])}"
    elif unknown := re.match("No such command '(.*?)'", message):
        from bertkit.recipe.validation import read_names

        message = f"no command is called {unknown[1][:80]!r}"
        commands, meant = context.command.list_commands(context), read_names("commands").get(unknown[1].lower(), "")
        remedy = f"write {command} {meant}" if meant in commands else did_you_mean(unknown[1], commands)
    return UsageError(message, remedy)


def translate_arguments(arguments: Sequence[str], context: Any) -> list[str]:
    """Return the arguments of a command as it declares them.

    Keys of a recipe such as ``training.epochs=1`` or ``--training.epochs 1`` become `--set`, the value of `--config`
    becomes the RECIPE, and options of the Trainer's scripts that mean the same get bertkit's names, each with a line in
    the log. The values of options are left as they are.

    Raises:
        UsageError: If `--config` or the key of a recipe has no value.
    """
    parameters = context.command.params
    options = _list_options(context)
    # A value must not be mistaken for an option: in `--text --config`, the second word is the text.
    valued = (parameter for parameter in parameters if _is_option(parameter) and not parameter.is_flag)
    takes_value = {name for parameter in valued for name in parameter.opts}
    translated: list[str] = []
    rest = list(arguments)
    while rest:
        typed, equals, value = (argument := rest.pop(0)).partition("=")
        if argument == "--":
            return [*translated, argument, *rest]
        if argument in takes_value:
            translated += [argument, *rest[:1]]
            del rest[:1]
        elif "--set" in options and _is_override(argument, parameters):
            value = value if equals else _pop_value(typed, rest)
            translated += ["--set", f"{typed.removeprefix('--')}={value}"]
        elif typed == "--config" and _takes_recipe(parameters):
            context.meta[_CONFIG] = value if equals else _pop_value(typed, rest)
            translated.insert(0, context.meta[_CONFIG])  # RECIPE is the first argument of every command that has one
        elif meant := _translate_option(typed, options):
            if meant in takes_value:
                # The renamed option goes through the loop again, which then takes its value.
                logging.getLogger("bertkit").info(f"{typed} is read as {meant}")
                rest.insert(0, meant + equals + value)
            else:
                translated += _translate_flag(typed, meant, value, rest)
        else:
            translated.append(argument)
    return translated


def _is_override(argument: str, parameters: Sequence[Any]) -> bool:
    """Return whether an argument sets a key of a recipe; ``a.b=c`` may be a file or a text instead."""
    typed, equals, _ = argument.partition("=")
    match = _OVERRIDE.fullmatch(typed)
    if match is None or match[1]:
        return match is not None
    # With dashes, it cannot mean anything else. Without dashes, it is a setting only in a command that takes a
    # recipe, and only if it is not the name of a file.
    arguments = {parameter.name for parameter in parameters if not _is_option(parameter)}
    return bool(equals) and (not arguments or bool(arguments & _READ_RECIPES)) and not Path(argument).is_file()


def _takes_recipe(parameters: Sequence[Any]) -> bool:
    return any(parameter.name == "recipe" and not _is_option(parameter) for parameter in parameters)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _pop_value(option: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{option} needs a value", f"write {option} VALUE")
    return rest.pop(0)


def _translate_option(typed: str, options: Sequence[str]) -> str:
    """Return bertkit's name for an option of other programs, ``--epochs`` or ``--set key``, or ""."""
    if not typed.startswith("--") or typed in options:
        return ""
    name = typed[2:].replace("-", "_")
    # An option of bertkit may be spelled with underscores.
    if (dashed := "--" + name.replace("_", "-")) in options:
        return dashed
    from bertkit.recipe.validation import other_options, same_options

    # In a launch with N processes, a batch per device is N times larger in total, so it is an error with a
    # suggestion, and not a synonym.
    is_per_device = name.startswith("per_device") and is_launched()
    if name not in same_options() or is_per_device:
        return ""
    meant = other_options()[name]
    for option in (meant, "--" + meant.rpartition(".")[2].replace("_", "-")):
        if option in options:
            return option
    key = _recipe_key(meant) if meant.startswith("--") else meant
    # An option of the Trainer's scripts has an effect only in training, and commands that train have --restart.
    return f"--set {key}" if key and {"--set", "--restart"} <= set(options) else ""


def _translate_flag(typed: str, meant: str, value: str, rest: list[str]) -> list[str]:
    """Return the arguments for a flag of the Trainer's scripts, or for a key of a recipe; the value can be left out."""
    key = meant.removeprefix("--set ")
    if not value:
        is_value = rest and (rest[0].lower() in ("true", "false") or (key != meant and not rest[0].startswith("--")))
        value = rest.pop(0) if is_value else "true"
    is_off = key == meant and value.lower() == "false"
    logging.getLogger("bertkit").info(f"{typed} is {'left out' if is_off else f'read as {meant}'}")
    if key == meant:
        return [] if is_off else [meant]
    return ["--set", f"{key}={value}"]


def _list_options(context: Any) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]


def _suggest_option(typed: str, context: Any) -> str:
    """Suggest options of the command or the key of a recipe for an unknown option; "" if nothing is similar."""
    from bertkit.recipe.validation import other_options, read_names

    options = _list_options(context)
    trains = "--restart" in options
    name = typed.lower().replace("_", "-")
    if not name.startswith("--"):
        return ""
    if "." in typed and "--set" in options:
        return _suggest_section(typed)
    # The names of other libraries come first, then the keys of recipes, then options with a similar spelling.
    other_name = name[2:].replace("-", "_")
    is_batch = trains and ("train_batch" in other_name or "accumulation" in other_name)
    hint = (_suggest_batch(context.meta[_TYPED]) if is_batch else "") or read_names("hints").get(other_name, "")
    if hint and (trains or "training." not in hint):
        return hint
    meant = other_options().get(other_name, name)
    if meant in options:
        return f"write {meant}"
    key = _recipe_key(meant) if meant.startswith("--") else meant
    if key and "--set" in options and (trains or not key.startswith("training.")):
        return f"write --set {key}=..."
    # `--group` suggests `--group-by`, whose spelling is too different for a match by letters.
    words = set(name[2:].split("-"))
    matches = [option for option in options if words <= set(option[2:].split("-"))][:2]
    matches = matches or difflib.get_close_matches(name, options, n=2, cutoff=0.7)
    return f"did you mean {' or '.join(matches)}?" if matches else ""


def _suggest_section(typed: str) -> str:
    """Suggest the section of a recipe for a mistyped key such as ``--trainig.epochs``, or return "" without a dot."""
    section, dot, key = typed.removeprefix("--").partition(".")
    if not dot:
        return ""
    for similar in difflib.get_close_matches(section, SECTIONS, n=1):
        return f"did you mean {'--' if typed.startswith('--') else ''}{similar}.{key}?"
    return f"the sections of a recipe are {', '.join(SECTIONS)}"


def _suggest_batch(arguments: Sequence[str]) -> str:
    """Suggest --batch-size for all micro-batches and processes, or return "" if no batch per device was typed."""
    typed = " ".join(arguments).replace("-", "_")
    names = ("(?:per_[dg][a-z]+_)?train_batch_size", "gradient_accumulation_steps")
    rows, steps = (re.search(rf"__{name}[ =](\d+)\b", typed) for name in names)
    if not rows:
        return ""
    # bertkit's batch size is rows per optimizer step; transformers counts rows per device and micro-batch. 8 rows,
    # 4 accumulation steps and 2 processes make 64 rows.
    count, processes = int(steps[1]) if steps else 1, int(os.environ.get("WORLD_SIZE", "1"))
    accumulation = f" --set training.gradient_accumulation={count}" * (count > 1)
    return f"write --batch-size {int(rows[1]) * count * processes}{accumulation}, for all rows of a step"


def _recipe_key(option: str) -> str:
    """Return the key of a recipe with the name of an option: at the top, in `training` or in `data`; "" if none has."""
    from bertkit.recipe.records import CorpusConfig, DataConfig, Recipe
    from bertkit.recipe.sections import PretrainingConfig, TrainingConfig

    name = option.removeprefix("--").replace("-", "_")
    sections = {"training": {**TrainingConfig.model_fields, **PretrainingConfig.model_fields}}
    sections["data"] = {**DataConfig.model_fields, **CorpusConfig.model_fields}
    if name in Recipe.model_fields and name not in SECTIONS:
        return name
    return next((f"{section}.{name}" for section, keys in sections.items() if name in keys), "")
