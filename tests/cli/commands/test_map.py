"""What `bertkit map` refuses before it loads a model, and how it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.analysis.map import MappedLayer, Separation
from bertkit.cli.commands.map import print_map
from bertkit.reports.map import ShownMap
from bertkit.workflows.map import MapResult


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-o", "map.pdf"], 2, "--output map.pdf does not end in .html - name a file such as map.html"),
        (["--svg", "map.png"], 2, "--svg map.png does not end in .svg - name a file such as map.svg"),
        (["--layers", "first"], 2, "--layers first - all, last, or numbers such as 0,3,6"),
        (["--layers", "9"], 2, "--layers 9: no layer 9 - 0 (the embeddings) to "),
        (["--word", ""], 2, "--word without a word"),
        (["--word", "zebra"], 3, "no row has the word 'zebra' (rows.csv) - check its spelling"),
        (["--label", "labels"], 3, "no column 'labels' (rows.csv:2) - did you mean label?; name it with --label"),
        (["--column", "body"], 3, "no column 'body'"),
        (["--limit", 2], 3, "a map needs at least 3 points, got 2 (rows.csv) - give more rows"),
        (
            ["-o", "old.html"],
            2,
            "the file exists already (old.parquet) - name another file",
        ),
        (["-o", "none/map.html"], 6, "cannot be written"),
        (["--unit", "target"], 3, "no column 'target'"),
        (["--model", "nothing"], 5, "'nothing' is neither a directory nor in the cache"),
    ],
)
def test_a_mistake_is_one_line(run, options, code, message):
    Path("rows.csv").write_text("text,label\na,b\nb,b\nc,d\n")
    Path("old.parquet").write_text("kept")
    ended = run("map", "rows.csv", *([] if "--model" in options else ["--model", "demo"]), *options)
    assert (ended.code, len(ended.err.splitlines())) == (code, 1), ended.err
    assert message in ended.err
    assert Path("old.parquet").read_text() == "kept"
    assert sorted(path.name for path in Path().iterdir()) == ["old.parquet", "rows.csv"]


def test_points_that_would_replace_the_input_are_refused(run):
    Path("rows.parquet").write_text("not read")
    ended = run("map", "rows.parquet", "--model", "demo", "-o", "rows.html", "--overwrite")
    assert (ended.code, "--output is the file to map (rows.parquet)" in ended.err) == (2, True)


def test_what_is_not_on_the_page_is_said(capsys):
    layers = [MappedLayer(6, (0.25, 0.125), Separation(4000, 0.5, 0.75, (0.7, 0.8)))]
    labels = {f"label {n}": 500 for n in range(13)}
    print_map(MapResult(6500, "text", "pca", labels, 1 / 13, layers, ShownMap(6000, 80, 9), ["a"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["6,500 texts by principal components", "  label 0: 500 (7.7%)"]
    assert lines[12:] == [
        "  label 11: 500 (7.7%)",
        "  ... 1 more with --json",
        "  layers; baseline (most frequent label): 0.0769",
        "    layer  1st component  2nd component  silhouette (Euclidean)  nearest has the label      95% interval",
        "    6              25.0%          12.5%                   0.500                 0.7500  0.7000 to 0.8000",
        "  labels are compared on 4,000 of the points",
        "  the page shows 6,000 of the points",
        "  the page cuts 9 texts after 80 characters",
        "a: written",
    ]
