"""A table as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io

from bertkit.metrics.paired import Difference
from bertkit.reports.table import describe_marks, make_grid, to_csv, to_latex, to_markdown
from bertkit.workflows.table import RunsTable, TableCell

BETTER = Difference(0.5, 0.75, 0.25, (0.1, 0.4), 0.01, "permutation", p_holm=0.02)
TABLE = RunsTable(
    ["bert_base", "small|x"],
    [("cola", "f1"), ("rte", "accuracy")],
    [
        TableCell("bert_base", "cola", "f1", "runs/a", 0.5, (0.4, 0.6)),
        TableCell("small|x", "cola", "f1", "runs/b", 0.75, (0.6, 0.8), 3, 0.125, is_best=True, difference=BETTER),
        TableCell("small|x", "rte", "accuracy", "runs/c", None),
    ],
    ["rte: 50 % of the rows."],
)


def test_cells_have_score_mark_deviation_and_interval():
    assert make_grid(TABLE) == [
        ["model", "cola f1", "rte accuracy"],
        ["bert_base", "0.5000 (0.4000 to 0.6000)", "-"],
        ["small|x", "0.7500* ± 0.1250 (0.6000 to 0.8000)", "n/a"],
    ]
    assert describe_marks(TABLE) == [
        "In parentheses: the 95% interval.",
        "Mean ± standard deviation over seeds.",
        "*: differs from bert_base at p < 0.05 (permutation), after Holm's correction.",
    ]
    assert describe_marks(RunsTable(["a"], [("t", "m")], [TableCell("a", "t", "m", "r", 0.5)], [])) == []


def test_a_p_that_is_corrected_above_the_level_has_no_star():
    weak = TableCell("b", "t", "m", "r", 0.5, difference=Difference(0.5, 0.5, 0.0, None, 0.04, "x", p_holm=0.08))
    assert make_grid(RunsTable(["b"], [("t", "m")], [weak], []))[1] == ["b", "0.5000"]


def test_markdown_is_a_table_that_no_name_breaks():
    lines = to_markdown(TABLE).splitlines()
    assert lines[:4] == [
        "| model | cola f1 | rte accuracy |",
        "| --- | ---: | ---: |",
        "| bert_base | 0.5000 (0.4000 to 0.6000) | - |",
        r"| small\|x | **0.7500**\* ± 0.1250 (0.6000 to 0.8000) | n/a |",
    ]
    assert lines[-1] == "rte: 50 % of the rows."


def test_latex_escapes_names_and_has_a_column_per_task():
    text = to_latex(TABLE)
    assert r"bert\_base & 0.5000 (0.4000 to 0.6000) & - \\" in text
    assert r"\textbf{0.7500}$^{*}$ $\pm$ 0.1250 (0.6000 to 0.8000) & n/a \\" in text
    assert r"\begin{tabular}{lrr}" in text and "% rte: 50 % of the rows.\n" in text


def test_csv_has_a_line_per_cell_with_all_numbers():
    first, second, third = csv.DictReader(io.StringIO(to_csv(TABLE)))
    assert (first["model"], first["score"], first["low"], first["p"]) == ("bert_base", "0.5", "0.4", "")
    assert (second["seeds"], second["standard_deviation"], second["difference"], second["p"]) == (
        "3",
        "0.125",
        "0.25",
        "0.02",
    )
    assert (third["score"], third["folder"]) == ("", "runs/c")
