"""The `bertkit` command: how it finds its commands, and how every failure ends."""

from __future__ import annotations

import atexit
import difflib
import errno
import gc
import importlib
import logging
import os
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO

import typer

from bertkit.cli import commands, stdio
from bertkit.cli.help import ReadableCommand, ReadableGroup
from bertkit.cli.interrupts import ignore_interrupts
from bertkit.cli.output import printable
from bertkit.errors import BertkitError, ResourceError, UnavailableError, UsageError, closest, pip_install
from bertkit.storage.runs import is_main_process

# ClickException, which typer has moved between releases
_ClickError: Any = typer.BadParameter.__mro__[2]


def find_commands(package: ModuleType) -> list[ModuleType]:
    """Import the modules of a package of commands and return them in the order of the help: by ORDER, then by name."""
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return sorted(map(importlib.import_module, names), key=lambda module: (module.ORDER, name_command(module)))


def name_command(module: ModuleType) -> str:
    """Return what is typed for a command or a group: the name of its file or folder, or its NAME."""
    return str(getattr(module, "NAME", module.__name__.rpartition(".")[2].replace("_", "-")))


def add_commands(group: typer.Typer, package: ModuleType) -> None:
    """Add every module of a package to a group: a module is a command, a package is a group of commands."""
    for module in find_commands(package):
        # The tree of files is the tree of commands: a new file is a new command, with no list to add it to.
        if hasattr(module, "__path__"):
            subgroup = _make_group(module.HELP, getattr(module, "GROUP", ReadableGroup))
            add_commands(subgroup, module)
            group.add_typer(subgroup, name=name_command(module))
        else:
            name, example = name_command(module), f"Example: {module.EXAMPLE}"
            group.command(name, cls=ReadableCommand, epilog=example)(module.command)


def _make_group(help: str, cls: type[ReadableGroup], **settings: Any) -> typer.Typer:
    return typer.Typer(cls=cls, help=help, no_args_is_help=True, rich_markup_mode=None, **settings)


class _OrderedGroup(ReadableGroup):
    """Lists commands and groups in one order, where typer lists all commands before all groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [name_command(module) for module in find_commands(commands)]


def make_app() -> typer.Typer:
    """Build the command line from the modules of `bertkit.cli.commands`."""
    about = (
        "Pretrain, fine-tune, distill, evaluate and use BERT-family encoders.\n\n"
        "Start with: bertkit finetune cola --model demo --data demo"
    )
    context = {"help_option_names": ["-h", "--help"]}
    group = _make_group(about, _OrderedGroup, name="bertkit", pretty_exceptions_enable=False, context_settings=context)
    add_commands(group, commands)
    return group


app = make_app()


def main() -> NoReturn:
    """Run the command line; every failure ends in one line on stderr and its exit code."""
    stdio.prepare()
    for name in ("HF_HUB_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    # joblib says so on import where /dev/shm cannot be written; bertkit starts none of its processes
    warnings.filterwarnings("ignore", message=".*joblib will operate in serial mode")
    # Nothing that is imported becomes garbage. To look for it during the imports and at the end would take a third of a
    # short command's time. Training lowers the threshold.
    gc.set_threshold(2_000_000, 50, 100)
    atexit.register(ignore_interrupts)  # both run after what libraries have to do at the end
    atexit.register(_spare_collection)
    _log_to_stderr()
    code = _run_command()
    if (lost := stdio.lost_output()) and code == 0:
        code = _print_error(f"stdout cannot be written: {lost.strerror}", 6, {})
    sys.exit(code)


def _run_command() -> int:
    try:
        refuse_undecodable(sys.argv)
        with stdio.interruptible():
            code = int(app(prog_name="bertkit", standalone_mode=False) or 0)
        _tell_graphs()
        # typer returns 130 for a KeyboardInterrupt
        return _print_error("stopped by Ctrl-C", code, {}) if code == 130 else code
    except BertkitError as error:
        return _print_refusal(error)
    except _ClickError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return 2

        return _print_refusal(usage_error(error))
    except KeyboardInterrupt:
        return _print_error("stopped by Ctrl-C", 130, {})
    except OSError as error:
        return _print_refusal(_name_error(error))
    except Exception as error:  # a bug: its traceback is saved to a file and the exit code is 1
        if _is_interrupt(error):
            return _print_error("stopped by Ctrl-C", 130, {})
        from bertkit.recipe.plugins import fault_of_own_module

        # What looks like a bug may be the machine, a module of the user, or a broken installation: each has its own
        # remedy.
        fault = _name_memory_error(error) or fault_of_own_module(error) or _name_missing_package(error)
        return _save_traceback() if fault is None else _print_refusal(fault)


def _tell_graphs() -> None:
    """Log how many graphs were compiled, where a device needs any."""
    if "torch_xla" in sys.modules:
        from bertkit.hardware.device import count_graphs

        count, seconds = count_graphs()
        if count:
            logging.getLogger("bertkit").info(f"XLA: {count} graphs compiled in {seconds:.1f} s")


def _spare_collection() -> None:
    """Let the end of the process look for no garbage, unless a library then reports leaks, as triton does."""
    if "triton" not in sys.modules:
        gc.freeze()


def _is_interrupt(error: BaseException) -> bool:
    """Tell whether an error came of Ctrl-C, which libraries wrap; typer also aborts where a file ends too soon."""
    before = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (before is not None and _is_interrupt(before))


def _name_missing_package(error: Exception) -> BertkitError | None:
    """Build the error for a package that bertkit needs and that is not installed; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or error.name.startswith("bertkit"):
        return None
    what = f"the Python module {error.name} is missing, which bertkit needs"
    return UnavailableError(what, f"install bertkit again with its dependencies: `{pip_install()}`")


