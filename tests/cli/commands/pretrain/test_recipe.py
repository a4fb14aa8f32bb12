"""What `bertkit pretrain RECIPE` prints and refuses; its trainings are in tests/workflows."""

from __future__ import annotations

from dataclasses import replace

from bertkit.cli.commands.pretrain.recipe import print_estimate, print_pretrained
from bertkit.workflows.pretrain.estimate import Estimate
from bertkit.workflows.pretrain.publish import Pretrained

MODEL = {
    "role": "teacher",
    "parameters": 690_529,
    "disk_bytes": 2_800_000,
    "row_seconds": 0.0025,
    "rows_per_second": 378.9,
}
PRETRAINED = Pretrained(
    recipe="mlm",
    model="tiny",
    objective="mlm",
    scores={"loss": 5.7959, "perplexity": 328.945},
    baselines={"token frequencies": {"perplexity": 129.682}},
    parameters=530_960,
    steps=4,
    tokens=129_401,
    seconds=200.0,
    corpus={"validation": {"documents": 16}},
    folder="runs/mlm",
    compared_models=[MODEL],
    warnings=["Look at the text."],
)
ESTIMATE = Estimate(
    "mlm", 530_960, 307, 4, 129_401, 3.0, 43_499.0, 1916.0, 0.1, {"train": {"documents": 16}}, "runs/mlm", 12_000_000
)


def test_a_result_has_scores_beside_the_baseline_and_what_to_do_next(capsys):
    print_pretrained(PRETRAINED)
    assert capsys.readouterr().out.splitlines() == [
        "mlm: tiny, 530,960 parameters, 4 steps, 129,401 tokens in 3 min 20 s",
        "  held-out documents           16",
        "  loss                     5.7959",
        "  perplexity              328.945  baseline 129.682 (token frequencies)",
        "  teacher and student on this machine",
        "    model    parameters   MB  ms/block  blocks/s",
        "    teacher     690,529  2.8      2.50       379",
        "  Look at the text.",
        "",
        "Next:",
        "  open runs/mlm/report.html",
        "  bertkit push runs/mlm YOUR_NAME/mlm",
    ]


def test_only_a_model_that_has_learned_something_is_to_be_fine_tuned(capsys):
    for perplexity, is_advised in ((129.7, False), (129.6, True)):
        print_pretrained(replace(PRETRAINED, scores={"perplexity": perplexity}))
        assert ("  bertkit finetune cola --model runs/mlm\n" in capsys.readouterr().out) == is_advised


def test_the_chance_level_of_pairs_stands_beside_their_accuracy(capsys):
    chance = {"more frequent label": {"pair_accuracy": 0.513}, "segment lengths": {"pair_accuracy": 0.505}}
    result = replace(PRETRAINED, scores={"pair_accuracy": 0.74}, baselines={**PRETRAINED.baselines, **chance})
    print_pretrained(result)
    assert capsys.readouterr().out.splitlines()[2:7] == [
        "  pair_accuracy            0.7400  baseline  0.5130 (more frequent label)",
        "  baselines",
        "    baseline             perplexity  pair_accuracy",
        "    token frequencies       129.682",
        "    more frequent label                     0.5130",
    ]


def test_an_estimate_counts_steps_or_the_tokens_of_a_budget(capsys):
    print_estimate(ESTIMATE)
    out = capsys.readouterr().out
    assert "steps    4: 129,401 tokens in 3.0 s\n" in out
    assert "memory   1,916 MB at peak\n" in out
    assert max(map(len, out.splitlines())) <= 80
    print_estimate(replace(ESTIMATE, steps=None, memory_mb=None))
    out = capsys.readouterr().out
    assert "budget   3.0 s: 129,401 tokens\n" in out
    assert "memory" not in out


def test_a_word_that_names_no_command_is_a_recipe(run):
    for arguments in (["pretrain", "mlmm"], ["pretrain", "recipe", "mlmm"]):
        ended = run(*arguments)
        assert (ended.code, ended.last) == (2, "error: no recipe is called 'mlmm' - did you mean mlm?")
