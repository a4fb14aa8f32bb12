"""The `bertkit` command: its groups, and how every failure ends."""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import typer

from bertkit.cli import bench, distill, evaluate, fill_mask, finetune, predict, pretrain, recipes, version
from bertkit.storage.runs import is_main_process

_ClickError: Any = typer.BadParameter.__mro__[2]  # ClickException, wherever this typer keeps it

app = typer.Typer(
    name="bertkit",
    help="Pretrain, fine-tune, distill, evaluate and use BERT-family encoders.\n\n"
    "Start: bertkit finetune cola --model demo --data demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
app.command("finetune", epilog="Example: bertkit finetune cola --model demo --data demo")(finetune.finetune)
app.command("distill", epilog="Example: bertkit distill cola --teacher runs/cola --model demo --data demo")(
    distill.distill
)
app.command("eval", epilog="Example: bertkit eval cola --model runs/cola --data demo")(evaluate.evaluate)
app.command("predict", epilog='Example: bertkit predict cola --model runs/cola --text "The doctors often sleeps."')(
    predict.predict
)
app.command("fill-mask", epilog='Example: bertkit fill-mask "The doctors [MASK] in the house." --model demo')(
    fill_mask.fill_mask
)
app.command("bench", epilog="Example: bertkit bench cola --model demo --data demo")(bench.bench)
app.add_typer(pretrain.app, name="pretrain")
app.add_typer(recipes.app, name="recipes")
app.command("version", epilog="Example: bertkit version --json")(version.version)


def main() -> NoReturn:
    """Run the command line; every failure is one line on stderr and its exit code."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    gc.set_threshold(200_000, 50, 100)  # looking for garbage 1,000 times costs a fifth of importing torch and others
    _talk_on_stderr()
    sys.exit(_run())


def _run() -> int:
    from bertkit.errors import BertkitError

    try:
        return int(app(prog_name="bertkit", standalone_mode=False) or 0)
    except BertkitError as error:
        return _end(str(error), error.exit_code, error.as_dict())
    except _ClickError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return 2
        return _end(error.format_message(), 2, {})
    except (KeyboardInterrupt, typer.Abort):
        return _end("stopped by Ctrl-C", 130, {})
    except BrokenPipeError:  # the reader of our output went away: `bertkit predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _end("out of memory - try a smaller --batch-size or --max-length", 6, {})
    except OSError as error:
        return _end(f"{error.strerror or error} ({error.filename or 'no file named'})", 6, {})
    except Exception:  # a fault of ours: nothing is swallowed, the traceback goes to a file and the exit code is 1
        return _crash()


def _end(message: str, code: int, facts: dict[str, object]) -> int:
    if os.environ.get("BERTKIT_DEBUG"):
        traceback.print_exc()
    if is_main_process():
        sys.stderr.write(f"error: {message}\n")
        if "--json" in sys.argv:
            from bertkit.cli.show import show_json

            show_json({"status": "error", "error": {"code": code, "message": message, **facts}})
    return code


def _crash() -> int:
    """Save the traceback of a fault of our own to a file, and say so in one line."""
    file = Path(f"bertkit-crash-{os.getpid()}.txt")
    file.write_text(traceback.format_exc(), encoding="utf-8")
    last = traceback.format_exc().strip().splitlines()[-1]
    return _end(f"bertkit failed: {last} - please report it with {file}", 1, {})


def _talk_on_stderr() -> None:
    logger = logging.getLogger("bertkit")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logger.propagate = False
