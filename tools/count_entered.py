"""Count the files of bertkit that a fine-tuning enters before its first training step.

    python tools/count_entered.py [CHECKOUT] [--list]

A file is entered when one of its functions is called; that it is imported does not count. The run is the demo
(`finetune cola --model demo --data demo`) with ten rows. It is a measure of how much a newcomer has to read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = "finetune cola --model demo --data demo --limit 10 --output run"

PROGRAM = """
import sys, threading
from pathlib import Path
import bertkit
from transformers import Trainer

root, out, command = Path(bertkit.__file__).parent, Path(sys.argv[1]), sys.argv[2:]
entered, codes = set(), set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code not in codes:
        codes.add(code)
        # A named function: bodies of modules and classes, and their comprehensions, run on import. A method of a class
        # that a decorator makes has a file name such as <string>.
        is_named = code.co_flags & 0x02 and not code.co_name.startswith("<")
        if is_named and code.co_filename.startswith(str(root)):
            entered.add(str(Path(code.co_filename).relative_to(root)))

first_step = Trainer.training_step

def stop(*arguments, **keywords):
    sys.setprofile(None)
    out.write_text("\\n".join(sorted(entered)))
    Trainer.training_step = first_step
    return first_step(*arguments, **keywords)

Trainer.training_step = stop
from bertkit.__main__ import main
sys.argv = ["bertkit", *command]
threading.setprofile(note)
sys.setprofile(note)
main()
"""


def find_entered(checkout: Path) -> list[str]:
    """Return the files of a checkout's package, relative to it, that the demo enters before its first step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "entered.txt")
        environment = {**os.environ, "PYTHONPATH": str(checkout), "BERTKIT_CACHE": str(Path(folder, "cache"))}
        command = [sys.executable, "-P", "-c", PROGRAM, str(out), *COMMAND.split()]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        return out.read_text(encoding="utf-8").splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parent.parent)
    parser.add_argument("--list", action="store_true", help="print the files too")
    arguments = parser.parse_args()
    entered = find_entered(arguments.checkout.resolve())
    if arguments.list:
        print(*entered, sep="\n")
    print(f"{len(entered)} files entered before the first training step")


if __name__ == "__main__":
    main()
