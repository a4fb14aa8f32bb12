"""The `bertkit` command: finds the commands, runs one, and reports an error in one line with an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import logging
import os
import pkgutil
import sys
import traceback
import warnings
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

import typer

import bertkit
from bertkit.cli import commands, terminal
from bertkit.cli.interrupts import ignore_interrupts
from bertkit.cli.output import print_json, print_line
from bertkit.cli.parsing import ReadableCommand, ReadableGroup, check_encoding, usage_error
from bertkit.cli.terminal import TerminalProgress
from bertkit.errors import BertkitError, ResourceError, UnavailableError, UsageError, install_command
from bertkit.hardware.launch import use_shard
from bertkit.progress import use_progress
from bertkit.storage.files import disk_error, is_disk_error, write_bytes
from bertkit.storage.runs import is_main_process

# The class ClickException, whose module differs between releases of typer.
_ClickError: Any = typer.BadParameter.__mro__[2]


def find_modules() -> list[ModuleType]:
    """Import the modules of `bertkit.cli.commands` and return them in the order of the help."""
    # Every start imports these modules to build the parser, so they import heavy libraries only inside functions.
    names = [f"{commands.__name__}.{module.name}" for module in pkgutil.iter_modules(commands.__path__)]
    return sorted(map(importlib.import_module, names), key=lambda module: module.ORDER)


def get_name(module: ModuleType) -> str:
    """Return the name of a module's command or group: NAME, or else the name of the file."""
    return str(getattr(module, "NAME", module.__name__.rpartition(".")[2].replace("_", "-")))


def list_names(module: ModuleType) -> list[str]:
    """Return the names of a module's commands, or the name of its group."""
    return list(module.COMMANDS) if hasattr(module, "COMMANDS") and not hasattr(module, "HELP") else [get_name(module)]


def add_commands(app: typer.Typer, module: ModuleType) -> None:
    """Add the commands or the group of a module; see `bertkit.cli.commands`."""
    if hasattr(module, "HELP"):
        group = _make_group(module.HELP, getattr(module, "GROUP", ReadableGroup))
        app.add_typer(group, name=get_name(module))
        app = group
    entries = module.COMMANDS if hasattr(module, "COMMANDS") else {get_name(module): (module.command, module.EXAMPLE)}
    for name, (command, example) in entries.items():
        app.command(name, cls=ReadableCommand, epilog=f"Example: {example}")(command)


def _make_group(help: str, cls: type[ReadableGroup], **settings: Any) -> typer.Typer:
    return typer.Typer(cls=cls, help=help, no_args_is_help=True, rich_markup_mode=None, **settings)


SECTIONS = ("Train", "Predict and score", "Understand", "Vectors", "Compress and deploy", "Manage")
"""Sections of the help, counted from 1 by the tens of ORDER: a command with ORDER 24 is in section 2."""


class _SectionedGroup(ReadableGroup):
    """Group whose help lists commands and groups in sections."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [name for module in find_modules() for name in list_names(module)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summary of each command, section by section."""
        for section, modules in groupby(find_modules(), key=lambda module: module.ORDER // 10):
            names = [name for module in modules for name in list_names(module)]
            rows: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(SECTIONS[section - 1]):
                formatter.write_dl([(name, command.get_short_help_str()) for name, command in rows])


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print_line(f"bertkit {bertkit.__version__}")
        raise typer.Exit


_VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
]


def _configure(
    version: _VersionOption = False,
    quiet: terminal.QuietOption = False,
    verbose: terminal.VerboseOption = False,
    log_file: terminal.LogFileOption = None,
) -> None:
    terminal.configure_log(quiet, verbose, log_file)


def make_app() -> typer.Typer:
    """Build the command line from the modules of `bertkit.cli.commands`."""
    about = (
        "Pretrain, fine-tune, distill, evaluate and use BERT-family encoders.\n\n"
        "Start with: bertkit finetune cola --model demo --data demo"
    )
    context = {"help_option_names": ["-h", "--help"]}
    group = _make_group(
        about, _SectionedGroup, name="bertkit", pretty_exceptions_enable=False, context_settings=context
    )
    # The callback has the options of `bertkit` itself, such as --quiet, and runs before the command.
    group.callback(help=about)(_configure)
    for module in find_modules():
        add_commands(group, module)
    return group


app = make_app()


