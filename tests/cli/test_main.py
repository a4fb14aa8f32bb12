"""How the command line finds its commands, lists them and ends."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from bertkit.cli import commands, main
from bertkit.errors import install_command

ROOT = Path(__file__).parents[2]

NEW_COMMAND = '''"""`bertkit shout`."""

ORDER = 12
EXAMPLE = "bertkit shout hello"


def command(word: str) -> None:
    """Shout a word."""
    print(word.upper())
'''


def help_of(app: typer.Typer, *path: str) -> str:
    command = typer.main.get_command(app)
    context = command.make_context("bertkit", [], resilient_parsing=True, terminal_width=80)
    for name in path:
        command = command.get_command(context, name)
        context = command.make_context(name, [], parent=context, resilient_parsing=True, terminal_width=80)
    return command.get_help(context)


def listed(text: str) -> list[str]:
    return re.findall(r"^  ([a-z-]+)  ", re.split("^(?:Train|Commands):\n", text, flags=re.M)[1], flags=re.MULTILINE)


def test_a_module_that_is_dropped_into_the_folder_is_a_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "shout.py").write_text(NEW_COMMAND)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    app = main.make_app()
    text = help_of(app)
    assert "  shout     Shout a word." in text
    order = ["check", "finetune", "shout", "glue", "eval"]
    assert [name for name in listed(text) if name in order] == order
    assert "Example: bertkit shout hello" in help_of(app, "shout")
    app(["shout", "hello"], standalone_mode=False)
    assert capsys.readouterr().out == "HELLO\n"


def test_a_module_may_hold_several_commands_or_a_group(tmp_path, monkeypatch, capsys):
    one = NEW_COMMAND.replace('EXAMPLE = "bertkit shout hello"\n', "").replace("def command", "def shout")
    several = one + 'COMMANDS = {"shout": (shout, "bertkit shout hello"), "yell": (shout, "bertkit yell hello")}\n'
    (tmp_path / "loud.py").write_text(several)
    (tmp_path / "noise.py").write_text(several + 'HELP = "Make noise."\n')
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    app = main.make_app()
    order = ["check", "finetune", "shout", "yell", "noise", "glue"]
    assert [name for name in listed(help_of(app)) if name in order] == order
    assert listed(help_of(app, "noise")) == ["shout", "yell"]
    assert "Example: bertkit yell hello" in help_of(app, "noise", "yell")
    for arguments in (["yell", "hello"], ["noise", "shout", "hello"]):
        app(arguments, standalone_mode=False)
        assert capsys.readouterr().out == "HELLO\n"


def test_commands_are_listed_in_the_order_of_work():
    order = ["check", "finetune", "pretrain", "predict", "eval", "compare", "fill-mask", "embed", "distill", "bench"]
    order += ["push", "recipes", "runs", "doctor"]
    assert [name for name in listed(help_of(main.app)) if name in order] == order
    assert listed(help_of(main.app, "pretrain"))[:4] == ["tokenizer", "sizes", "recipe", "albert"]
    assert listed(help_of(main.app, "recipes")) == ["list", "show", "copy", "check", "guess"]
    assert listed(help_of(main.app, "runs")) == ["list", "show", "table", "rm"]


def test_help_fits_a_terminal_of_80_columns_and_cuts_no_sentence():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```text\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        assert max(map(len, block.splitlines())) <= 80
        assert not re.search(r"\.\.\.$", block.partition("Commands:")[2], flags=re.MULTILINE)


def test_a_bug_leaves_its_traceback_in_a_file(run, monkeypatch):
    def fail(**_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    ended = run("encoders")
    (file,) = Path.cwd().glob("bertkit-crash-*.txt")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"error: bertkit failed: ZeroDivisionError: by zero - please report it with {file.name}\n"
    assert "Traceback" in file.read_text()


def test_a_file_that_ends_too_soon_is_no_interrupt(run, monkeypatch):
    def fail(**_: object) -> None:
        raise EOFError("no data left in file")

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    ended = run("encoders")
    assert (ended.code, "stopped by Ctrl-C" in ended.err, "bertkit failed" in ended.last) == (1, False, True)


def test_an_interrupt_that_a_library_has_wrapped_is_one(run, monkeypatch):
    def fail(**_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("the export failed") from error

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    assert (run("encoders").code, run("encoders").err) == (130, "error: stopped by Ctrl-C\n")


NO_MEMORY = "out of memory - try a smaller --batch-size or --max-length"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            ImportError("You need to install `bitsandbytes` in order to\nuse its optimizers"),
            5,
            "You need to install `bitsandbytes` in order to use its optimizers - install the package, or leave out "
            "what needs it",
        ),
        (
            ModuleNotFoundError("No module named 'jinja2'", name="jinja2"),
            5,
            "the Python module jinja2 is missing, which bertkit needs - install bertkit again with its dependencies: "
            f"`{install_command()}`",
        ),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (MemoryError(), 6, NO_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 6, NO_MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 6, NO_MEMORY),
        (RuntimeError("could not create a primitive"), 6, NO_MEMORY),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            6,
            "DataLoader worker (pid 7) is killed by signal: Killed - the system may have ended it because memory was "
            "short: use fewer workers, or none",
        ),
        (FileNotFoundError(2, "No such file or directory", "a.csv"), 6, "No such file or directory (a.csv)"),
    ],
)
def test_other_failures_end_in_one_line_and_their_exit_code(run, monkeypatch, error, code, message):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    ended = run("encoders", "--json")
    assert (ended.code, ended.err) == (code, f"error: {message}\n")
    printed = json.loads(ended.out)["error"]
    assert (printed["code"], message.startswith(printed["message"])) == (code, True)


@pytest.mark.parametrize(("file", "where"), [("a.csv", " (a.csv)"), (None, "")])
def test_a_disk_that_refuses_a_write_is_told_with_its_remedy(run, monkeypatch, file, where):
    def fail(**_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", file)

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    ended = run("encoders")
    line = f"error: Disk quota exceeded{where} - free some of your quota, then repeat the command\n"
    assert (ended.code, ended.err) == (6, line)


def test_a_full_disk_that_is_not_known_has_no_free_space(run, monkeypatch):
    def fail(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as standard output, say

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    line = "error: No space left on device - free some space, then repeat the command\n"
    assert run("encoders").err == line


def test_no_arguments_print_the_help(run):
    ended = run()
    assert ended.code == 2
    assert "Predict and score:" in ended.out + ended.err


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_bug_in_a_folder_that_cannot_be_written_leaves_its_traceback_elsewhere(run, monkeypatch, tmp_path, number):
    def fail(**_: object) -> None:
        raise ZeroDivisionError("by zero")

    opened = Path.open

    class Full(io.BytesIO):
        def flush(self):
            raise OSError(number, os.strerror(number))

    def refuse(file, *arguments, **keywords):
        if file.is_absolute():
            return opened(file, *arguments, **keywords)
        if number == errno.ENOSPC:  # such a disk still has room for the file's name
            file.touch()
            return Full()
        raise PermissionError(number, os.strerror(number), str(file))

    monkeypatch.setattr("bertkit.storage.hub.encoders.list_encoders", fail)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = run("encoders")
    (file,) = tmp_path.glob("bertkit-crash-*.txt")
    assert ended.err == f"error: bertkit failed: ZeroDivisionError: by zero - please report it with {file}\n"
    assert "Traceback" in file.read_text()
    assert list(Path.cwd().glob("bertkit-crash-*.txt")) == []
    monkeypatch.setattr("tempfile.tempdir", "nowhere")
    ended = run("encoders")
    assert (ended.code, ended.err.splitlines()[0]) == (1, "Traceback (most recent call last):")
    assert ended.last.endswith("please report it with the lines above")


def test_a_log_line_shows_escapes_instead_of_sending_them(run, trained):
    Path("a\x9b31m.csv").write_text("text;label\na;b\n")
    ended = run("predict", "classify", "a\x9b31m.csv", "--model", trained)
    assert "a\\x9b31m.csv are separated by ';'" in ended.err
    assert "\x9b" not in ended.err + ended.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["recipes", "show", "x" * 300 + ".yaml"],
        ["recipes", "copy", "cola", "x" * 300],
        ["finetune", "classify", "--model", "demo", "--data", "x/" * 3000, "--dry-run"],
        ["finetune", "cola", "--model", "x" * 300, "--data", "demo", "--dry-run"],
        ["finetune", "cola", "--model", "demo", "--data", "demo", "--dry-run", "--output", "x" * 300],
    ],
)
def test_a_name_that_is_too_long_is_a_mistake_of_the_command_line(run, arguments):
    ended = run(*arguments)
    assert ended.code in (2, 3, 4)
    assert len(ended.last) < 400
    assert ended.last.startswith("error: ")


def test_the_end_of_a_command_looks_for_no_garbage(tmp_path):
    script = "import atexit, gc, sys; from bertkit.cli.main import main; sys.argv = ['bertkit', 'encoders']\n"
    script += "atexit.register(lambda: print(gc.get_freeze_count()))\nmain()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert int(ended.stdout.splitlines()[-1]) > 10_000


def test_without_its_dependencies_bertkit_names_what_is_missing():
    code = "import runpy, sys; sys.argv = ['bertkit', 'encoders']; runpy.run_module('bertkit', run_name='__main__')"
    command = [sys.executable, "-S", "-c", code]  # without site-packages
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, ended.stdout) == (5, "")
    assert ended.stderr.startswith("error: bertkit needs the Python module typer - `pip install ")
