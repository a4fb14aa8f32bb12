"""The page for users of Hugging Face: each habit of its table, and parts of bertkit in scripts with their tools."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
import yaml
from seqeval.metrics import f1_score

import bertkit
from bertkit.recipe import TrainingConfig, load_recipe, recipe_names
from bertkit.recipe.validation import read_names
from bertkit.tasks import TaskContext, encode_columns, find_intervals, load_task, read_row
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.kills import slow_unless

PAGE = (Path(__file__).parents[1] / "docs" / "hugging-face.md").read_text(encoding="utf-8")
HABITS = re.findall(r"^\| (.+?) \| .+ \|$", PAGE.partition("\n|---")[2].partition("\n## ")[0], re.MULTILINE)


class Case:
    """What a habit is tried with: a command line, a model, a run and rows."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        names = ("run", "tiny_model", "toy_data", "trained")
        self.run, self.model, self.data, self.trained = map(request.getfixturevalue, names)
        self.fixture = request.getfixturevalue

    def plan(self, *typed: object, recipe: str = "classify", data: object = None) -> dict[str, Any]:
        """Return the plan of a training that is accepted, with its recipe."""
        rows = () if data == "" else ("--data", data or self.data)
        ended = self.run("finetune", recipe, "--model", self.model, *rows, *typed, "--dry-run", "--json")
        assert ended.code == 0, ended.err
        plan = json.loads(ended.out)
        return {**plan, "recipe": yaml.safe_load(plan["resolved"])}

    def training(self, *typed: object) -> TrainingConfig:
        return TrainingConfig(**self.plan(*typed)["recipe"]["training"])

    def rejects(self, *typed: object, code: int = 2, remedy: str) -> None:
        ended = self.run("finetune", "classify", "--model", self.model, "--data", self.data, *typed)
        assert (ended.code, ended.last.count(remedy)) == (code, 1), ended.err
        assert "Traceback" not in ended.err

    def rejects_key(self, text: str, remedy: str) -> None:
        Path("habit.yaml").write_text(f"about: a habit\nextends: classify\n{text}\n")
        ended = self.run("finetune", "habit.yaml")
        assert ended.code == 2 and ended.last.endswith(f" - {remedy}"), ended.err

    def save_plain(self, folder: str) -> str:
        """Save the fine-tuned model as `save_pretrained` does, without anything of bertkit."""
        transformers.AutoModelForSequenceClassification.from_pretrained(self.trained).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(self.trained).save_pretrained(folder)
        return folder


def try_scripts(case: Case) -> None:
    case.rejects("--task_name", "cola", remedy="bertkit finetune cola")
    for typed in ("--do_train", "--do_eval"):
        case.rejects(typed, remedy="leave it out: `finetune` trains and scores")


def try_same_options(case: Case) -> None:
    typed = f"--model_name_or_path {case.model} --train_file {case.data}/train.csv --num_train_epochs 3"
    ended = case.run("finetune", "classify", *typed.split(), "--output_dir", "runs/here", "--dry-run", "--json")
    plan = json.loads(ended.out)
    assert plan["folder"] == "runs/here"
    assert TrainingConfig(**yaml.safe_load(plan["resolved"])["training"]).epochs == 3


