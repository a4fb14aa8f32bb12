"""What `bertkit eval` prints and refuses; its scores are in tests/workflows."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bertkit.cli.commands.evaluate import print_benchmark, print_languages, print_results
from bertkit.cli.output import json_output, print_result
from bertkit.evaluation.languages import LanguageScores, tabulate_languages, with_oracle
from bertkit.evaluation.scoring import Result
from bertkit.vectors.benchmark import BenchmarkScores

RESULT = Result(
    recipe="cola",
    model="runs/cola",
    split="validation",
    scores={"matthews_correlation": -0.1, "accuracy": 0.65, "f1": math.nan},
    rows=1043,
    seconds=1.5,
    intervals={"matthews_correlation": (-0.1654, 0.0), "accuracy": (0.55, 0.74)},
    interval_methods={"matthews_correlation": "bootstrap", "accuracy": "Wilson"},
    baselines={"most frequent label": {"accuracy": 0.67}},
    source="demo",
    warnings=["Look at the rows."],
    tables={"by label": [{"label": "yes", "f1": 0.5}]},
)


def test_scores_stand_beside_their_interval_and_baseline(capsys):
    print_results([RESULT])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "cola, validation: 1,043 rows (demo), runs/cola",
        "  matthews_correlation -0.1000  95% CI -0.1654 to 0.0000",
        "  accuracy              0.6500  95% CI 0.5500 to 0.7400    baseline  0.6700",
        "  f1                       n/a",
        "  95% CI: bootstrap for matthews_correlation; Wilson for accuracy",
        "  by label",
        "    label      f1",
        "    yes    0.5000",
        "  Look at the rows.",
    ]
    assert max(map(len, lines)) <= 80


def test_training_rows_are_marked_above_the_scores(capsys):
    print_results([replace(RESULT, training_rows=50)])
    assert capsys.readouterr().out.splitlines()[1] == "  training rows: 50 of 1,043 (4.8%). New rows may score lower."


def test_a_number_that_is_undefined_says_why(capsys):
    one, same = "one row cannot be resampled", "all predictions are the same"
    result = replace(
        RESULT,
        rows=1,
        scores={"spearmanr": None, "r2": 0.5},
        intervals={"spearmanr": None, "r2": None},
        interval_methods={},
        baselines={"mean": {"spearmanr": None, "r2": None}},
        undefined={
            "scores": {"spearmanr": "one row has no correlation"},
            "intervals": {"spearmanr": one, "r2": one},
            "baselines": {"spearmanr": same, "r2": same},
        },
        tables={},
    )
    print_results([result])
    assert capsys.readouterr().out.splitlines() == [
        "cola, validation: 1 row (demo), runs/cola",
        "  spearmanr     n/a  95% CI n/a                 baseline     n/a",
        "  r2         0.5000  95% CI n/a                 baseline     n/a",
        "  n/a: spearmanr (one row has no correlation)",
        "  n/a: interval of r2 (one row cannot be resampled)",
        "  n/a: baseline of r2 (all predictions are the same)",
        "  Look at the rows.",
    ]


def test_the_strongest_baseline_stands_beside_the_score_and_all_below(capsys):
    baselines = {
        "most frequent label": {"accuracy": 0.5, "f1": 0.0},
        "text alone": {"accuracy": 0.4, "f1": None},
    }
    result = replace(RESULT, scores={"accuracy": 0.6}, interval_methods={}, baselines=baselines, tables={})
    print_results([result])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  accuracy  0.6000  95% CI 0.5500 to 0.7400    baseline  0.5000",
        "  baselines",
        "    baseline             accuracy      f1",
        "    most frequent label    0.5000  0.0000",
        "    text alone             0.4000     n/a",
        "  Look at the rows.",
    ]


@pytest.mark.parametrize(
    ("difference", "interval", "said"),
    [
        (0.25, (0.1, 0.4), "better than words by 0.2500 (95% CI 0.1000 to 0.4000)"),
        (-0.25, (-0.4, 0.1), "worse than words by 0.2500 (95% CI -0.1000 to 0.4000)"),
        (-0.00001, None, "as good as words"),
    ],
)
def test_the_difference_from_the_strongest_baseline_is_said(capsys, difference, interval, said):
    lead = {"metric": "f1", "baseline": "words", "difference": difference, "interval": interval}
    print_results([replace(RESULT, lead={**lead, "score_interval": None, "is_clear": True}, tables={})])
    assert f"  f1: {said}" in capsys.readouterr().out.splitlines()


def test_json_has_every_field(capsys):
    with json_output():
        print_result({"results": [RESULT]}, pytest.fail)
    (printed,) = json.loads(capsys.readouterr().out)["results"]
    assert printed["scores"] == {"matthews_correlation": -0.1, "accuracy": 0.65, "f1": None}
    assert printed["intervals"]["accuracy"] == [0.55, 0.74]
    assert printed["interval_methods"]["accuracy"] == "Wilson"


def by_language(reference, is_recorded):
    scores = {"en": (0.8, (0.7, 0.9), 10), "de": (0.6, (0.5, 0.7), 0), "sw": (0.5, (0.4, 0.6), 0)}
    results = {
        language: [
            replace(
                RESULT,
                scores={"accuracy": score},
                intervals={"accuracy": ends},
                training_rows=seen,
                warnings=["Odd."][seen:],
            )
        ]
        for language, (score, ends, seen) in scores.items()
    }
    tables = tabulate_languages(results, "accuracy", reference)
    return LanguageScores("xnli", "runs/xnli", reference, is_recorded, results, tables)


def test_languages_stand_beside_each_other_with_their_gaps_and_means(capsys):
    print_languages(by_language("en", True))
    head, metric, *lines = capsys.readouterr().out.splitlines()
    assert (head, metric) == ("xnli, validation: 3 languages, runs/xnli", "  accuracy")
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "language rows score 95% CI gap to en 95% CI of gap baseline",
        "en 1,043 0.8000 0.7000 to 0.9000 0.6700",
        "de 1,043 0.6000 0.5000 to 0.7000 -0.2000 -0.3414 to -0.0586 0.6700",
        "sw 1,043 0.5000 0.4000 to 0.6000 -0.3000 -0.4414 to -0.1586 0.6700",
        "mean 0.6333 0.5756 to 0.6911",
        "mean without en 0.5500 0.4793 to 0.6207",
    ]
    assert lines[6].endswith("they are too wide. Settings and checkpoint were chosen on en.")
    assert lines[7:] == ["  en: 10 of 1,043 rows are training rows", "  de: Odd.", "  sw: Odd."]


def test_the_best_checkpoint_of_a_language_stands_beside_its_score(capsys):
    scored = by_language("en", True)
    by_step = {step: {language: {"validation": score} for language in scored.results} for step, score in ((5, 0.75),)}
    scored = replace(scored, tables=[with_oracle(scored.tables[0], by_step)], checkpoints=[5])
    print_languages(scored)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert printed[2].endswith("95% CI of gap best checkpoint its step baseline")
    assert printed[4] == "de 1,043 0.6000 0.5000 to 0.7000 -0.2000 -0.3414 to -0.0586 0.7500 5 0.6700"
    assert "best checkpoint: of 1, chosen on the rows of its own score, so an upper bound" in printed


def test_a_table_of_languages_says_which_language_it_cannot_know(capsys):
    print_languages(by_language("fr", True))
    assert "  no gaps: fr, the language of training, is not among --languages" in capsys.readouterr().out
    print_languages(by_language("en", False))
    assert "The run does not say its language, so gaps are to the first one, en." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--languages", "en,,de"], "--languages 'en,,de' has an empty name - name them with commas, e.g. en,de,fr"),
        (
            ["--languages", "en", "--set", "data.language=de"],
            "--set data.language with --languages - leave one of them out",
        ),
        (["--oracle"], "--oracle without --languages - name them: --languages en,de,fr"),
        (["--languages", "en", "--data", "demo"], "no {language} in demo, so there is nothing to put 'en' into"),
    ],
)
def test_languages_that_go_nowhere_are_refused(run, options, message):
    ended = run("eval", "xnli", "--model", "runs/xnli", *options)
    assert ended.code == 2 and ended.last.startswith(f"error: {message}")


def test_a_checkpoint_must_be_named(run):
    ended = run("eval", "cola")
    expected = "error: cola is a recipe, which has no checkpoint - add --model RUN, or name a run instead"
    assert (ended.code, ended.last) == (2, expected)


def test_a_benchmark_has_its_main_score(capsys):
    scores = {"cosine_spearman": 0.81234, "cosine_pearson": 0.8}
    result = BenchmarkScores("mteb:STS17", "minilm", "test", "en-en", "cosine_spearman", 0.81234, scores)
    print_benchmark([result, replace(result, subset="default")])
    assert capsys.readouterr().out.splitlines() == [
        "mteb:STS17, test (en-en): minilm",
        "  cosine_spearman   0.8123",
        "mteb:STS17, test: minilm",
        "  cosine_spearman   0.8123",
    ]


def test_a_benchmark_needs_an_encoder(run):
    ended = run("eval", "--benchmark", "mteb:STS12")
    assert (ended.code, ended.last) == (2, "error: --benchmark without --model - name the encoder: --model MODEL")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cola", "--benchmark", "mteb:STS12"], "a RUN with --benchmark - leave it out"),
        (["--benchmark", "mteb:STS12", "--split", "test"], "--split with --benchmark - leave it out"),
        (["--benchmark", "mteb:STS12", "--training-rows", "keep"], "--training-rows with --benchmark"),
        ([], "no run - name one, e.g. `bertkit eval runs/cola"),
    ],
)
def test_a_recipe_or_a_benchmark_is_scored(run, arguments, message):
    ended = run("eval", *arguments, "--model", "demo")
    assert ended.code == 2 and message in ended.last
