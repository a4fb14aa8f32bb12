"""Model cards: front matter that the hub reads, and text that no data can break."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from bertkit.recipe import load_recipe
from bertkit.reports.card import CardData, model_card, name_models
from bertkit.reports.html import ReportData
from bertkit.reports.templates import name_model
from bertkit.workflows.export import find_license
from tests.reports.test_html import COMPARED

FACTS = ReportData(
    name="cola",
    about="Is this English sentence grammatical?",
    command="bertkit finetune cola",
    model="google-bert/bert-base-uncased",
    split="validation",
    rows=1043,
    best_metric="matthews_correlation",
    scores={"matthews_correlation": 0.58, "accuracy": 0.83},
    intervals={"matthews_correlation": (0.52, 0.63), "accuracy": (0.8, 0.85), "r2": None},
    interval_methods={"matthews_correlation": "bootstrap", "accuracy": "Wilson"},
    no_interval={"r2": "one row cannot be resampled"},
    baselines={"most frequent label": {"matthews_correlation": 0.0, "accuracy": 0.69}},
    labels=["unacceptable", "acceptable"],
    seed=42,
    seconds=204.0,
    device="NVIDIA H200",
    best_step=934,
    provenance={"torch": "2.9.0"},
)
CARD = CardData(
    pipeline_tag="text-classification",
    auto_class="AutoModelForSequenceClassification",
    dataset="GLUE CoLA",
    dataset_id="nyu-mll/glue",
    dataset_config="cola",
    rows={"train": 8551, "validation": 1043},
    fingerprint="sha256:3f5a",
    hyperparameters={"learning_rate": 2e-5, "epochs": 3.0},
    base_model="google-bert/bert-base-uncased",
    predict_command="bertkit predict . --text 'A sentence.'",
)


@pytest.mark.parametrize(
    ("task", "named", "tag"),
    [
        ("sentence-similarity", "SentenceTransformer", "sentence-similarity"),
        ("masked-l-m", "SparseEncoder", "feature-extraction"),
        ("late-interaction", "MultiVectorEncoder", "feature-extraction"),
    ],
)
def test_a_model_of_vectors_names_what_loads_it(task, named, tag):
    text = model_card(FACTS, replace(CARD, pipeline_tag=task, auto_class=""))
    data = ModelCard(text).data
    assert (data.library_name, data.pipeline_tag) == ("sentence-transformers", tag)
    assert f"from sentence_transformers import {named}\n" in text and f"= {named}(" in text


def test_front_matter_is_what_the_hub_reads() -> None:
    data = ModelCard(model_card(FACTS, CARD)).data
    assert (data.base_model, data.library_name) == ("google-bert/bert-base-uncased", "transformers")
    assert (data.pipeline_tag, data.datasets) == ("text-classification", "nyu-mll/glue")
    assert {"bertkit", "generated_from_trainer"} <= set(data.tags)
    assert data.model_name == "cola"
    results = {result.metric_type: result for result in data.eval_results}
    assert results["matthews_correlation"].metric_value == 0.58
    assert results["accuracy"].dataset_split == "validation"
    assert results["accuracy"].dataset_config == "cola"
    assert results["accuracy"].task_type == "text-classification"


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_huggingface_hub_accepts_the_card(loopback) -> None:
    card = ModelCard(model_card(FACTS, CARD))
    card.validate(repo_type="model")
    assert [request.path for request in loopback.requests] == ["/api/validate-yaml"]
    index = eval_results_to_model_index(card.data.model_name, card.data.eval_results)
    assert index == yaml.safe_load(card.data.to_yaml())["model-index"]
    assert model_index_to_eval_results(index) == (card.data.model_name, card.data.eval_results)


@pytest.mark.parametrize(
    ("tag", "columns", "widget"),
    [
        ("text-classification", ["text"], {"text": "The cat sat on the mat."}),
        ("text-classification", ["text", "text_pair"], None),  # The widget has one text.
        ("token-classification", ["tokens"], {"text": "Ada Lovelace lived in London."}),
        ("token-classification", ["tokens", "target"], None),
        (
            "question-answering",
            ["question", "context"],
            {"text": "Who lived there?", "context": "Ada lived in London."},
        ),
        ("sentence-similarity", ["text", "text_pair"], {"source_sentence", "sentences"}),
        ("multiple-choice", ["context", "choices"], None),
    ],
)
def test_the_widget_has_an_example_that_the_model_can_read(tag, columns, widget) -> None:
    examples = ModelCard(model_card(FACTS, replace(CARD, pipeline_tag=tag, columns=columns))).data.get("widget")
    assert [set(example) for example in examples or []] == ([set(widget)] if widget else [])
    assert not isinstance(widget, dict) or examples == [widget]


def test_license_and_language_are_asked_for_where_they_are_not_known(tmp_path) -> None:
    text = model_card(FACTS, CARD)
    filled = re.sub(r"^# (?=license|language)", "", text, flags=re.MULTILINE)
    data = ModelCard(filled).data
    assert (data.license, data.language, data.base_model) == ("apache-2.0", "en", "google-bert/bert-base-uncased")
    (tmp_path / "README.md").write_text(filled)
    assert find_license(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text(text)
    assert find_license(tmp_path) is None
    assert "To fill in" not in model_card(FACTS, replace(CARD, license="mit", language="de"))


def test_models_in_local_folders_are_called_by_name(tmp_path) -> None:
    folder, cached = tmp_path / "tiny", tmp_path / "models--org--small" / "snapshots" / "a1b2"
    for path in (folder, cached):
        path.mkdir(parents=True)
    assert [name_model(str(path)) for path in (folder, cached, "org/other")] == ["tiny", "org/small", "org/other"]
    recipe = load_recipe("cola", {"model": str(folder)})
    text = model_card(name_models(replace(FACTS, model=str(folder), teachers=[str(cached)]), recipe), CARD)
    assert "This is tiny (from google-bert/bert-base-uncased), fine-tuned on GLUE CoLA with bertkit" in text
    assert ", and distilled from org/small." in text
    assert str(tmp_path) not in text


def test_unknown_facts_are_absent() -> None:
    card = CardData("text-classification", "AutoModel", "mine", {"train": 3}, "bertkit predict .")
    text = model_card(ReportData("mine", "c", "./m", "test", 2, "f1", {"f1": 0.5}), card)
    data = ModelCard(text).data.to_dict()
    assert not {"language", "license", "base_model", "datasets"} & set(data)
    for word in ("None", "## Labels", "## Training", "Fingerprint", "95%", "with seed"):
        assert word not in text


def test_a_distillation_shows_teachers_student_and_baseline() -> None:
    text = model_card(replace(FACTS, compared_models=COMPARED), CARD)
    for line in (
        "## Teacher and student",
        "| model | parameters | accuracy | 95% interval |",
        "|---|---:|---:|---:|",
        "| teacher &lt;b> | 1,024 | 0.9000 | 0.8000 – 1.0000 |",
        "| student s | 512 | 0.7000 | 0.6000 – 0.8000 |",
        "| baseline |  | 0.5000 |  |",
    ):
        assert line in text.splitlines()
    assert "Teacher and student" not in model_card(FACTS, CARD)


def test_body_is_filled_in() -> None:
    text = model_card(FACTS, CARD)
    for line in (
        "# cola",
        "0. unacceptable",
        "| Rows of train | 8,551 |",
        "| Fingerprint | sha256:3f5a |",
        "| learning_rate | 2e-05 |",
        "| Metric | validation | 95% interval | Baseline |",
        "|---|---:|---:|---:|",
        "| matthews_correlation | 0.5800 | 0.5200 – 0.6300 | 0.0000 |",
        "95% intervals over the evaluated rows: bootstrap for matthews_correlation; Wilson for accuracy; none for r2 "
        "(one row cannot be resampled).",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        "bertkit predict . --text 'A sentence.'",
        "bertkit finetune cola",
        "| torch | 2.9.0 |",
    ):
        assert line in text.splitlines()
    assert "**0.5800** (95% interval 0.5200 – 0.6300)" in text
    assert "with seed 42. Another seed" in text
    assert "\n\n\n" not in text
    assert not text.endswith("\n\n")


def test_snippet_is_python() -> None:
    text = model_card(FACTS, replace(CARD, checkpoint='my "model"'))
    snippet = text.split("```python\n")[1].split("```")[0]
    compile(snippet, "snippet", "exec")


def run_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run the Python of a card as its reader does, in the folder of the card, and return what it prints."""
    text = (folder / "README.md").read_text()
    names: dict[str, object] = {}
    capsys.readouterr()
    with contextlib.chdir(folder):
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
            exec(block, names)
    return capsys.readouterr().out.splitlines()