def try_accumulation(case: Case) -> None:
    written = ["--batch-size", "32", "--set", "training.gradient_accumulation=4"]
    typed = ("--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 4)
    case.rejects(*typed, remedy=" ".join(written))
    training = case.training(*written)
    assert (training.batch_size, training.gradient_accumulation) == (32, 4)


def try_precision(case: Case) -> None:
    for typed in ("--fp16", "--bf16"):
        case.rejects(typed, remedy="write --set training.precision=")
    assert load_recipe("classify").training.precision == "auto"


def try_row_limit(case: Case) -> None:
    case.rejects("--max_train_samples", 40, remedy="write --set data.train_limit=")
    assert case.plan("--set", "data.train_limit=40")["rows"]["train"] == 40


def try_evaluations(case: Case) -> None:
    case.rejects("--eval_strategy", "steps", remedy="write --set training.evaluate_every=")
    case.rejects("--eval_steps", 500, remedy="write --set training.evaluate_every=")
    assert case.training("--set", "training.evaluate_every=500").evaluate_every == 500


def try_best_model(case: Case) -> None:
    case.rejects("--load_best_model_at_end", remedy="the best checkpoint is always the result")
    case.rejects("--metric_for_best_model", "f1", remedy="write --set best_metric=")
    assert case.plan("--set", "best_metric=f1_macro")["recipe"]["best_metric"] == "f1_macro"


def try_checkpoints(case: Case) -> None:
    case.rejects("--save_total_limit", 2, remedy="training.keep_all_checkpoints=true keeps all")
    assert case.training("--set", "training.keep_all_checkpoints=true").keep_all_checkpoints


def try_overwriting(case: Case) -> None:
    command = ["finetune", "classify", "--model", case.model, "--data", case.data, "--dry-run"]
    ended = case.run(*command, "--overwrite_output_dir")
    assert ended.code == 0 and "--overwrite_output_dir is read as --restart" in ended.err


def try_trackers(case: Case) -> None:
    assert load_recipe("classify").training.report_to == []
    assert case.training("--report_to", "none").report_to == []
    ended = case.run("finetune", "classify", "--report-to", "no-tracker")
    assert ended.code == 2 and "'wandb'" in ended.last


def try_argument_names(case: Case) -> None:
    case.rejects_key("training: {num_train_epochs: 3}", "write training.epochs")
    case.rejects_key("training: {per_device_train_batch_size: 8}", "write training.batch_size")
    assert case.training("--set", "training.extra={adam_beta2: 0.98}").extra == {"adam_beta2": 0.98}


def try_custom_code(case: Case) -> None:
    case.rejects_key("compute_metrics: f1", "write metrics")
    case.rejects_key("training: {data_collator: mine.pad}", "write training.collator")


def try_adapters(case: Case) -> None:
    case.rejects_key("training: {lora: {r: 8}}", "write training.lora.rank")
    case.rejects_key("peft: {r: 8}", "write training.lora")
    lora = case.training("--set", "training.lora={rank: 8, alpha: 16}").lora
    assert (lora.rank, lora.alpha) == (8, 16)
    Path("adapter").mkdir()
    Path("adapter", "adapter_config.json").write_text("{}")
    case.rejects("--model", "adapter", code=4, remedy="`merge_and_unload()` of peft")


def try_remote_code(case: Case) -> None:
    folder = Path(shutil.copytree(case.model, "theirs"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    case.rejects("--model", "theirs", "--trust_remote_code", code=4, remedy="bertkit never does that")


def try_label_names(case: Case) -> None:
    case.rejects("--num_labels", 3, remedy="the rows determine the labels")
    case.rejects_key("id2label: {0: bad, 1: good}", read_remedy("id2label"))
    numbers = [{**row, "label": int(row["label"] == "good")} for row in toy_rows(40, seed=1)]
    ended = case.run(
        "eval", "classify", "--model", case.save_plain("theirs"), "--data", write_csv(Path("n.csv"), numbers)
    )
    assert ended.code == 0, ended.err
    plan = case.plan("--set", "labels=[bad, good]", data="n.csv")
    assert plan["recipe"]["labels"] == ["bad", "good"]


def read_remedy(name: str) -> str:
    return read_names("hints")[name]


def try_saved_dataset(case: Case) -> None:
    rows = {split: datasets.Dataset.from_list(toy_rows(96, seed)) for seed, split in enumerate(("train", "validation"))}
    datasets.DatasetDict(rows).save_to_disk("saved")
    assert case.plan(data="saved")["rows"]["train"] == 96


def try_addresses(case: Case) -> None:
    hub = case.fixture("loopback")
    hub.commit("datasets", "me/toy", {"train.csv": Path(case.data, "train.csv").read_bytes()})
    from huggingface_hub import HfFileSystem

    from bertkit.data.remote import find_source

    HfFileSystem.clear_instance_cache()  # An instance keeps the address of its Hub.
    assert find_source("hf://datasets/me/toy/train.csv").read_bytes() == Path(case.data, "train.csv").read_bytes()
    for address in ("hf://me/bert", "https://huggingface.co/me/bert", "https://huggingface.co/me/bert/tree/main"):
        case.rejects("--model", address, code=4, remedy=f"no such directory: {address} - write me/bert")


def try_variables(case: Case) -> None:
    hub = case.fixture("loopback")
    case.fixture("monkeypatch").setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    case.rejects("--model", "me/bert", code=5, remedy="hf download me/bert")
    assert hub.requests == []


def try_parallel_tokenizers(case: Case) -> None:
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    assert case.run("predict", case.trained, "--text", "a good film").code == 0
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


def try_auto_model(case: Case) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(case.trained)
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.trained)
    with torch.no_grad():
        probabilities = model(**tokenizer("a good film", return_tensors="pt")).logits.softmax(-1)[0]
    (record,) = bertkit.load(case.trained).predict("a good film")
    assert list(record["probabilities"].values()) == pytest.approx(probabilities.tolist(), abs=1e-5)


def try_pipeline(case: Case) -> None:
    texts = [row["text"] for row in toy_rows(20, seed=5)]
    answers = transformers.pipeline("text-classification", model=str(case.trained), device="cpu")(texts)
    for answer, record in zip(answers, bertkit.load(case.trained).predict(texts), strict=True):
        assert record["prediction"] == answer["label"]
        assert max(record["probabilities"].values()) == pytest.approx(answer["score"], abs=1e-5)


def try_sentence_transformer(case: Case) -> None:
    from sentence_transformers import SentenceTransformer

    from tests.analysis.test_explanations import fine_tune

    fine_tune("similarity", Path(), **{"data.limit": 24})
    texts = ["The dog sleeps.", "Anna left Oslo."]
    vectors = SentenceTransformer("run", device="cpu").encode(texts)
    np.testing.assert_allclose(bertkit.Embedder("run", precision="fp32").encode(texts), vectors, atol=1e-5)


def try_saved_model(case: Case) -> None:
    ended = case.run("eval", "classify", "--model", case.save_plain("x"), "--data", case.data, "--json")
    (ours,) = bertkit.evaluate(load_recipe("classify", {"model": str(case.trained), "data.source": str(case.data)}))
    assert json.loads(ended.out)["results"][0]["scores"] == ours.scores
    Path("trainer").mkdir()
    shutil.copytree("x", "trainer/checkpoint-500")
    ended = case.run("eval", "classify", "--model", "trainer", "--data", case.data)
    assert ended.code == 4 and ended.last.endswith("name its newest checkpoint: trainer/checkpoint-500")
    assert case.run("eval", "classify", "--model", "trainer/checkpoint-500", "--data", case.data).code == 0


def try_task_names(case: Case) -> None:
    for task, recipe in read_names("recipes").items():
        ended = case.run("finetune", task)
        assert (ended.code, ended.last) == (2, f"error: no recipe is called {task!r} - write {recipe}")
        assert recipe in {*recipe_names("finetune"), *recipe_names("pretrain")}


def try_launchers(case: Case) -> None:
    """Two processes, with the variables that `torchrun` and `accelerate launch` set."""
    command = ["finetune", "classify", "--model", case.model, "--data", case.data, "--epochs", 1, "--output", "two"]
    codes, _, err = case.fixture("zygote").launch(Path.cwd(), [*command, "--set", "training.precision=fp32"], 2)
    assert codes == [0, 0], err


def try_search(case: Case) -> None:
    command = ["sweep", "classify", "--space", "training.epochs=1,2", "--model", case.model, "--data", case.data]
    assert case.run(*command, "--dry-run").code == 0


def try_overrides(case: Case) -> None:
    Path("mine.yaml").write_text("about: mine\nextends: classify\n")
    command = ["finetune", "--config", "mine.yaml", "--model", case.model, "--data", case.data, "--dry-run", "--json"]
    for typed in (["training.epochs=1"], ["--training.epochs", "1"]):
        ended = case.run(*command, *typed)
        assert ended.code == 0, ended.err
        assert TrainingConfig(**yaml.safe_load(json.loads(ended.out)["resolved"])["training"]).epochs == 1


CHECKS = {
    "`run_glue.py --task_name cola --do_train --do_eval`": try_scripts,
    "`--model_name_or_path`, `--train_file`, `--num_train_epochs 3`, `--output_dir`": try_same_options,
    "`--per_device_train_batch_size 8 --gradient_accumulation_steps 4`": try_accumulation,
    "`--fp16`, `--bf16`": try_precision,
    "`--max_train_samples 1000`": try_row_limit,
    "`--eval_strategy steps --eval_steps 500`": try_evaluations,
    '`load_best_model_at_end`, `metric_for_best_model="f1"`': try_best_model,
    "`save_total_limit=2`": try_checkpoints,
    "`resume_from_checkpoint=True`": lambda case: case.rejects(
        "--resume_from_checkpoint", "True", remedy="leave it out: the same command resumes"
    ),
    "`overwrite_output_dir`": try_overwriting,
    '`report_to="wandb"`': try_trackers,
    "`push_to_hub=True`": lambda case: case.rejects("--push_to_hub", remedy="bertkit push RUN YOUR_NAME/NAME"),
    "names of `TrainingArguments` in a recipe": try_argument_names,
    "`EarlyStoppingCallback(3)`": lambda case: case.training("--set", "training.patience=3").patience == 3,
    "`compute_metrics`, `data_collator`, a custom loss": try_custom_code,
    '`evaluate.load("f1")`': lambda case: case.plan("--set", "metrics=[f1]", "--set", "best_metric=f1"),
    "`peft.LoraConfig(r=8, lora_alpha=16)`": try_adapters,
    "`trust_remote_code=True`": try_remote_code,
    "`num_labels=3`, `id2label`": try_label_names,
    '`load_dataset("csv", data_files="rows.csv")`': lambda case: case.plan(data=case.data / "train.csv"),
    '`dataset.save_to_disk("rows")`': try_saved_dataset,
    "`hf://datasets/me/toy/train.csv`": try_addresses,
    "`HF_HUB_OFFLINE`, `HF_HOME`, `HF_TOKEN`": try_variables,
    "`TOKENIZERS_PARALLELISM=false`": try_parallel_tokenizers,
    '`AutoModelForSequenceClassification.from_pretrained("runs/x")`': try_auto_model,
    '`pipeline("text-classification", model="runs/x")`': try_pipeline,
    '`SentenceTransformer("runs/x")`': try_sentence_transformer,
    '`model.save_pretrained("x")`, `checkpoint-500` of a Trainer': try_saved_model,
    '`pipeline("token-classification")`': try_task_names,
    "`accelerate launch train.py`, `torchrun train.py`": try_launchers,
    "`trainer.hyperparameter_search(...)`": try_search,
    "Hydra: `training.epochs=1`; spaCy: `--training.epochs 1`; trl: `--config FILE`": try_overrides,
    "`WeightedRandomSampler`, `pos_weight`": lambda case: case.training("--set", "training.class_weights=balanced"),
    "SetFit: `SetFitTrainer(...).train()`": lambda case: case.plan(recipe="few-shot"),
    "`optimum-cli export onnx`": lambda case: case.run("export", case.trained, "--output", "onnx").code == 0,
}
"""Habit, as the page names it -> what bertkit does with it. A check fails, or returns False."""

SLOW = {'`SentenceTransformer("runs/x")`', "`optimum-cli export onnx`"}


def test_the_table_has_a_check_for_each_row():
    assert list(CHECKS) == HABITS


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize("habit", slow_unless([habit for habit in CHECKS if habit not in SLOW], CHECKS))
def test_habits_from_other_tools(habit, request):
    assert CHECKS[habit](Case(request)) is not False


# --- Parts of bertkit in scripts ---


def encode(recipe: str, rows: list[dict[str, Any]], tokenizer: Any, changes: dict[str, Any], labels: tuple[str, ...]):
    """Return what the page has: the task, the context, the rows as they are read, and the features of `Dataset.map`."""
    loaded = bertkit.load_recipe(recipe, changes)
    task, context = load_task(loaded), TaskContext(loaded, tokenizer, labels)
    dataset = datasets.Dataset.from_list(rows)
    features = dataset.map(
        encode_columns,
        batched=True,
        batch_size=3,  # so that the indices of the rows of a batch are not those of the dataset
        with_indices=True,
        fn_kwargs={"context": context},
        remove_columns=dataset.column_names,
    )
    return SimpleNamespace(
        task=task, context=context, features=features, rows=[read_row(row, context) for row in dataset]
    )


TAGS = ("O", "B-PER", "I-PER", "B-LOC")
TAGGED = [
    {"tokens": ["Anna", "Bell", "likes", "the", "superb", "song"], "tags": [1, 2, 0, 0, 0, 0]},
    {"tokens": ["zebra"], "tags": [0]},
    {"tokens": ["this", "unknown"], "tags": [-100, -100]},
    {"tokens": ["a", "film", "about", "Rome"] * 9, "tags": [0, 0, 0, 3] * 9},
    {"tokens": ["Rome"], "tags": [3]},
]


def test_labels_are_aligned_as_by_a_plain_loop_over_the_words_of_tokens(tiny_model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    changes = {"labels": list(TAGS), "training.max_length": 24}
    script = encode("tag", TAGGED, tokenizer, changes, TAGS)
    assert set(script.features["row"]) == {0, 1, 3, 4}  # row 2 has no labels
    labels_by_row: dict[int, list[int]] = {row: [] for row in range(len(TAGGED))}
    for feature in script.features:
        labels_by_row[feature["row"]] += [label for label in feature["labels"] if label != -100]
    assert labels_by_row == {0: TAGGED[0]["tags"], 1: [0], 2: [], 3: TAGGED[3]["tags"], 4: [3]}
    short = [feature for feature in script.features if feature["row"] != 3]
    for feature in short:
        row = TAGGED[feature["row"]]
        encoding = tokenizer(row["tokens"], is_split_into_words=True)
        words = encoding.word_ids()
        first = [word is not None and word != before for before, word in zip([None, *words], words, strict=False)]
        labels = [row["tags"][word] if is_first else -100 for word, is_first in zip(words, first, strict=True)]
        assert (feature["input_ids"], feature["labels"]) == (encoding["input_ids"], labels)
    # The collators of both libraries make the same batches of these features.
    theirs = transformers.DataCollatorForTokenClassification(tokenizer)
    plain = theirs([{name: feature[name] for name in ("input_ids", "labels")} for feature in short])
    ours = script.task.collator(script.context)(short)
    width = plain["input_ids"].shape[1]
    assert all((ours[name][:, :width] == plain[name]).all() for name in plain)


def test_tags_are_decoded_and_scored_as_by_a_plain_loop_and_seqeval(tiny_model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    rows = [row for row in TAGGED if row["tags"][0] != -100]
    changes = {"labels": list(TAGS), "training.max_length": 24, "options.decoding": "greedy"}
    script = encode("tag", rows, tokenizer, changes, TAGS)
    longest = max(map(len, script.features["input_ids"]))
    logits = np.random.default_rng(0).normal(size=(len(script.features), longest, len(TAGS)))
    outputs = [{"logits": values} for values in logits]
    predictions = script.task.decode(outputs, script.features, script.rows, script.context)
    expected: list[list[str]] = [[] for _ in rows]
    for feature, values in zip(script.features, logits, strict=True):
        for label, scores in zip(feature["labels"], values, strict=False):
            if label != -100:
                expected[feature["row"]].append(TAGS[scores.argmax()])
    assert [record["prediction"] for record in predictions] == expected
    scores = script.task.score(script.task.compare(predictions, script.rows, script.context), script.context)
    gold = [[TAGS[tag] for tag in row["tags"]] for row in rows]
    assert scores["f1"] == pytest.approx(f1_score(gold, expected))


CONTEXTS = ["the film was so dull", "a very superb song and a book, that was great " + "and so on and on! " * 9]
QUESTIONS = [
    {"question": f"what is {word}?", "context": text, "answers": {"text": [word], "answer_start": [text.index(word)]}}
    for text, word in zip(CONTEXTS, ("dull", "great"), strict=True)
]


def test_answers_to_features_of_a_plain_tokenizer_are_those_of_a_plain_loop(tiny_model):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    limit = 5
    options = {"options.max_answer_length": limit, "options.n_best": 1000, "options.overlap": 8}
    options["training.max_length"] = 40
    script = encode("qa", QUESTIONS, tokenizer, options, ())
    encoded = tokenizer(
        [row["question"] for row in QUESTIONS],
        CONTEXTS,
        truncation="only_second",
        max_length=40,
        stride=8,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    features, windows = [], encoded["overflow_to_sample_mapping"]
    for window, row in enumerate(windows):
        texts = encoded.sequence_ids(window)
        offsets = [pair for pair, text in zip(encoded["offset_mapping"][window], texts, strict=True) if text == 1]
        features.append({"row": row, "context": texts.index(1), "offsets": np.array(offsets)})
    assert len(windows) > len(QUESTIONS)
    starts, ends = np.random.default_rng(1).normal(size=(2, 20, 40)).astype(np.float32)
    outputs = [{"start_logits": start, "end_logits": end} for start, end in zip(starts, ends, strict=True)]
    for some in (features, [script.features[index] for index in range(len(script.features))]):
        used = outputs[: len(some)]
        predictions = script.task.decode(used, some, script.rows, script.context)
        best: dict[int, tuple[float, str]] = {}
        for feature, output in zip(some, used, strict=True):
            first, size = feature["context"], len(feature["offsets"])
            for start in range(size):
                for end in range(start, min(size, start + limit)):
                    score = output["start_logits"][first + start] + output["end_logits"][first + end]
                    text = CONTEXTS[feature["row"]][feature["offsets"][start][0] : feature["offsets"][end][1]]
                    best[feature["row"]] = max(best.get(feature["row"], (-np.inf, "")), (score, text))
        assert [record["prediction"] for record in predictions] == [best[row][1] for row in range(len(QUESTIONS))]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_logits_of_the_trainer_give_the_scores_and_intervals_of_eval(run, trained, tmp_path):
    rows = toy_rows(50, seed=8)
    for row in rows[:7]:
        row["label"] = "good"  # so that some predictions are wrong, and scores have intervals
    numbers = [{**row, "label": int(row["label"] == "good")} for row in rows]  # as in a `ClassLabel`
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
    script = encode("classify", numbers, tokenizer, {"labels": ["bad", "good"]}, ("bad", "good"))
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    for collator in (transformers.DataCollatorWithPadding(tokenizer), script.task.collator(script.context)):
        trainer = transformers.Trainer(model, arguments, data_collator=collator)
        logits = trainer.predict(script.features).predictions
        outputs = [{"logits": values} for values in logits]
        predictions = script.task.decode(outputs, script.features, script.rows, script.context)
        texts = [row["text"] for row in rows]
        assert [record["prediction"] for record in predictions] == [
            record["prediction"] for record in bertkit.load(trained).predict(texts)
        ]
    row_scores = script.task.compare(predictions, script.rows, script.context)
    ended = run("eval", trained, "--data", write_jsonl(Path("rows.jsonl"), rows), "--json")
    (result,) = json.loads(ended.out)["results"]
    scores = script.task.score(row_scores, script.context)
    intervals = find_intervals(
        script.task.METRICS, scores, row_scores, lambda some: script.task.score(some, script.context)
    )
    assert result["scores"] == pytest.approx(scores)
    assert scores["accuracy"] < 1
    for name, ends in intervals.bounds.items():
        assert result["intervals"][name] == pytest.approx(ends)


def test_a_wrong_value_names_its_row_in_the_dataset(tiny_model):
    rows = [{"tokens": ["a"], "tags": ["O"]}] * 4 + [{"tokens": ["a", "b"], "tags": ["O"]}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    with pytest.raises(bertkit.BertkitError, match=r"2 words but 1 tags \(row 4, column 'tags'\)"):
        encode("tag", rows, tokenizer, {"labels": list(TAGS)}, TAGS)
