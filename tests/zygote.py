"""A warm process that forks children: each runs a real `bertkit` command, and none pays for the imports.

Reads one JSON request per line and answers with the children's exit statuses, one per process of the launch. A request
names the `arguments`, the `folder` to work in, the `environment` to add, a `path` to import from, the file `stdin` to
read, the files `out` and `err` for what is printed (see `direct`), the number of `processes` of a launch or of `copies`
that know nothing of each other, a `fault` (see `arm`), and the file `modules` for the names of the imported packages;
all but the first two may be null. Each copy prints to files of its own, whose names end with its number.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import math
import os
import signal
import socket
import sys
import threading
import time

sys.path.append(sys.path.pop(0))  # Otherwise, tests/compression would hide the module `compression` of Python 3.14.

# What a training imports. Each child would import anew what is left out here, which takes longer than its training.
MODULES = (
    "accelerate",
    "rich.progress",
    "rich.table",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "bertkit.evaluation.forward",
    "bertkit.metrics.linear",
    "bertkit.modeling.heads.text",
    "bertkit.reports.html",
    "bertkit.runtime.forward",
    "bertkit.training.fit",
    "bertkit.workflows.evaluate",
    "bertkit.workflows.finetune_results",
    "bertkit.workflows.pretrain",
)


def import_everything() -> None:
    """Import what every training imports, and load a model once, which fills transformers' tables."""
    import torch
    import transformers
    from quick import RESAMPLES, TIMING, draw_resamples, skip_waste

    from bertkit.pretraining.objectives import objective_names
    from bertkit.storage.hub import find_model
    from bertkit.tasks import task_names

    tasks = [f"bertkit.tasks.{name}" for name in task_names()]
    objectives = [f"bertkit.pretraining.objectives.{name}" for name in objective_names()]
    for module in (*MODULES, *tasks, *objectives):
        importlib.import_module(module)
    with contextlib.redirect_stderr(io.StringIO()):  # of a progress bar
        for name in ("AutoTokenizer", "AutoModelForMaskedLM"):
            getattr(transformers, name).from_pretrained(find_model("demo"))
    torch.set_num_threads(1)
    skip_waste()
    draw_resamples(RESAMPLES)
    for path, value in TIMING.items():  # see conftest.timed_once
        module, _, name = path.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    keep_recipes()
    keep_versions_and_templates()


def keep_recipes() -> None:
    """Parse the recipes that most commands name before a child does."""
    from quick import compute_once

    from bertkit.recipe import load_pretrain_recipe, load_recipe, yaml

    yaml._parse_yaml = compute_once(yaml._parse_yaml)
    for name in ("classify", "cola", "sst2"):
        load_recipe(name)
    load_pretrain_recipe("mlm")


def keep_versions_and_templates() -> None:
    """Read the versions of packages before a child does, and let each child compile templates that no other has."""
    from importlib import metadata

    from jinja2 import Environment, FileSystemBytecodeCache

    from bertkit.storage.runs import versions

    metadata.version = functools.cache(metadata.version)
    versions()
    templates = FileSystemBytecodeCache(os.environ["BERTKIT_CACHE"])
    Environment.__init__ = functools.partialmethod(Environment.__init__, bytecode_cache=templates)


def arm(fault: dict) -> None:
    """Send this process a signal at the n-th call of a function, or after some seconds; or arm faults.c.

    A fault with a rank is that of one process of a launch. After some seconds, the signal goes to the processes that
    this one has started, too.
    """
    if fault.get("rank", os.environ.get("RANK")) != os.environ.get("RANK"):
        return
    number = getattr(signal, fault.get("signal", "SIGKILL"))
    if "seconds" in fault:
        os.setpgid(0, 0)
        threading.Thread(target=lambda: (time.sleep(fault["seconds"]), os.killpg(0, number)), daemon=True).start()
    if "operation" in fault:
        folder, ignored, log = (os.fsencode(fault[name]) for name in ("folder", "except", "log"))
        ctypes.CDLL(None).fault_arm(folder, ignored, ctypes.c_long(fault["operation"]), fault["error"], log)
    if "function" not in fault:
        return
    module, _, name = fault["function"].rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        outer, _, cls = module.rpartition(".")
        owner = getattr(importlib.import_module(outer), cls)
    function, calls = getattr(owner, name), [0]

    def struck(*arguments, **keywords):
        calls[0] += 1
        now = calls[0] == fault.get("call", 1)
        if now and fault.get("when", "before") == "before":
            os.kill(os.getpid(), number)
        result = function(*arguments, **keywords)
        if now and fault.get("when") == "after":
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, struck)


