"""Commands of bertkit in processes that cannot import torch, or other packages that exported models do not need."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BLOCKED = (
    *("torch", "transformers", "accelerate", "safetensors", "huggingface_hub", "datasets"),
    *("pandas", "polars", "pyarrow", "scipy", "sklearn", "seqeval", "evaluate"),
)
NOT_FOR_ROWS = ("jinja2", "markupsafe", "fastapi", "uvicorn")
"""Packages that only a server needs."""
_BLOCKER = """
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, {root!r})
"""
_ADDRESS = re.compile(r" at (http://127\.0\.0\.1:\d+)$", re.MULTILINE)


def python_command(code: str, *, root: Path = ROOT, blocked: tuple[str, ...] = BLOCKED + NOT_FOR_ROWS) -> list[str]:
    """Return the command that runs code with the bertkit of a folder; `-I` hides any other one."""
    return [sys.executable, "-I", "-B", "-c", f"{_BLOCKER.format(blocked=blocked, root=str(root))}\n{code}"]


def bertkit_command(*arguments: object, **options: Any) -> list[str]:
    """Return the command that runs a command of bertkit; options as of `python_command`."""
    argv = ["bertkit", *map(str, arguments)]
    return python_command(f"sys.argv = {argv}\nrunpy.run_module('bertkit', run_name='__main__')", **options)


def run_process(command: list[str], stdin: str = "") -> str:
    """Run a command, and return what it prints."""
    ended = subprocess.run(command, input=stdin.encode(), capture_output=True, env=environment(), check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


@contextlib.contextmanager
def serve(model: Path, *options: object, root: Path = ROOT) -> Iterator[Callable[[str, object], Any]]:
    """Serve a model, and yield a function that posts content to an address of the server and returns the answer."""
    command = bertkit_command("serve", model, "--port", 0, *options, root=root, blocked=BLOCKED)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as server:
        try:
            lines: list[str] = []
            while not (address := _ADDRESS.search("".join(lines))):
                assert server.poll() is None, "".join(lines) + server.stderr.read()
                lines.append(server.stderr.readline())

            def post(path: str, content: object) -> Any:
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(address[1] + path, json.dumps(content).encode(), headers)
                with urllib.request.urlopen(request, timeout=60) as reply:
                    return json.loads(reply.read())

            yield post
        finally:
            server.terminate()
            server.communicate(timeout=60)


def environment() -> dict[str, str]:
    """Return the environment with one thread to compute with."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}
