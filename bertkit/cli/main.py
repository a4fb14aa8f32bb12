"""The `bertkit` command: how it finds its commands, and how every failure ends."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from bertkit.cli import commands
from bertkit.storage.runs import is_main_process

_ClickError: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer has moved between releases


def find_commands(package: ModuleType) -> list[ModuleType]:
    """Import the modules of a package of commands and return them in the order of the help: by ORDER, then by NAME."""
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return sorted(map(importlib.import_module, names), key=lambda module: (module.ORDER, module.NAME))


def add_commands(group: typer.Typer, package: ModuleType) -> None:
    """Add every module of a package to a group: a module is a command, a package is a group of commands."""
    for module in find_commands(package):
        if hasattr(module, "__path__"):
            add_commands(module.app, module)
            group.add_typer(module.app, name=module.NAME)
        else:
            group.command(module.NAME, epilog=f"Example: {module.EXAMPLE}")(module.command)


class _OrderedGroup(TyperGroup):
    """Lists commands and groups in one order, where typer lists all commands before all groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [module.NAME for module in find_commands(commands)]


def make_app() -> typer.Typer:
    """Build the command line from the modules of `bertkit.cli.commands`."""
    group = typer.Typer(
        name="bertkit",
        cls=_OrderedGroup,
        help="Pretrain, fine-tune, distill, evaluate and use BERT-family encoders.\n\n"
        "Start with: bertkit finetune cola --model demo --data demo",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
    )
    add_commands(group, commands)
    return group


app = make_app()


def main() -> NoReturn:
    """Run the command line; every failure ends in one line on stderr and its exit code."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    gc.set_threshold(200_000, 50, 100)  # the default thresholds cost a fifth of the time of importing torch
    _log_to_stderr()
    sys.exit(_run())


def _run() -> int:
    from bertkit.errors import BertkitError

    try:
        code = int(app(prog_name="bertkit", standalone_mode=False) or 0)
        return _fail("stopped by Ctrl-C", code, {}) if code == 130 else code  # so typer returns a KeyboardInterrupt
    except BertkitError as error:
        return _fail(str(error), error.exit_code, error.as_dict())
    except _ClickError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return 2
        return _fail(error.format_message(), 2, {})
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped by Ctrl-C", 130, {})
    except BrokenPipeError:  # the reader closed our output, as in `bertkit predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("out of memory - try a smaller --batch-size or --max-length", 6, {})
    except OSError as error:
        return _fail(_describe(error), 6, {})
    except Exception:  # a bug: its traceback is saved to a file and the exit code is 1
        return _crash()


def _describe(error: OSError) -> str:
    from bertkit.storage.disk import disk_error, is_disk_error

    if is_disk_error(error):
        return str(disk_error(error.errno, error.filename))
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")


def _fail(message: str, code: int, details: dict[str, object]) -> int:
    if os.environ.get("BERTKIT_DEBUG"):
        traceback.print_exc()
    if is_main_process():
        sys.stderr.write(f"error: {message}\n")
        if "--json" in sys.argv:
            from bertkit.cli.output import print_json

            print_json({"status": "error", "error": {"code": code, "message": message, **details}})
    return code


def _crash() -> int:
    """Save the traceback of a bug to a file and report it in one line."""
    file = Path(f"bertkit-crash-{os.getpid()}.txt")
    file.write_text(traceback.format_exc(), encoding="utf-8")
    last = traceback.format_exc().strip().splitlines()[-1]
    return _fail(f"bertkit failed: {last} - please report it with {file}", 1, {})


def _log_to_stderr() -> None:
    logger = logging.getLogger("bertkit")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logger.propagate = False
