"""The page of the runs of GLUE."""

from __future__ import annotations

from bertkit.reports.templates import write_page
from tests.evaluation.test_glue import summary_of


def test_the_page_has_scores_the_papers_and_what_a_submission_lacks(tmp_path):
    files = [
        {"name": "CoLA.tsv", "rows": 1063, "missing": ""},
        {"name": "AX.tsv", "rows": None, "missing": "no <test> rows"},
    ]
    summary = {**summary_of(), "model": "a <b>", "submission": {"archive": "submission.zip", "files": files}}
    page = tmp_path / "report.html"
    write_page(page, "glue.html.j2", summary=summary, command="bertkit glue --model m")
    for text in ("a &lt;b&gt;", "mnli (validation_mismatched)", "0.8340", "bert-large, test", "no &lt;test&gt; rows"):
        assert text in page.read_text()
    assert "stsb: failed (no label)" in page.read_text() and "2 of 9" in page.read_text()
