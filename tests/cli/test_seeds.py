"""Seeds on the command line: which are meant, and what is printed of them."""

from __future__ import annotations

import json

import pytest
import typer

from bertkit.cli.output import json_output, print_result
from bertkit.cli.seeds import parse_seeds, print_seeds
from bertkit.errors import DivergedError, UsageError
from bertkit.evaluation.seeds import SeedRun, SeedsOfSplit, SeedsSummary
from bertkit.metrics.seeds import describe_spread


def summary_of(scores, **changes):
    found = [SeedRun(n, f"seed-{n}", "finished", {"validation": {"f1": score}}) for n, score in enumerate(scores, 1)]
    spread = describe_spread(scores, interval=(0.25, 0.75))
    facts = {
        "runs": found,
        "splits": [SeedsOfSplit("validation", 40, {"f1": spread}, {"f1": 0.5})],
        "best_seed": 2,
    }
    return SeedsSummary(
        **{"recipe": "cola", "model": "demo", "folder": "runs/x y", "best_metric": "f1", **facts, **changes}
    )


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", (1,)), ("5", (1, 2, 3, 4, 5)), ("1,2,7", (1, 2, 7)), ("0,4", (0, 4))]
)
def test_a_number_counts_seeds_and_a_list_names_them(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-3", "a", "1,", "1.5", "3,3", "1,-2", "4294967296,1", "1234"])
def test_other_seeds_are_refused(text):
    with pytest.raises(UsageError) as refused:
        parse_seeds(text)
    assert text in str(refused.value) and refused.value.remedy


def test_the_spread_every_run_and_the_best_of_several_are_printed(capsys):
    failed = SeedRun(3, "seed-3", "diverged", failure="the loss is nan")
    summary = summary_of([0.6, 0.7])
    print_seeds(summary_of([0.6, 0.7], runs=[*summary.runs, failed]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "cola, validation: 40 rows, 3 seeds, demo"
    assert lines[3].split() == [
        "f1",
        *["0.6500", "0.0707", "0.6000", "0.6500", "0.7000", "0.2500", "to", "0.7500", "0.5000"],
    ]
    assert "failed: seed 3. the loss is nan" in lines
    assert "best of 2: f1 0.7000 (seed 2)" in lines
    assert "expected best f1 of k runs: 1: 0.6500, 2: 0.7000" in lines
    assert [line.split() for line in lines if line.startswith("3 ")] == [["3", "n/a", "diverged"]]
    assert lines[-1] == "open 'runs/x y'/report.html"


def test_a_run_that_diverged_ends_the_command_and_json_stays_one_object(capsys):
    error = DivergedError("seed 3 diverged: the loss is nan", "lower it")
    with pytest.raises(DivergedError):
        print_result(summary_of([0.6, 0.7]), print_seeds, error=error)
    assert "best of 2" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended, json_output():
        print_result(summary_of([0.6, 0.7]), print_seeds, error=error)
    assert ended.value.exit_code == 7
    printed = json.loads(capsys.readouterr().out)
    assert (printed["status"], printed["error"]["code"], printed["best_seed"]) == ("error", 7, 2)