def direct(descriptor: int, file: str) -> None:
    """Let a stream of this process lead to a file, or to one of three places where nobody reads it."""
    if file == "closed":
        os.close(descriptor)
        return
    if file == "pipe without a reader":
        reader, target = os.pipe()
        os.close(reader)
    elif file == "terminal that is gone":
        terminal, target = os.openpty()
        os.close(terminal)
    else:
        target = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(target, descriptor)


def run_command(request: dict, environment: dict[str, str]) -> None:
    """Run the command of a request in this process, which is a child."""
    from bertkit.cli.interrupts import end_on_interrupt
    from bertkit.cli.main import main

    os.chdir(request["folder"])
    os.environ.update(request["environment"] | environment)
    # also where the tests are a job in the background, or of nohup
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on_interrupt()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    direct(1, request["out"])
    direct(2, request["err"])
    os.dup2(os.open(request["stdin"] or os.devnull, os.O_RDONLY), 0)  # ours holds the requests
    if request["path"]:
        sys.path.insert(0, os.path.join(request["folder"], request["path"]))  # noqa: PTH118
    if "torch" in sys.modules:  # a forked torch makes a new thread pool, and two threads must not do so at once
        sys.modules["torch"].set_num_threads(1)
    sys.argv = ["bertkit", *request["arguments"]]
    if "operation" not in (request["fault"] or {}):
        os.fsync = os.fstat  # a killed process loses nothing that it wrote
    if request["fault"]:
        arm(request["fault"])
    if request["device"]:
        importlib.import_module(request["device"]).turn_on()
    try:
        if request["function"]:
            module, _, name = request["function"].rpartition(".")
            sys.exit(getattr(importlib.import_module(module), name)(*request["arguments"]))
        main()
    finally:
        if request["modules"]:
            with open(request["modules"], "w") as stream:  # noqa: PTH123 - pathlib would be one more import
                stream.write(" ".join({name.partition(".")[0] for name in sys.modules}))


def fork(request: dict, environment: dict[str, str]) -> int:
    """Return the id of a child that runs the command of a request."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        run_command(request, environment)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def requests_of(request: dict) -> list[tuple[dict, dict[str, str]]]:
    """Return what each process is asked for, and what is added to its environment: those of a launch, or copies."""
    if copies := request.get("copies"):
        names = [{name: f"{request[name]}{number}" for name in ("out", "err")} for number in range(copies)]
        return [({**request, **printed}, {}) for printed in names]
    return [(request, environment) for environment in rank_environments(request["processes"])]


def rank_environments(processes: int) -> list[dict[str, str]]:
    """Return what torchrun sets for each process of a launch on one machine; nothing for one process alone."""
    if processes == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    launch |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**launch, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def answer(request: dict) -> list[int]:
    """Return the exit status of each process, by rank; where one fails, the others are ended as torchrun ends them."""
    ranks = {fork(*asked): rank for rank, asked in enumerate(requests_of(request))}
    codes = [0] * len(ranks)
    while ranks:
        process, status = os.waitpid(-1, 0)
        code = codes[ranks.pop(process)] = os.waitstatus_to_exitcode(status)
        for other in ranks if code and not request.get("copies") else ():
            os.kill(other, signal.SIGTERM)
    return codes


def serve() -> None:
    import typer

    from bertkit.cli.main import app
    from bertkit.hardware import process

    process._MONITOR_SECONDS = math.inf  # what takes the cores beside the tests is not told
    gc.disable()
    typer.main.get_command = functools.cache(typer.main.get_command)  # see conftest.usual_resamples
    typer.main.get_command(app)
    if "--light" in sys.argv:
        importlib.import_module("bertkit.data.sources")  # reads recipes and rows, and imports nothing heavy
    else:
        import_everything()
    for module in sys.argv[1:]:
        if not module.startswith("--"):
            importlib.import_module(module)
    gc.freeze()  # a collection in a child would copy the parent's pages
    gc.enable()
    for line in sys.stdin:
        sys.__stdout__.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.__stdout__.flush()


if __name__ == "__main__":
    serve()
