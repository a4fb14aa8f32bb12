"""What a package costs from the start of its process to the first answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, ModelError, shorten
from bertkit.storage.files import split_lines

_PROGRAM = """
import sys
before = set(sys.modules)
import importlib, json, time
sys.path.insert(0, sys.argv[1])
row = json.loads(sys.argv[3])
try:
    {answer}
except Exception as error:
    print(f"error: {{error}}", file=sys.stderr)
    raise SystemExit(getattr(error, "exit_code", 1))
seconds = time.process_time()
imported = {{name.partition(".")[0] for name in set(sys.modules) - before if name[:2] != "__"}}
imported -= {{*sys.stdlib_module_names, sys.argv[2], "bertkit"}}
try:
    with open("/proc/self/status") as status:
        memory = 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    import resource
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
found = {{"seconds": seconds, "memory": memory, "imported": sorted(imported), "answer": answer}}
print(json.dumps(found))
"""
_MODULE = "answer = importlib.import_module(sys.argv[2]).Model().predict([row])[0]"
_SERVER = """
    from bertkit.server.app import create_app
    engine = create_app([f"{sys.argv[1]}/models/{sys.argv[2]}"]).state.service.get(sys.argv[2]).rows.engine
    rows = [row]
    answer = engine.answer(rows, engine.encode(rows))[0]
"""
# the peak of /proc is that of this program alone; getrusage counts what the process was forked from, too


@dataclass(frozen=True)
class ColdStart:
    """What the first answer of a new process took."""

    seconds: float
    """Processor time from the start of Python, with compiling the package's code."""
    memory: int
    """The peak, in bytes."""
    imported: tuple[str, ...]
    """Packages that were imported, beside the standard library and the package itself."""
    answer: dict[str, Any]


def measure_cold_start(folder: Path, name: str, row: Mapping[str, Any], *, serves: bool = False) -> ColdStart:
    """Have a package answer a row in a process of its own, which sees neither environment nor working directory.

    Args:
        folder: where the package is.
        name: of the package, or of the model that a server has.
        row: what it is asked.
        serves: whether the package is a server, whose app answers without a network.

    Raises:
        DataError: the model cannot answer this row.
        ModelError: the package does not run.
    """
    program = _PROGRAM.format(answer=_SERVER.strip() if serves else _MODULE)
    command = [sys.executable, "-I", "-B", "-c", program, str(folder.resolve()), name, json.dumps(row)]
    ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if ended.returncode:
        reason = shorten((ended.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: "), 300)
        if ended.returncode == DataError.exit_code:
            raise DataError(reason)
        raise ModelError(f"the package does not run: {reason}", "report it, with this line")
    measured = json.loads(split_lines(ended.stdout)[-1])
    return ColdStart(measured["seconds"], measured["memory"], tuple(measured["imported"]), measured["answer"])