@pytest.mark.filterwarnings("ignore:Sparse CSR")  # of torch, about the similarity of sparse vectors
@pytest.mark.parametrize(
    ("recipe", "tag", "says"),
    [
        ("sst2", "text-classification", r"\[\[?{'label': '(positive|negative)', 'score': 0\.\d+}, {"),
        pytest.param(
            "mrpc",
            "text-classification",
            r"\[\[?{'label': '(not_)?equivalent', 'score': 0\.\d+}, {",
            marks=pytest.mark.slow,
        ),
        pytest.param("ner", "token-classification", r"\[\('Ada', '[OBI].*\), .*\('\.', '", marks=pytest.mark.slow),
        pytest.param("pos", "token-classification", r"\[\('Ada', '[A-Z]+'\), .*\('\.', '", marks=pytest.mark.slow),
        pytest.param("squad", "question-answering", r".*", marks=pytest.mark.slow),
        pytest.param("swag", "multiple-choice", r"(One|Another) ending\.", marks=pytest.mark.slow),
        pytest.param("wsd", "token-classification", None, marks=pytest.mark.slow),
        pytest.param("ner-features", "token-classification", None, marks=pytest.mark.slow),
        pytest.param("rerank", "text-ranking", r"\[{'corpus_id': [01], 'score': ", marks=pytest.mark.slow),
        pytest.param("similarity", "sentence-similarity", r"tensor\(", marks=pytest.mark.slow),
        pytest.param("sparse", "feature-extraction", r"tensor\(", marks=pytest.mark.slow),
        pytest.param("late-interaction", "feature-extraction", r"tensor\(", marks=pytest.mark.slow),
        pytest.param("decide", "decision", r"{.urgent.: {.type.: .noul., .noul.: 0\.", marks=pytest.mark.slow),
    ],
)
def test_the_python_of_a_card_runs(run, capsys, recipe, tag, says) -> None:
    few = ["--limit", 16, "--set", "training.steps=1", "--set", "training.batch_size=16"]
    ended = run("finetune", recipe, "--model", "demo", "--data", "demo", *few)
    assert ended.code == 0, ended.err
    data = ModelCard.load(Path("runs") / recipe / "README.md").data
    assert (data.pipeline_tag, data.eval_results[0].task_type) == (tag, tag)
    printed = run_card(Path("runs") / recipe, capsys)
    assert (len(printed) > 0) == (says is not None)
    assert says is None or re.match(says, printed[0]), printed


