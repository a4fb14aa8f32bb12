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

# Parameters by which to recognize commands that load a recipe, and commands that load a model.
_RECIPE_PARAMETERS = {"run", "runs", "recipe", "task"}
_MODEL_PARAMETERS = _RECIPE_PARAMETERS | {"model", "models"}
_TRUST = "Run code that the recipe in a model folder names: a custom task, objective or metric."
_DEVICE = "Device: auto (an accelerator if available), cpu, cuda, mps, xpu, xla, ..."
_THREADS = "Number of CPU threads."
SECTIONS = ("data", "training", "options", "distillation", "gates", "model_options")
"""Sections of recipes, whose keys are typed as ``training.epochs=1``, ``--training.epochs 1`` or with `--set`."""
_OVERRIDE = re.compile(rf"(--)?(?:{'|'.join(SECTIONS)})\.\S+")
_MAX_WIDTH = 100  # characters; longer lines are hard to read
# Keys of the context's `meta`: the arguments as typed, and the recipe that `--config` names.
_TYPED_ARGUMENTS = "bertkit.typed"
_CONFIG_RECIPE = "bertkit.config"
_Context: Any = TyperGroup.context_class
_Formatter: Any = _Context.formatter_class


class _FittedFormatter(_Formatter):  # type: ignore[misc]
    """Formatter that fits the help into the terminal. Names of options take at most three eighths of a line."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        super().__init__(indent_increment, width or min(shutil.get_terminal_size().columns, max_width or _MAX_WIDTH))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage without typer's braces around required arguments, and without double dots."""
        super().write_usage(prog, re.sub(r"[{}]", "", args).replace("......", "...").replace("...]...", "...]"), prefix)

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and descriptions in two columns, without the types that typer puts behind arguments."""
        rows = [(re.sub(r"^([A-Z].*) <\S+>$", r"\1", name), text) for name, text in rows]
        super().write_dl(rows, min(col_max, 3 * self.width // 8), col_spacing)


class _FittedContext(_Context):  # type: ignore[misc]
    formatter_class = _FittedFormatter


class _Readable:
    """Base of commands and groups, with help that fits the terminal."""

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
        # The options are trust, device, threads, json and three log options. Commands that only read files get the last
        # four; commands that load a model without a recipe have no code to trust.
        self.params += _process_options()[0 if names & _RECIPE_PARAMETERS else 1 if names & _MODEL_PARAMETERS else 3 :]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments after `translate_arguments`."""
        ctx.meta[_TYPED_ARGUMENTS] = args
        # During completion, the arguments may end before the value of an option.
        return super().parse_args(ctx, args if ctx.resilient_parsing else translate_arguments(args, ctx))

    def invoke(self, ctx: Any) -> Any:
        """Apply the options of the process, and run the command with the others."""
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
    """Return the options of the process, which are the same for all commands."""

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

    # typer builds options only from the signature of a command, so make a command and take its options.
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
        # Python decodes an invalid byte as half of a surrogate pair (PEP 383).
        if any("\ud800" <= character <= "\udfff" for character in argument):
            escaped_argument = argument.encode("utf-8", "backslashreplace").decode()[:80]
            raise UsageError(f"an argument is not UTF-8: {escaped_argument}", "convert the text, or rename the file")


def usage_error(error: Any) -> UsageError:
    """Convert an error of the parser to a UsageError, with the option or command to type as the remedy."""
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context else "bertkit"
    message = error.format_message().removesuffix(".")
    remedy = f"see `{command} --help`"
    if option := getattr(error, "option_name", None):
        if message.startswith("No such option"):
            message = f"no option is called {option[:80]}"
            remedy = _suggest_option(option, context) or remedy
        elif message.endswith("requires an argument"):
            message, remedy = f"{option} needs a value", f"write {option} VALUE"
    elif hasattr(error.__cause__, "errors"):  # typer converts values with pydantic
        from bertkit.recipe.validation import describe_rule, format_value

        (problem, *_) = error.__cause__.errors()
        value = format_value(problem["input"])
        rule = describe_rule(problem).removeprefix(f"{value} is ").removesuffix(".")
        message = f"{'/'.join(error.param.opts)} = {value} is wrong: {rule}"
    # The parser has no codes for its errors, so their English messages are matched. Tests fail if a release rewords
    # them.
    elif match := re.match("Missing [a-z]+ '(.*?)'", message):
        message = f"{match[1]} is missing"
        remedy = f"write e.g. `{context.command.epilog.removeprefix('Example: ')}`"
    elif match := re.match("Invalid value for '(.*?)'", message):
        message = match[1] + message[match.end() :]
    elif match := re.match(r"Got unexpected extra argument\S* \((.*)\)", message):
        return _extra_argument_error(match[1], context, remedy)
    elif match := re.match("No such command '(.*?)'", message):
        from bertkit.recipe.validation import read_names

        name = match[1]
        message = f"no command is called {name[:80]!r}"
        commands = context.command.list_commands(context)
        synonym = read_names("commands").get(name.lower(), "")
        remedy = f"write {command} {synonym}" if synonym in commands else did_you_mean(name, commands)
    return UsageError(message, remedy)


