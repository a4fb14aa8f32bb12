"""The files of docs/scale.md that run bertkit inside other engines, where these are installed."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.conftest import toy_rows, write_csv
from tests.test_docs_run import ROOT, blocks_of

pytestmark = pytest.mark.slow

FILES = {
    block.title: block.text.replace("sentence", "text").replace("unacceptable", "bad").replace("acceptable", "good")
    for block in blocks_of("docs/scale.md")
    if block.title.startswith("with_")
}
"""Files of the page by their names, with the column and the labels of the tests' run."""
ENGINES = {"with_ray.py": "ray", "with_spark.py": "pyspark", "with_daft.py": "daft"}


def test_each_file_has_its_engine():
    assert FILES.keys() == ENGINES.keys()


@pytest.fixture
def folder(tmp_path, trained):
    """A folder with rows and a run, under the names that the page has for them."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cola").symlink_to(trained)
    rows = toy_rows(3000, seed=8)
    write_csv(tmp_path / "texts.csv", [{"text": row["text"]} for row in rows])
    return tmp_path


def run_python(folder: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def predictions(folder: Path) -> Counter:
    return Counter((row["text"], row["prediction"]) for row in parquet.read_table(folder / "predicted").to_pylist())


def predicted_by_command(zygote, folder: Path) -> Counter:
    asked = ["predict", "runs/cola", "texts.csv", "-o", "one.csv"]
    code, out = zygote.run(folder, asked)
    assert code == 0, out
    with (folder / "one.csv").open(newline="") as stream:
        return Counter((row["text"], row["prediction"]) for row in csv.DictReader(stream))


@pytest.mark.parametrize("file", ENGINES)
def test_an_engine_predicts_what_the_command_does(file, folder, zygote):
    if importlib.util.find_spec(ENGINES[file]) is None:
        pytest.skip(f"{ENGINES[file]} is not installed")
    run_python(folder, FILES[file])
    assert predictions(folder) == predicted_by_command(zygote, folder)
    if file == "with_ray.py":
        assert parquet.read_table(folder / "embedded").num_rows == 3000


def test_a_worker_of_ray_that_is_killed_loses_no_row_and_doubles_none(folder, zygote):
    pytest.importorskip("ray")
    killed = FILES["with_ray.py"].replace(
        "        return self.model(batch)",
        """        import os, pathlib, signal
        mark = pathlib.Path({mark!r})
        if len(batch["text"]) and mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        elif not mark.with_name("seen").exists():
            mark.with_name("seen").touch()
            mark.touch()
        return self.model(batch)""".format(mark=str(folder / "strike")),
    )
    run_python(folder, killed.replace("4096", "500"))
    assert (folder / "seen").exists() and not (folder / "strike").exists()
    assert predictions(folder) == predicted_by_command(zygote, folder)


def test_an_index_in_parts_finds_what_a_whole_one_does(tmp_path, zygote):
    pytest.importorskip("ray")
    rows = [{"id": f"row {number}", "text": row["text"]} for number, row in enumerate(toy_rows(400, seed=3))]
    for name, some in {"part-1": rows[:250], "part-2": rows[250:], "whole": rows}.items():
        write_csv(tmp_path / f"{name}.csv", some)
        code, out = zygote.run(tmp_path, ["search", "build", f"{name}.csv", "--model", "demo", "--output", name])
        assert code == 0, out
    search = next(block.text for block in blocks_of("docs/scale.md") if block.title == "search_with_ray.py")
    printed = run_python(tmp_path, search)
    whole = search.replace('("part-1", "part-2")', '("whole",)')
    assert printed == run_python(tmp_path, whole) and len(printed.splitlines()) == 2