def _name_error(error: OSError) -> BertkitError:
    """Build the error that tells a user why the system refused something."""
    from bertkit.storage.files import disk_error, is_disk_error

    if error.errno == errno.ENAMETOOLONG:  # of whatever option: no file has such a name
        return UsageError(f"a name or path is too long: {str(error.filename)[:60]}...", "give a shorter one")
    if is_disk_error(error):
        return disk_error(error.errno, error.filename)
    return ResourceError(error.strerror or str(error), file=error.filename)


def _name_memory_error(error: Exception) -> BertkitError | None:
    """Build the error of a machine without enough memory, whoever has noticed it; None for any other error."""
    from bertkit.hardware.device import missing_operation
    from bertkit.hardware.memory import is_memory_error

    if is_memory_error(error):
        return ResourceError("out of memory", "try a smaller --batch-size or --max-length")
    if missing := missing_operation(error):
        return missing
    text = str(error)
    if isinstance(error, RuntimeError) and "DataLoader worker" in text and ("killed" in text or "exited" in text):
        remedy = "the system may have ended it for want of memory: use fewer workers, or none"
        return ResourceError(" ".join(text.split()).rstrip("."), remedy)
    return None


def _print_refusal(error: BertkitError) -> int:
    return _print_error(str(error), error.exit_code, error.as_dict())


def _print_error(message: str, code: int, details: dict[str, object]) -> int:
    if os.environ.get("BERTKIT_DEBUG"):
        traceback.print_exc()
    if is_main_process():
        # through the log, which may be JSON lines
        logging.getLogger("bertkit").error(f"error: {message}", extra={"fields": {"message": message}})
        if "--json" in sys.argv:
            from bertkit.cli.output import print_json

            print_json({"status": "error", "error": {"code": code, "message": message, **details}})
    return code


def _save_traceback() -> int:
    """Save the traceback of a bug to a file and report it in one line; where no folder can be written, print it."""
    import tempfile

    text = traceback.format_exc()
    last = text.strip().splitlines()[-1].strip()
    from bertkit.recipe.plugins import own_modules

    advice = "".join(f"check what {module} returns; if it is right, " for module in own_modules())
    # The current folder, where the user looks, or else the one for temporary files.
    for find_folder in (Path, tempfile.gettempdir):
        try:
            file = Path(find_folder()) / f"bertkit-crash-{os.getpid()}.txt"
            stream = file.open("x", encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        try:
            with stream:
                stream.write(text)
        except OSError:  # the disk is full
            file.unlink(missing_ok=True)
            continue
        return _print_error(f"bertkit failed: {last} - {advice}please report it with {file}", 1, {})
    sys.stderr.write(text)
    return _print_error(f"bertkit failed: {last} - {advice}please report it with the lines above", 1, {})


class _PrintableLines(logging.Formatter):
    """Shows what a terminal would obey, such as an escape sequence in a file's name, instead of sending it there."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message of a record."""
        return printable(super().format(record))


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what stderr is at the moment: while a progress bar is shown, that prints above the bar."""

    @property
    def stream(self) -> TextIO:
        """Return the stream of stderr."""
        return sys.stderr

    @stream.setter
    def stream(self, _: object) -> None:
        """Ignore the stream of the time at which logging began."""


def _log_to_stderr() -> None:
    logger = logging.getLogger("bertkit")
    handler = _StderrHandler()
    handler.setFormatter(_PrintableLines("%(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logger.propagate = False


_OTHER_NAMES = {
    **dict.fromkeys(("train", "fit", "fine-tune", "fine_tune", "run"), "finetune"),
    **dict.fromkeys(("evaluate", "score", "validate"), "eval"),
    **dict.fromkeys(("infer", "inference", "classify", "tag"), "predict"),
    **dict.fromkeys(("encode", "vectorize", "embeddings"), "embed"),
    **dict.fromkeys(("tune", "hpo", "search-space", "optimize"), "sweep"),
    **dict.fromkeys(("api", "server", "deploy"), "serve"),
    **dict.fromkeys(("diff", "significance"), "compare"),
    **dict.fromkeys(("onnx", "convert"), "export"),
    "benchmark": "bench",
    **dict.fromkeys(("dedupe", "deduplicate"), "dedup"),
    "compress": "prune",
    "mlm": "pretrain",
}
"""What other tools call a command -> bertkit's command."""


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
        what = f"no command is called {unknown[1][:80]!r}"
        remedy = _suggest_command(unknown[1], context)
    return UsageError(what, remedy)


def _suggest_command(typed: str, context: Any) -> str:
    commands = context.command.list_commands(context)
    meant = _OTHER_NAMES.get(typed.lower(), "")
    return f"write {context.command_path} {meant}" if meant in commands else closest(typed, commands)


def _suggest_option(typed: str, context: Any) -> str:
    """Suggest the command's options for an unknown one, or the key of a recipe; empty where nothing is close."""
    from bertkit.recipe.values import other_options

    options = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
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
