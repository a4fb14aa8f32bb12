"""A warm process that forks one child a command: a real bertkit that can be killed, without paying for imports.

Reads one JSON request a line: {"arguments", "folder", "fault", "out"}; answers with the child's exit status.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time

import accelerate  # noqa: F401
import torch
import transformers

import bertkit.training.fit
import bertkit.workflows.evaluate
import bertkit.workflows.finetune
import bertkit.workflows.steps.publish_finetuned  # noqa: F401
from bertkit.cli.main import main

for name in ("AutoTokenizer", "AutoConfig", "AutoModelForSequenceClassification"):
    getattr(transformers, name)


def arm(fault: dict) -> None:
    """Send this process a signal at the n-th call of a function, or after some seconds."""
    number = getattr(signal, fault.get("signal", "SIGKILL"))
    if "seconds" in fault:
        threading.Thread(
            target=lambda: (time.sleep(fault["seconds"]), os.kill(os.getpid(), number)), daemon=True
        ).start()
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
        here = calls[0] == fault.get("call", 1)
        if here and fault.get("when", "before") == "before":
            os.kill(os.getpid(), number)
        result = function(*arguments, **keywords)
        if here and fault.get("when") == "after":
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, struck)


def child(request: dict) -> None:
    os.chdir(request["folder"])
    stream = os.open(request["out"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.argv = ["bertkit", *request["arguments"]]
    if request.get("fault"):
        arm(request["fault"])
    main()


def serve() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            code = 1
            try:
                child(request)
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(process, 0)
        sys.__stdout__.write(json.dumps(os.waitstatus_to_exitcode(status)) + "\n")
        sys.__stdout__.flush()


if __name__ == "__main__":
    serve()
