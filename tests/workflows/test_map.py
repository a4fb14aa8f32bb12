"""Maps of files, from the command line to their files and numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from bertkit.analysis.layer_vectors import LayerReader
from bertkit.analysis.map import project
from bertkit.vectors.text_files import TextSource
from bertkit.workflows.map import MapSettings, draw_map
from tests.conftest import toy_rows, write_csv, write_jsonl

ROWS = toy_rows(30, seed=1)


@pytest.fixture
def file(tmp_path):
    return write_csv(tmp_path / "rows.csv", ROWS)


def read(name):
    return pyarrow.parquet.read_table(name).to_pylist()


def test_texts_are_drawn_at_all_layers_and_scored_by_their_labels(run, file, tiny_model):
    ended = run("map", file, "--model", tiny_model, "--label", "label", "-o", "m.html", "--svg", "m.svg", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert (result["points"], sorted(result["labels"])) == (30, ["bad", "good"])
    assert result["most_frequent"] == max(result["labels"].values()) / 30
    assert [one["layer"] for one in result["layers"]] == [0, 1, 2]
    assert result["written"] == ["m.html", "m.parquet", "m.svg"]
    rows = read("m.parquet")
    assert list(rows[0]) == ["id", "text", "label", "x", "y", "x_0", "y_0", "x_1", "y_1", "x_2", "y_2"]
    assert [(row["text"], row["label"]) for row in rows] == [(row["text"], row["label"]) for row in ROWS]
    # the last layer has its own principal components; the others are turned, which keeps distances from the center
    vectors = LayerReader(str(tiny_model)).read([{"text": row["text"]} for row in ROWS], "text")
    last = project(vectors.at(2)).points
    np.testing.assert_allclose([(row["x"], row["y"]) for row in rows], last, atol=1e-6)
    assert all((row["x"], row["y"]) == (row["x_2"], row["y_2"]) for row in rows)
    first = np.linalg.norm(project(vectors.at(0)).points, axis=1)
    np.testing.assert_allclose([np.hypot(row["x_0"], row["y_0"]) for row in rows], first, atol=1e-6)
    assert result["layers"][1]["explained"] == pytest.approx(project(vectors.at(1)).explained)
    assert "30 texts" in Path("m.html").read_text() and "layer 2" in Path("m.svg").read_text()
    again = run("map", file, "--model", tiny_model, "-o", "m.html")
    assert (again.code, "the file exists already" in again.last) == (2, True)
    assert read("m.parquet") == rows
    again = run("map", file, "--model", tiny_model, "-o", "m.html", "--overwrite", "--layers", "1")
    assert again.code == 0, again.err
    assert list(read("m.parquet")[0]) == ["id", "text", "label", "x", "y"]


def test_a_full_disk_leaves_nothing_in_the_way_of_the_same_command(run, file, tiny_model, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    command = ("map", file, "--model", tiny_model, "-o", "m.html", "--svg", "m.svg")
    with monkeypatch.context() as patched:
        patched.setattr("bertkit.workflows.map.write_map", full)
        assert run(*command).code == 6
    assert sorted(path.name for path in Path().iterdir() if path.name.startswith(("m.", ".m."))) == []
    assert run(*command).code == 0


def test_words_are_drawn_and_a_table_is_printed(run, file, tiny_model):
    ended = run("map", file, "--model", tiny_model, "--word", "the", "--word", "FILM", "--layers", "0,2", "--limit", 20)
    assert ended.code == 0, ended.err
    rows = read("map.parquet")
    expected = [word for row in ROWS[:20] for word in row["text"].split() if word in ("the", "film")]
    assert [row["word"] for row in rows] == expected
    assert all(row["text"][row["start"] : row["end"]] == row["word"] for row in rows)
    assert {row["label"] for row in rows} == {"the", "FILM"}
    lines = ended.out.splitlines()
    assert lines[0] == f"{len(rows)} words in their texts by principal components"
    assert lines[3].startswith("  layers; baseline (most frequent label): 0.")
    assert lines[4].endswith("95% interval")
    assert [line.split()[0] for line in lines[5:7]] == ["0", "2"]
    assert lines[-2:] == ["map.html: written", "map.parquet: written"]
    assert f"{len(rows)} occurrences of the or FILM" in Path("map.html").read_text()


def test_targets_of_rows_are_drawn(tmp_path, tiny_model):
    rows = [{"tokens": row["text"].split(), "target": 1} for row in ROWS]
    source = TextSource(write_jsonl(tmp_path / "rows.jsonl", rows))
    page = tmp_path / "map.html"
    result = draw_map(LayerReader(str(tiny_model)), source, page, MapSettings(unit="target", layers="last"))
    assert [one.layer for one in result.layers] == [2]
    assert [row["word"] for row in read(page.with_suffix(".parquet"))] == [row["tokens"][1] for row in rows]
