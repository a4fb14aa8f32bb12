"""Count the lines of code of each package, without blank lines, comments, docstrings and imports.

    python tools/count_code.py [FOLDER] [--json | --total]

Each line of a statement counts. `--total` prints one line, and exits with code 1 if the code exceeds its budget.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

BUDGET = 38_286
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a docstring, including docstrings of attributes (PEP 257)."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count(text: str) -> Counter[str]:
    """Count lines of code of a module, their characters, and comments, including trailing comments."""
    lines, comments = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring(node):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    rows = text.split("\n")
    code = [rows[number - 1] for number in lines if rows[number - 1].strip()]  # a string may hold empty lines
    return Counter(files=1, lines=len(code), characters=sum(map(len, code)), comments=comments)


def count_rooms(folder: Path) -> dict[str, dict[str, float]]:
    """Return files, lines, mean width and comments per 100 lines of each folder in `folder`, and in all.

    Modules outside of folders are counted under the name of `folder`.
    """
    rooms: dict[str, Counter[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        room = file.relative_to(folder).parts[0] if file.parent != folder else folder.name
        rooms[room] = rooms.get(room, Counter()) + count(file.read_text(encoding="utf-8"))
    facts = {}
    for room, counted in {**rooms, "in all": sum(rooms.values(), Counter())}.items():
        width, comments = (
            part / max(1, counted["lines"]) for part in (counted["characters"], 100 * counted["comments"])
        )
        facts[room] = {"files": counted["files"], "lines": counted["lines"]}
        facts[room] |= {"width": round(width, 1), "comments": round(comments, 1)}
    return facts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent / "bertkit")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--total", action="store_true", help=f"print one line; fail above {BUDGET:,} lines of code")
    arguments = parser.parse_args()
    rooms = count_rooms(arguments.folder)
    if arguments.json:
        print(json.dumps(rooms, indent=1))
    elif arguments.total:
        total = rooms["in all"]
        print("{lines:,} lines of code, {width} wide, {comments} comments per 100 lines".format(**total))
        sys.exit(total["lines"] > BUDGET and f"the budget is {BUDGET:,} lines: merge or delete")
    else:
        print(f"{'room':14}{'files':>8}{'lines':>8}{'width':>8}{'comments per 100':>18}")
        for room, row in rooms.items():
            print(f"{room:14}{row['files']:8}{row['lines']:8,}{row['width']:8}{row['comments']:18}")
