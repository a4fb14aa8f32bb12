"""Ablations: ordinary runs, which a repeated command keeps or resumes; a variant that fails loses no other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.errors import DataError, DivergedError, RecipeError, UsageError
from bertkit.metrics.paired import Difference
from bertkit.recipe.space import parse_sweep_space
from bertkit.storage import runs
from bertkit.storage.run_sets import SEEDS, write_summary
from bertkit.workflows import ablate as workflow
from bertkit.workflows.ablate import ablate, check_ablation, find_unlearned, name_variants
from bertkit.workflows.compare import Comparison
from tests.kills import TRAINING_STEP, check_equal
from tests.workflows.test_pretrain import DEMO

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {
    "data.source": "demo",
    "data.limit": 300,
    "data.validation_fraction": 0.1,
    "tokenizer": str(DEMO),
    "model_options": SHAPE,
    "training.steps": 4,
    "training.batch_size": 8,
    "training.max_length": 32,
    "training.precision": "fp32",
}
TASK = ("cola", {"data.source": "demo", "data.limit": 40, "training.epochs": 1, "training.precision": "fp32"})
OBJECTIVES = "objective=mlm,clm"


def search(*space):
    return parse_sweep_space("grid", space, None)


@pytest.fixture
def pretrained(monkeypatch):
    """Do not train; return the variants that would have been pretrained and fine-tuned."""
    called = []

    def pretrain_corpus(inputs, **_):
        called.append(inputs.plan.folder.name)
        if inputs.objective.__name__.endswith("clm"):
            raise DivergedError("the loss is nan", "lower it")

    def finetune_seeds(recipe, seeds, *, output):
        called.append((recipe.name, recipe.model, list(seeds), output))
        return None, None

    monkeypatch.setattr(workflow, "pretrain_corpus", pretrain_corpus)
    monkeypatch.setattr(workflow, "finetune_seeds", finetune_seeds)
    return called


def test_a_variant_that_diverges_loses_no_other(pretrained, tmp_path):
    folder = tmp_path / "ablation"
    summary, error = ablate(check_ablation("mlm", search("objective=clm,mlm"), [TASK], TEXT, folder), (1, 2))
    assert pretrained == ["clm", "mlm", ("cola", str(folder / "pretrained/mlm"), [1, 2], folder / "cola/mlm")]
    assert "clm: the loss is nan" in str(error) and isinstance(error, DivergedError)
    assert [(variant["name"], bool(variant["failure"])) for variant in summary["variants"]] == [
        ("clm", True),
        ("mlm", False),
    ]
    assert json.loads((folder / "ablation.json").read_text())["tasks"] == summary["tasks"] == []


def test_mistakes_are_found_before_anything_is_trained(pretrained, tmp_path):
    folder = tmp_path / "ablation"

    def refused(error, match, space=(OBJECTIVES,), tasks=(TASK,), **changes):
        with pytest.raises(error, match=match):
            ablate(check_ablation("mlm", search(*space), tasks, {**TEXT, **changes}, folder), (1,))

    refused(UsageError, "--finetune is missing", tasks=())
    refused(UsageError, "training.steps is both set and varied", space=["training.steps=1,2"])
    refused(RecipeError, "--space: ", space=["training.stepz=1,2"])
    refused(RecipeError, "no objective is called 'ltr'", space=["objective=mlm,ltr"])
    refused(RecipeError, "unknown key 'options.mask_rate'", space=[OBJECTIVES, "options.mask_rate=0.1,0.2"])
    refused(UsageError, "two recipes are called cola", tasks=[TASK, TASK])
    refused(UsageError, "--finetune sets `model`", tasks=[("cola", {"model": "demo"})])
    missing = [("cola", {"data.source": str(tmp_path / "none.csv")})]
    refused(DataError, "none.csv", tasks=missing)
    one = tmp_path / "one.txt"
    one.write_text("The dog barks. The cat sleeps.\n\nA bird sings.\n\nBen left Oslo.\n")
    refused(DataError, "no document has two sentences", space=["objective=mlm,nsp"], **{"data.source": str(one)})
    assert pretrained == []
    (folder / "notes.txt").touch()
    refused(UsageError, "is not an ablation")


def test_only_a_finished_pretraining_has_facts(tmp_path):
    job = check_ablation("mlm", search(OBJECTIVES), [TASK], TEXT, tmp_path / "ablation")
    facts = {"scores": {"loss": 2.0}, "parameters": 10, "steps": 5, "tokens": 100, "seconds": 1.5}
    for variant, record in {"mlm": {"status": "finished", "result": {**facts, "recipe": "mlm"}}, "clm": {}}.items():
        job.encoder_folder(variant).mkdir(parents=True)
        runs.write_record(job.encoder_folder(variant), {"status": "running", **record})
    job.failures["clm"] = DivergedError("the loss is nan", "lower it")
    finished, failed = (workflow._describe_variant(job, variant) for variant in ("mlm", "clm"))
    assert finished == {"name": "mlm", "settings": {"objective": "mlm"}, **facts, "failure": ""}
    assert (failed["steps"], failed["failure"]) == (0, "the loss is nan - lower it")


def test_seeds_that_failed_are_notes(tmp_path, monkeypatch):
    job = check_ablation("mlm", search(OBJECTIVES), [TASK], TEXT, tmp_path / "ablation")
    alike = "It gives every row the same answer."
    for variant in ("mlm", "clm"):
        for seed in (1, 2):
            folder = job.folder / "cola" / variant / f"seed-{seed}"
            folder.mkdir(parents=True)
            runs.write_record(folder, {"status": "finished", "results": [{"baselines": {"null": {"f1": 0.1}}}]})
        entries = [{"seed": 1, "failure": None}, {"seed": 2, "failure": alike if variant == "clm" else None}]
        write_summary(job.folder / "cola" / variant / SEEDS, {"runs": entries})
    difference = Difference(0.8, 0.7, -0.1, (-0.2, -0.01), 0.03, "mixed")
    systems = [
        SimpleNamespace(name=name, scores={"f1": mean}, seed_scores={"f1": [mean, mean]})
        for name, mean in (("a", 0.8), ("b", 0.7))
    ]
    compared = Comparison(
        "cola", "", "validation", 9, 9, "f1", systems, {"b": {"f1": difference}}, {}, [], ["a note"], {}
    )
    pages = []
    monkeypatch.setattr(workflow, "compare", lambda paths: compared)
    monkeypatch.setattr(workflow, "write_page", lambda file, comparison: pages.append(comparison.notes))
    task = workflow._compare_variants(job, "cola", (1, 2))
    notes = [f"failed: clm, seed 2. {alike}", "a note", "The null model, which reads nothing, has f1 0.1000."]
    assert task["notes"] == notes and pages == [notes]
    assert [score["failures"] for score in task["scores"]] == [{}, {2: alike}]
    assert [score["difference"] for score in task["scores"]] == [None, asdict(difference)]


def test_variants_are_named_by_their_values_and_no_two_alike():
    points = [{"objective": name, "options.mask_rate": rate} for name in ("mlm", "nsp") for rate in (0.15, 0.5)]
    assert list(name_variants(points)) == [
        f"{name}-mask_rate={rate}" for name in ("mlm", "nsp") for rate in (0.15, 0.5)
    ]
    assert list(name_variants([{"tokenizer": "a/tok"}, {"tokenizer": "b/tok"}])) == ["tok-1", "tok-2"]
    assert list(name_variants([{"options.last_mask_rate": None}, {"options.last_mask_rate": 0.1}])) == [
        "last_mask_rate=null",
        "last_mask_rate=0.1",
    ]
    assert list(name_variants([{"data.column": ".."}, {"data.column": "a b?"}])) == ["..-1", "a_b_"]


@pytest.mark.parametrize(
    ("metric", "means", "is_unlearned"),
    [
        ("accuracy", [0.4, 0.5], True),
        ("accuracy", [0.4, 0.6], False),
        ("mean_absolute_error", [0.5, 0.7], True),
        ("mean_absolute_error", [0.4, 0.7], False),
    ],
)
def test_scores_that_beat_no_baseline_are_said_to_be_unlearned(metric, means, is_unlearned):
    notes = find_unlearned("cola", means, {"nothing": {metric: 0.5}, "words": {metric: 0.5}}, metric)
    assert len(notes) == is_unlearned
    assert all("No encoder has learned cola" in note and "'cola training.epochs=10'" in note for note in notes)


@pytest.mark.slow
def test_an_ablation_whose_encoders_learned_nothing_says_so(tmp_path):
    summary, error = ablate(check_ablation("mlm", search(OBJECTIVES), [TASK], TEXT, tmp_path / "ablation"), (1,))
    assert error is None
    assert [score["mean"] for score in summary["tasks"][0]["scores"]] == [0.0, 0.0]
    page = (tmp_path / "ablation/cola.html").read_text()
    for note in (
        "No encoder has learned cola: no mean score beats a baseline",
        "The null model, which reads nothing, has ",
    ):
        assert any(line.startswith(note) for line in summary["tasks"][0]["notes"]) and note in page


@pytest.mark.slow
def test_a_killed_ablation_goes_on_to_the_same_bits(zygote, run, tmp_path):
    settings = [f"{key}={json.dumps(value)}" for key, value in TEXT.items() if key != "model_options"]
    settings.append(f"model_options={json.dumps(SHAPE)}")
    command = ["ablate", "mlm", "--space", OBJECTIVES, "--seeds", "2"]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--finetune", "cola data.source=demo data.limit=40 training.epochs=1 training.precision=fp32"]
    command += ["--output", "killed"]  # the name of the folder is in the recipes
    assert run(*command).code == 0
    Path("killed").rename("whole")
    for step in (6, 11):  # in the second pretraining, and in a fine-tuning
        fault = {"function": TRAINING_STEP, "call": step}
        assert zygote.run(Path.cwd(), command, fault)[0] == -9
    ended = run(*command, "--json")
    assert ended.code == 0, ended.err
    names = sorted(str(file.parent.relative_to("whole")) for file in Path("whole").rglob(runs.RECORD))
    assert len(names) == 2 + 2 * 2
    for name in names:
        check_equal(Path("killed", name), Path("whole", name))
    printed, whole = json.loads(ended.out), json.loads(Path("whole/ablation.json").read_text())
    assert printed["tasks"] == whole["tasks"]
    (task,) = printed["tasks"]
    assert [score["variant"] for score in task["scores"]] == ["mlm", "clm"]
    for score in task["scores"]:
        of_seeds = json.loads(Path("whole", "cola", score["variant"], "seeds.json").read_text())
        assert task["baseline"] == of_seeds["splits"][0]["baseline"]["matthews_correlation"]
        failures = {str(run["seed"]): run["failure"] for run in of_seeds["runs"] if run["failure"]}
        assert score["failures"] == failures and failures  # so few steps teach nothing
    other = run(*command, "--seed", 9)
    assert (other.code, "--output killed-2 for a new ablation" in other.last) == (2, True)
