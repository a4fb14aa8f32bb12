"""The page of the runs of GLUE."""

from __future__ import annotations

from dataclasses import asdict, replace

from bertkit.evaluation.glue.summary import Submission, SubmissionFile
from bertkit.reports.templates import write_page
from tests.evaluation.glue.test_summary import summary_of


def test_the_page_has_scores_the_papers_and_what_a_submission_lacks(tmp_path):
    files = [SubmissionFile("CoLA.tsv", 1063), SubmissionFile("AX.tsv", missing="no <test> rows")]
    summary = replace(summary_of(), model="a <b>", submission=Submission("submission.zip", files))
    page = tmp_path / "report.html"
    write_page(page, "glue.html.j2", summary=asdict(summary), command="bertkit glue --model m")
    for text in ("a &lt;b&gt;", "mnli (validation_mismatched)", "0.8340", "bert-large, test", "no &lt;test&gt; rows"):
        assert text in page.read_text()
    assert "stsb: failed (no label)" in page.read_text() and "2 of 9" in page.read_text()