def _extra_argument_error(extra: str, context: Any, remedy: str) -> UsageError:
    """Return an error about an argument after the last one, which is often a setting or a file with rows."""
    if _CONFIG_RECIPE in context.meta:
        message = f"--config {context.meta[_CONFIG_RECIPE]} and {extra[:80]} both name a recipe"
        return UsageError(message, "leave one of them out")
    if "--set" in _list_options(context) and (setting := re.search(r"(\S+?)(=.*)", extra[:80])):
        name, value = setting.groups()
        remedy = _suggest_section(setting[0]) if "." in name else f"write --set {_recipe_key(name) or name}{value}"
    elif "--data" in _list_options(context) and Path(extra).is_file():
        remedy = f"write --data {shlex.quote(extra)}"
    return UsageError(f"unexpected argument: {extra[:80]}", remedy)


def translate_arguments(arguments: Sequence[str], context: Any) -> list[str]:
    """Return the arguments with bertkit's names of options.

    Keys of a recipe such as ``training.epochs=1`` or ``--training.epochs 1`` become `--set`, and the value of
    `--config` becomes the RECIPE. Options of transformers' training scripts that mean the same get bertkit's names,
    each with a line in the log. The values of options do not change.

    Raises:
        UsageError: If `--config` or a key of a recipe has no value.
    """
    parameters = context.command.params
    options = _list_options(context)
    # A value must not be mistaken for an option: in `--text --config`, the second word is the text.
    value_options = (parameter for parameter in parameters if _is_option(parameter) and not parameter.is_flag)
    takes_value = {name for parameter in value_options for name in parameter.opts}
    new_arguments: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, value = (argument := rest.pop(0)).partition("=")
        if argument == "--":
            return [*new_arguments, argument, *rest]
        if argument in takes_value:
            new_arguments += [argument, *rest[:1]]
            del rest[:1]
        elif "--set" in options and _is_override(argument, parameters):
            value = value if equals else _pop_value(name, rest)
            new_arguments += ["--set", f"{name.removeprefix('--')}={value}"]
        elif name == "--config" and any(item.name == "recipe" and not _is_option(item) for item in parameters):
            context.meta[_CONFIG_RECIPE] = value if equals else _pop_value(name, rest)
            new_arguments.insert(0, context.meta[_CONFIG_RECIPE])  # RECIPE is always the first argument
        elif new_name := _translate_option(name, options):
            if new_name in takes_value:
                # The renamed option goes through the loop again, which then takes its value.
                logging.getLogger("bertkit").info(f"{name} is read as {new_name}")
                rest.insert(0, new_name + equals + value)
            else:
                new_arguments += _translate_flag(name, new_name, value, rest)
        else:
            new_arguments.append(argument)
    return new_arguments


def _is_override(argument: str, parameters: Sequence[Any]) -> bool:
    """Return whether an argument sets a key of a recipe; ``a.b=c`` may be a file or a text instead."""
    name, equals, _ = argument.partition("=")
    match = _OVERRIDE.fullmatch(name)
    if match is None or match[1]:
        return match is not None
    # Without leading dashes, it sets a key only if the command takes a recipe and there is no such file.
    arguments = {parameter.name for parameter in parameters if not _is_option(parameter)}
    return bool(equals) and (not arguments or bool(arguments & _RECIPE_PARAMETERS)) and not Path(argument).is_file()


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _pop_value(option: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{option} needs a value", f"write {option} VALUE")
    return rest.pop(0)


def _translate_option(option: str, options: Sequence[str]) -> str:
    """Return bertkit's name for an option of other programs, such as ``--epochs`` or ``--set key``, or else ""."""
    if not option.startswith("--") or option in options:
        return ""
    name = option[2:].replace("-", "_")
    # bertkit's options can be spelled with underscores.
    if (dashed_option := "--" + name.replace("_", "-")) in options:
        return dashed_option
    from bertkit.recipe.validation import other_options, same_options

    # With N processes, a batch per device is N times larger in total. So it is an error with a suggestion instead of a
    # synonym.
    is_per_device = name.startswith("per_device") and is_launched()
    if name not in same_options() or is_per_device:
        return ""
    synonym = other_options()[name]
    for new_name in (synonym, "--" + synonym.rpartition(".")[2].replace("_", "-")):
        if new_name in options:
            return new_name
    key = _recipe_key(synonym) if synonym.startswith("--") else synonym
    # Options of training scripts have an effect only in training, and commands that train have --restart.
    return f"--set {key}" if key and {"--set", "--restart"} <= set(options) else ""


def _translate_flag(name: str, new_name: str, value: str, rest: list[str]) -> list[str]:
    """Return the arguments for a flag or a recipe key that a training script's option means; its value is optional."""
    key = new_name.removeprefix("--set ")
    is_key = key != new_name
    if not value:
        following = rest[0] if rest else "--"
        is_value = following.lower() in ("true", "false") or (is_key and not following.startswith("--"))
        value = rest.pop(0) if is_value else "true"
    is_off = not is_key and value.lower() == "false"
    logging.getLogger("bertkit").info(f"{name} is {'left out' if is_off else f'read as {new_name}'}")
    if is_key:
        return ["--set", f"{key}={value}"]
    return [] if is_off else [new_name]


def _list_options(context: Any) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]


