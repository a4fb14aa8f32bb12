"""What `bertkit explain` refuses before it loads a model, and how it prints."""

from __future__ import annotations

import pytest

from bertkit.cli.commands import explain
from bertkit.workflows.explain import ExplainedRow


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to explain - give one of --text, --row COLUMN=VALUE, --data FILE and --errors N"),
        (
            ["--text", "a", "--data", "b.csv"],
            "more than one of --text or --row, --data, --errors - give one of --text,",
        ),
        (["--errors", "3", "--data", "b.csv"], "more than one of --text or --row, --data, --errors"),
        (["--errors", "3", "--limit", "3"], "--limit without --data"),
        (["--text", "a", "-o", "why.txt"], "the page is HTML (why.txt)"),
        (
            ["--text", "a"],
            "so its task is unknown (nothing) - name a run folder, or add --recipe RECIPE",
        ),
    ],
)
def test_a_mistake_is_one_line(run, options, message):
    ended = run("explain", "nothing", *options)
    assert ended.code == 2
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def make_row(**changes):
    from bertkit.analysis.explanations import Explanation, WordValue

    words = [WordValue("a", 0, 0.25, 0.5), WordValue("film", 0, -1.0, 0.0)]
    fields = {"target": "good", "measure": "log-odds", "score": 1.0, "baseline_score": 0.5, "steps": 1, "gap": 0.002}
    explanation = Explanation(**{**fields, "is_complete": True, "words": words, **changes})
    return ExplainedRow(0, {"text": "a film"}, {"prediction": "good"}, [explanation])


def test_words_are_listed_by_what_they_add(capsys):
    explain.print_row(make_row())
    assert capsys.readouterr().out.splitlines() == [
        '{"id": 0, "prediction": "good"}',
        "  good: log-odds 1.0000, with all words masked 0.5000",
        "  the words add up to the difference within 0.20% (1 step)",
        "  contribution of each word",
        "    word  integrated gradients  if masked",
        "    film               -1.0000    +0.0000",
        "    a                  +0.2500    +0.5000",
        "",
    ]
    explain.print_row(make_row(is_complete=False, gap=0.5, steps=64))
    assert "NOT COMPLETE: the words miss the difference by 50.0% after 64 steps" in capsys.readouterr().out
    explain.print_row(ExplainedRow(0, {}, {"prediction": []}, []))
    assert "nothing to explain: the row has no words" in capsys.readouterr().out
