"""Packages of every task family, run in a process that cannot import what a package must not need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bertkit.data.demo import demo_rows
from bertkit.recipe import load_recipe

LONG = "The old baker carried a heavy basket of red apples along the river to the busy market before the rain. "
FAMILIES = {
    "classes": ("classify", []),
    "pairs": ("mnli", []),
    "labels": ("classify", ["options.multi_label=true", "metrics=[f1_micro]"]),
    "tail": ("classify", ["options.long_text=tail"]),
    "windows": ("classify", ["options.long_text=windows_mean", "options.overlap=4"]),
    "votes": ("classify", ["options.long_text=windows_vote", "options.overlap=4"]),
    "hierarchical": ("classify", ["options.long_text=hierarchical", "options.overlap=4"]),
    "regression": ("regress", []),
    "choices": ("choose", []),
    "tags": ("ner", []),
    "valid tags": ("ner", ["options.decoding=constrained"]),
    "parts of speech": ("pos", []),
    "questions": ("squad2", []),
    "typed questions": ("decide", []),
    "senses": ("wsd", []),
    "similarity": ("similarity", []),
    "pairs to find": ("similarity-pairs", []),
    "few-shot": ("few-shot", []),
    "rerank": ("rerank", []),
    "late": ("late-interaction", []),
}
"""Name -> recipe, changes of it."""

BLOCKED = ("bertkit", "torch", "transformers", "pydantic", "typer", "yaml", "scipy", "sklearn", "pyarrow", "datasets")
_PROGRAM = """
import json, runpy, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " must not be imported")

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {folder!r})
sys.argv = {arguments}
runpy.run_module({name!r}, run_name="__main__", alter_sys=True)
"""


def run_package(folder: Path, name: str, *arguments: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    """Run `python -m NAME` in a package's folder, where nothing but its own requirements can be imported."""
    program = _PROGRAM.format(blocked=BLOCKED, folder=str(folder), arguments=[name, *arguments], name=name)
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    ended = subprocess.run([sys.executable, "-I", "-B", "-c", program], input=given, capture_output=True, check=False)
    return subprocess.CompletedProcess(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


_SERVER = """
import asyncio, json, sys
from pathlib import Path
from bertkit.server.app import create_app
from tests.server.conftest import Client

async def ask(app, rows):
    async with app.router.lifespan_context(app):
        return [await Client(app).ask_json("/v1/models/{name}:predict", dict(instances=[row])) for row in rows]

replies = asyncio.run(ask(create_app(["models/{name}"]), json.load(sys.stdin)))
print(json.dumps([reply.json["predictions"][0] if reply.status == 200 else reply.json for reply in replies]))
"""
NOT_SERVED = (*(set(BLOCKED) - {"bertkit", "pydantic", "typer", "yaml"}), "safetensors", "huggingface_hub", "pandas")


def image_program(folder: Path, code: str) -> list[str]:
    """Return the command that runs code with the bertkit of an image, where only its packages can be imported."""
    blocker = _PROGRAM.partition("sys.argv =")[0].format(blocked=NOT_SERVED, folder=str(folder))
    return [sys.executable, "-I", "-B", "-c", f"{blocker}\n{code}"]


def run_server(folder: Path, name: str, rows: Sequence[object]) -> list[dict[str, object]]:
    """Have the app of an image answer rows one by one, where it can import what is pinned for it, and no torch."""
    # the client of tests needs this clone, whose bertkit is found after that of the image
    clone = str(Path(__file__).parents[3])
    command = image_program(folder, f"sys.path.append({clone!r})\n{_SERVER.replace('{name}', name)}")
    given = json.dumps(rows)
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return list(json.loads(ended.stdout))


def rows_to_predict(recipe: str, changes: list[str], file: Path, count: int = 12) -> list[dict[str, object]]:
    """Write rows of a recipe with canonical columns, some of them long, without gold values."""
    from bertkit.recipe import parse_changes
    from bertkit.tasks import load_task

    loaded = load_recipe(recipe, {**parse_changes(changes), "model": "demo", "data.source": "demo"})
    columns = load_task(loaded).COLUMNS
    names = [*columns.given, *columns.optional]  # a second text is read wherever it stands
    rows = [{name: row[name] for name in names if name in row} for row in demo_rows(loaded, "test", count)]
    for number, row in enumerate(rows):
        for name in ("text", "context", "passage", "positive"):
            if name in row and number % 3 == 1:
                row[name] = f"{row[name]} {LONG * 4}"
        if "tokens" in row and number % 3 == 1:
            row["tokens"] = [*row["tokens"], *(LONG * 4).split()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def canonical_columns(rows: list[dict[str, object]]) -> list[str]:
    """Return the options by which `predict` reads rows whose columns are canonical."""
    return [part for name in rows[0] for part in ("--set", f"data.columns.{name}={name}")]


def same(one: object, other: object, tolerance: float = 1e-5) -> bool:
    """Tell whether two values from JSON are alike, numbers up to a tolerance."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance * max(1.0, abs(one))
    return one == other
