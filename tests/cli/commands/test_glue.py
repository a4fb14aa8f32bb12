"""`bertkit glue`: what it prints."""

from __future__ import annotations

from bertkit.cli.commands.glue import print_glue
from tests.evaluation.test_glue import summary_of


def test_scores_averages_and_what_is_missing_are_printed(capsys):
    files = [
        {"name": "CoLA.tsv", "rows": 1063, "missing": ""},
        {"name": "AX.tsv", "rows": None, "missing": "no test rows"},
    ]
    submission = {"archive": "submission.zip", "files": files}
    print_glue({**summary_of(), "paper_average": 0.75, "submission": submission})
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "GLUE: 2 of 9 tasks, m"
    cells = [line.split() for line in lines]
    assert ["mnli", "mismatched", "accuracy", "100", "0.5000", "0.5000", "to", "0.7500", "0.834", "0.859"] in cells
    assert ["average:", "BERT", "paper", "0.7500", "0.796", "0.821"] in cells
    assert ["average:", "leaderboard", "n/a"] in cells
    lacking = "cola matthews_correlation, sst2, mrpc, stsb, qqp, qnli, rte, wnli"
    assert f"no average over all tasks, because of missing scores: {lacking}" in lines
    assert "failed: stsb, no label" in lines
    assert "left out: sst2, mrpc, qqp, qnli, rte, wnli" in lines
    assert "submission: runs/glue/submission.zip, 1 of 2 files" in lines
    assert "missing: AX.tsv: no test rows" in lines
    assert any("all files or none" in line for line in lines)


def test_made_up_rows_have_no_column_of_the_paper(capsys):
    print_glue(summary_of("demo"))
    out = capsys.readouterr().out
    assert "bert-base" not in out and "no submission: only some rows" in out