def main() -> NoReturn:
    """Run the command line; each failure prints one line on stderr and has an exit code."""
    terminal.prepare()
    for name in ("HF_HUB_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    # joblib warns on import if /dev/shm is not writable, but bertkit starts no processes with joblib.
    warnings.filterwarnings("ignore", message=".*joblib will operate in serial mode")
    # torch warns about barriers without a device, but each process has only one GPU.
    warnings.filterwarnings("ignore", message=r"barrier\(\): using the device under current context")
    # Imports produce no garbage, but its collection takes a third of a short command's time. Training lowers the
    # threshold.
    gc.set_threshold(2_000_000, 50, 100)
    # Registered first, so that both functions run after the exit functions of libraries.
    atexit.register(ignore_interrupts)
    atexit.register(_skip_collection)
    terminal.log_to_stderr()
    try:
        with use_progress(TerminalProgress()):
            code = _run_command()
    finally:
        use_shard(None)  # A program can run another command afterwards, as tests do.
    # A full disk loses the end of redirected output. A closed pipe, as with `| head`, is not an error.
    if (error := terminal.lost_output()) and code == 0:
        code = _print_error(f"stdout cannot be written: {error.strerror}", 6, {})
    sys.exit(code)


def _run_command() -> int:
    try:
        # Errors are caught from the specific to the general. Only bugs, the last kind, leave a traceback.
        check_encoding(sys.argv)
        with terminal.interruptible():
            code = int(app(prog_name="bertkit", standalone_mode=False) or 0)
        _end_devices()
        # typer returns 130 for KeyboardInterrupt.
        return _print_error("stopped by Ctrl-C", code, {}) if code == 130 else code
    except BertkitError as error:
        return _report_error(error)
    except _ClickError as error:
        # typer implements the help of a group without a command as an error.
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return 2
        return _report_error(usage_error(error))
    except KeyboardInterrupt:
        return _print_error("stopped by Ctrl-C", 130, {})
    except OSError as error:
        return _report_error(_explain_os_error(error))
    except Exception as error:
        if _is_interrupt(error):
            return _print_error("stopped by Ctrl-C", 130, {})
        from bertkit.recipe.plugins import find_custom_error

        # Memory, a custom module or a broken installation can be the cause; anything else is a bug.
        known_error = _explain_memory_error(error) or find_custom_error(error) or _explain_missing_package(error)
        return _save_traceback() if known_error is None else _report_error(known_error)


def _end_devices() -> None:
    """Leave the process group of a launch, and log the number of graphs that XLA compiled."""
    if "torch" in sys.modules:
        from bertkit.hardware.device import count_graphs, leave_process_group

        leave_process_group()
        count, seconds = count_graphs()
        if count:
            logging.getLogger("bertkit").info(f"XLA: {count} graphs compiled in {seconds:.1f} s")


def _skip_collection() -> None:
    """Skip the garbage collection at exit, unless triton is loaded, which would report leaks."""
    if "triton" not in sys.modules:
        gc.freeze()


def _is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error; libraries can wrap the KeyboardInterrupt."""
    cause = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (cause is not None and _is_interrupt(cause))


def _explain_missing_package(error: Exception) -> BertkitError | None:
    """Return an error about a missing package, or None for another error."""
    # Libraries raise an ImportError without a name if an optional package is missing.
    if isinstance(error, ImportError) and error.name is None:
        return UnavailableError(" ".join(str(error).split()), "install the package, or leave out what needs it")
    if not isinstance(error, ModuleNotFoundError) or error.name is None or error.name.startswith("bertkit"):
        return None
    message = f"the Python module {error.name} is missing, which bertkit needs"
    return UnavailableError(message, f"install bertkit again with its dependencies: `{install_command()}`")


def _explain_os_error(error: OSError) -> BertkitError:
    """Return an error that explains an error of the operating system."""
    if error.errno == errno.ENAMETOOLONG:
        # Most file systems allow 255 bytes per name.
        return UsageError(f"a name or path is too long: {str(error.filename)[:60]}...", "use a shorter one")
    if is_disk_error(error):
        return disk_error(error.errno, error.filename)
    return ResourceError(error.strerror or str(error), file=error.filename)


def _explain_memory_error(error: Exception) -> BertkitError | None:
    """Return an error about memory, or about an operation that the device lacks, or None for another error."""
    from bertkit.hardware.device import missing_operation_error
    from bertkit.hardware.process import is_memory_error

    if is_memory_error(error):
        return ResourceError("out of memory", "try a smaller --batch-size or --max-length")
    if operation_error := missing_operation_error(error):
        return operation_error
    text = str(error)
    # torch only notices that a worker is gone. Usually, the kernel killed it because memory was short.
    if isinstance(error, RuntimeError) and "DataLoader worker" in text and ("killed" in text or "exited" in text):
        remedy = "the system may have ended it because memory was short: use fewer workers, or none"
        return ResourceError(" ".join(text.split()).rstrip("."), remedy)
    return None


def _report_error(error: BertkitError) -> int:
    return _print_error(str(error), error.exit_code, error.as_dict())


def _print_error(message: str, code: int, details: dict[str, object]) -> int:
    if os.environ.get("BERTKIT_DEBUG") or terminal.is_verbose():
        traceback.print_exc()
    if is_main_process():
        # Errors are logged, not printed, because the log of a server is JSON lines.
        logging.getLogger("bertkit").error(f"error: {message}", extra={"fields": {"message": message}})
        # After an error of the parser, only `sys.argv` has the option.
        if "--json" in sys.argv:
            print_json({"status": "error", "error": {"code": code, "message": message, **details}})
    return code


def _save_traceback() -> int:
    """Save the traceback of a bug to a file and report the file, or print the traceback if no folder is writable."""
    import tempfile

    text = traceback.format_exc()
    summary = text.strip().splitlines()[-1].strip()
    from bertkit.recipe.plugins import custom_modules

    advice = "".join(f"check what {module} returns; if it is right, " for module in custom_modules())
    # Users look in the working directory first.
    for find_folder in (Path, tempfile.gettempdir):
        try:
            file = Path(find_folder(), f"bertkit-crash-{os.getpid()}.txt")
            write_bytes(file, text.encode(errors="backslashreplace"))
        except OSError:
            continue
        return _print_error(f"bertkit failed: {summary} - {advice}please report it with {file}", 1, {})
    sys.stderr.write(text)
    return _print_error(f"bertkit failed: {summary} - {advice}please report it with the lines above", 1, {})