def _suggest_option(option: str, context: Any) -> str:
    """Return a suggestion of options or a recipe key for an unknown option, or "" if nothing is similar."""
    from bertkit.recipe.validation import other_options, read_names

    options = _list_options(context)
    is_training = "--restart" in options
    name = option.lower().replace("_", "-")
    if not name.startswith("--"):
        return ""
    if "." in option and "--set" in options:
        return _suggest_section(option)
    # The names of other libraries come first, then the keys of recipes, then options with a similar spelling.
    other_name = name[2:].replace("-", "_")
    is_batch = is_training and ("train_batch" in other_name or "accumulation" in other_name)
    batch_hint = _suggest_batch(context.meta[_TYPED_ARGUMENTS]) if is_batch else ""
    hint = batch_hint or read_names("hints").get(other_name, "")
    if hint and (is_training or "training." not in hint):
        return hint
    synonym = other_options().get(other_name, name)
    if synonym in options:
        return f"write {synonym}"
    key = _recipe_key(synonym) if synonym.startswith("--") else synonym
    if key and "--set" in options and (is_training or not key.startswith("training.")):
        return f"write --set {key}=..."
    # First options with the same words, such as `--steps` for `--integration-steps`, then options with similar letters.
    matches = [candidate for candidate in options if {*name[2:].split("-")} <= {*candidate[2:].split("-")}][:2]
    matches = matches or difflib.get_close_matches(name, options, n=2, cutoff=0.7)
    return f"did you mean {' or '.join(matches)}?" if matches else ""


def _suggest_section(setting: str) -> str:
    """Return a suggestion for a key with a mistyped section such as ``--trainig.epochs``, or "" without a dot."""
    section, dot, key = setting.removeprefix("--").partition(".")
    if not dot:
        return ""
    for similar in difflib.get_close_matches(section, SECTIONS, n=1):
        return f"did you mean {'--' if setting.startswith('--') else ''}{similar}.{key}?"
    return f"the sections of a recipe are {', '.join(SECTIONS)}"


def _suggest_batch(arguments: Sequence[str]) -> str:
    """Return a suggestion of --batch-size for all micro-batches and processes, or "" without a batch per device."""
    line = " ".join(arguments).replace("-", "_")
    names = ("(?:per_[dg][a-z]+_)?train_batch_size", "gradient_accumulation_steps")
    rows, steps = (re.search(rf"__{name}[ =](\d+)\b", line) for name in names)
    if not rows:
        return ""
    # bertkit counts rows per optimizer step, transformers rows per device and micro-batch: 8 rows, 4 accumulation steps
    # and 2 processes are a batch of 64 rows.
    count = int(steps[1]) if steps else 1
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation = f" --set training.gradient_accumulation={count}" * (count > 1)
    return f"write --batch-size {int(rows[1]) * count * processes}{accumulation}, for all rows of a step"


def _recipe_key(option: str) -> str:
    """Return the recipe key for an option: at the top level, in `training` or in `data`, or "" if none has its name."""
    from bertkit.recipe.records import CorpusConfig, DataConfig, Recipe
    from bertkit.recipe.sections import PretrainingConfig, TrainingConfig

    name = option.removeprefix("--").replace("-", "_")
    sections = {"training": {**TrainingConfig.model_fields, **PretrainingConfig.model_fields}}
    sections["data"] = {**DataConfig.model_fields, **CorpusConfig.model_fields}
    if name in Recipe.model_fields and name not in SECTIONS:
        return name
    return next((f"{section}.{name}" for section, keys in sections.items() if name in keys), "")