@pytest.mark.slow
def test_a_pipeline_of_a_card_tags_whole_words(run, capsys) -> None:
    ended = run("finetune", "ner", "--model", "demo", "--data", "demo", "--limit", 400, "--epochs", 1)
    assert ended.code == 0, ended.err
    text = Path("runs/ner/README.md").read_text()
    assert 'aggregation_strategy="first"' in text
    _, entities = run_card(Path("runs/ner"), capsys)
    sentence = "Ada Lovelace lived in London."
    for entity in ast.literal_eval(re.sub(r"np\.float32\(([^)]*)\)", r"\1", entities)):
        start, end = entity["start"], entity["end"]
        assert not sentence[max(start - 1, 0) : start].isalpha() and not sentence[end : end + 1].isalpha()


def test_a_regression_is_read_without_a_sigmoid(run, capsys) -> None:
    few = ["--limit", 16, "--set", "training.steps=1", "--set", "training.batch_size=16"]
    assert run("finetune", "stsb", "--model", "demo", "--data", "demo", *few).code == 0
    config = json.loads(Path("runs/stsb/config.json").read_text())
    assert config["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}
    (printed,) = run_card(Path("runs/stsb"), capsys)
    row = ["--row", "text=A text.", "--row", "text_pair=Another text."]
    ended = run("predict", "runs/stsb/recipe.yaml", "--model", "runs/stsb", *row, "--set", "training.precision=fp32")
    shown = ast.literal_eval(printed)
    score = (shown[0] if isinstance(shown, list) else shown)["score"]
    assert score == pytest.approx(json.loads(ended.out.splitlines()[0])["prediction"], abs=1e-5)


def test_one_baseline_is_named_and_several_are_listed() -> None:
    assert "The baseline is the most frequent label.\n" in model_card(FACTS, CARD)
    both = {**FACTS.baselines, "text alone": {"accuracy": 0.71, "matthews_correlation": None}}
    page = model_card(replace(FACTS, baselines=both), CARD)
    assert "| accuracy | 0.8300 | 0.8000 – 0.8500 | 0.7100 |" in page
    assert "| Baseline | matthews_correlation | accuracy |\n|---|---:|---:|\n" in page
    assert "| text alone | n/a | 0.7100 |\n" in page


@pytest.mark.parametrize(("lead", "says"), [({"is_clear": False}, True), ({"is_clear": True}, False), (None, False)])
def test_a_model_that_is_not_above_its_baseline_beyond_chance_is_a_limitation(lead: dict | None, says: bool) -> None:
    facts = replace(FACTS, lead=lead and {**lead, "baseline": "most frequent label"})
    assert ("than its strongest baseline, most frequent label." in model_card(facts, CARD)) is says


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_stay_out_of_the_front_matter(value: float) -> None:
    facts = replace(FACTS, scores={"matthews_correlation": value, "accuracy": np.float64(0.8)})
    text = model_card(facts, CARD)
    assert [result.metric_type for result in ModelCard(text).data.eval_results] == ["accuracy"]
    assert "**n/a**" in text
    alone = model_card(replace(facts, scores={"matthews_correlation": value}), CARD)
    assert not ModelCard(alone).data.eval_results


def test_text_breaks_neither_table_nor_front_matter() -> None:
    nasty = "a|b: <b>x</b>\n---\n# `no` *bold* [link](y) 日本"
    facts = replace(
        FACTS, name=nasty, about=nasty, labels=[nasty], warnings=[nasty], other_splits={nasty: {nasty: 0.5}}
    )
    text = model_card(facts, replace(CARD, dataset=nasty, hyperparameters={nasty: nasty}, language="de"))
    card = ModelCard(text)
    assert card.data.model_name == nasty and card.data.language == "de"
    body = card.text
    assert "<b>" not in body
    rows = [line for line in body.splitlines() if line.startswith("| matthews")]
    header = next(line for line in body.splitlines() if line.startswith("| Metric"))
    assert [line.replace("\\|", "").count("|") for line in (header, *rows)] == [6, 6]
