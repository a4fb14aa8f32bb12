"""Count the lines of code of the package, by room: no blank lines, comments, docstrings or imports.

    python tools/count_code.py [FOLDER] [--json | --total]

Each line of a statement counts. `--total` prints one line, and fails where the code exceeds its budget.
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

BUDGET = 37_711
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def is_docstring(node: ast.AST) -> bool:
    """Tell whether a statement is a string alone: the docstring of what it stands in or, after a field, of the field.

    PEP 257 calls the second kind attribute docstrings.
    """
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count(text: str) -> Counter[str]:
    """Count lines of code of a module, their characters, and comments, those at the end of a line too."""
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
    """Return files, lines, their mean width and comments per 100 lines of each folder inside `folder`, and in all.

    Loose modules are counted under the name of `folder`.
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
        for room, each in rooms.items():
            print(f"{room:14}{each['files']:8}{each['lines']:8,}{each['width']:8}{each['comments']:18}")
