"""The layout of help: as wide as the terminal, with whole summaries and plain names of arguments."""

from __future__ import annotations

import shutil
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from bertkit.cli import logs
from bertkit.cli.mistakes import read_other_names
from bertkit.cli.output import json_output

# arguments and options of commands that load one
_READ_RECIPES = {"run", "runs", "recipe", "task"}
_COMPUTE = _READ_RECIPES | {"model", "models"}
_TRUST = "Run the code that the recipe of a model's folder names: its task, objective or metrics."
_DEVICE = "Device to compute on: auto (an accelerator where there is one), cpu, cuda, mps, xpu, xla, ..."
_THREADS = "Threads to compute with on a CPU."
_WIDEST = 100  # columns; longer lines are hard to read
_Context: Any = TyperGroup.context_class
_Formatter: Any = _Context.formatter_class


class _FittedFormatter(_Formatter):  # type: ignore[misc]
    """Fits help into the terminal; the names of options get at most three eighths of a line."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        super().__init__(indent_increment, width or min(shutil.get_terminal_size().columns, max_width or _WIDEST))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage, with required arguments as they are documented: typer puts them in braces."""
        super().write_usage(prog, args.replace("{", "").replace("}", ""), prefix)

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and what they mean in two columns."""
        super().write_dl(rows, min(col_max, 3 * self.width // 8), col_spacing)


class _FittedContext(_Context):  # type: ignore[misc]
    formatter_class = _FittedFormatter


class _Readable:
    """What commands and groups share."""

    context_class: Any = _FittedContext
    help: str | None

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph of the help, which wraps where it is long."""
        return " ".join((self.help or "").partition("\n\n")[0].split())


class ReadableCommand(_Readable, TyperCommand):
    """A command whose help fits the terminal, with --json and, where it loads a recipe or a model, what that needs."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        names = {parameter.name for parameter in self.params}
        self.params += _process_options()[0 if names & _READ_RECIPES else 1 if names & _COMPUTE else 3 :]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments, once options that the Trainer's scripts call otherwise have their names here."""
        return super().parse_args(ctx, read_other_names(args, ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which need not take these options: they are about the process; parsing changes nothing."""
        if ctx.params.pop("trust", False):
            from bertkit.recipe.plugins import trust_folders

            trust_folders()
        # Before anything imports torch: threads and device are settled when it is loaded.
        if "threads" in ctx.params:
            from bertkit.hardware import device, threads
            from bertkit.storage.cache import keep_working_folder_clean

            keep_working_folder_clean()
            threads.prepare(ctx.params.pop("threads"))
            device.prepare(ctx.params.pop("device"))
        logs.configure(*(ctx.params.pop(name) for name in ("quiet", "verbose", "log_file")))
        with json_output(ctx.params.pop("json")):
            return super().invoke(ctx)


@cache
def _process_options() -> list[Any]:
    """Build the options as typer does for a function, once for all commands."""

    def command(
        trust: bool = typer.Option(False, "--trust", help=_TRUST),
        device: str | None = typer.Option(None, help=_DEVICE, metavar="TYPE", show_default="auto"),
        threads: int | None = typer.Option(None, help=_THREADS, metavar="N", show_default="those that fit", min=1),
        json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
        quiet: logs.QuietOption = False,
        verbose: logs.VerboseOption = False,
        log_file: logs.LogFileOption = None,
    ) -> None:
        """Hold the options."""

    holder = typer.Typer(add_completion=False)
    holder.command()(command)
    params: list[Any] = typer.main.get_command(holder).params[:7]
    for parameter in params[4:]:
        parameter.hidden = True  # `bertkit --help` shows them
    return params


class ReadableGroup(_Readable, TyperGroup):
    """A group whose help fits the terminal."""
