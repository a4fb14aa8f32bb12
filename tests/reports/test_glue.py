"""The page of the runs of GLUE."""

from __future__ import annotations

from dataclasses import asdict, replace

from bertkit.evaluation.glue.summary import Submission, SubmissionFile
from bertkit.reports.glue import write_glue_report
from tests.evaluation.glue.test_summary import summary_of


def test_the_page_has_scores_the_papers_and_what_a_submission_lacks(tmp_path):
    files = [SubmissionFile("CoLA.tsv", 1063), SubmissionFile("AX.tsv", missing="no <test> rows")]
    summary = replace(summary_of(), model="a <b>", submission=Submission("submission.zip", files))
    write_glue_report(tmp_path, asdict(summary), "bertkit glue --model m")
    page = (tmp_path / "report.html").read_text()
    for text in ("a &lt;b&gt;", "mnli (validation_mismatched)", "0.8340", "bert-large, test", "no &lt;test&gt; rows"):
        assert text in page
    assert "stsb: failed (no label)" in page and "2 of 9" in page
