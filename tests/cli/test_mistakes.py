"""The commonest mistakes, each with the one line that answers it and its exit code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from bertkit.errors import RecipeError
from bertkit.recipe import TrainingConfig, load_recipe, parse_changes
from tests.kills import slow_unless

GOOD = "text,label\n" + "".join(f"row {n} x,{'good' if n % 2 else 'bad'}\n" for n in range(20))

DATA_MISTAKES = {
    "empty file": ("d.csv", b"", "the file is empty (d.csv) - give it a header line and rows"),
    "header only": ("d.csv", b"text,label\n", "the file has a header but no rows (d.csv) - add rows"),
    "utf-16": (
        "d.csv",
        "text,label\na b,good\n".encode("utf-16"),
        "byte 0xff at offset 0 is not valid utf-8 (d.csv:1) - if the file is utf-16: --set data.encoding=utf-16",
    ),
    "latin-1": (
        "d.csv",
        "text,label\nok,bad\nnä b,good\n".encode("latin-1"),
        "byte 0xe4 at offset 19 is not valid utf-8 (d.csv:3) - if the file is cp1252: --set data.encoding=cp1252",
    ),
    "too many fields": (
        "d.csv",
        b"text,label\nok,bad\na,b,good\n",
        "3 fields instead of 2: 'a,b,good' (d.csv:3) - put text that holds ',' in double quotes, "
        "or --set data.delimiter=...",
    ),
    "too few fields": (
        "d.csv",
        b"text,label\nok,bad\na\n",
        "1 field instead of 2: 'a' (d.csv:3) - complete the row or delete it",
    ),
    "unclosed quote": (
        "d.csv",
        b'text,label\nok,bad\n"a,good\nb,bad\n',
        "a quote is never closed: '\"a,good\\nb,bad' (d.csv:3) - close or double its quotes, "
        "or read them as text: --set data.quoting=none",
    ),
    "missing labels": (
        "d.csv",
        b"text,label\nok,bad\na,\nb,\nc,good\n",
        "no label (also in line 4) (d.csv:3, column 'label') - fill it in, or --set data.empty_label=drop",
    ),
    "column in another case": (
        "d.csv",
        b"Text,label\nok,bad\n",
        "no column 'text'; there are 'Text', 'label' (d.csv) - add --set data.columns.text=Text",
    ),
    "space in the column name": (
        "d.csv",
        b"text, label\nok,bad\n",
        "no column 'label'; there are 'text', ' label' (d.csv) - add --set 'data.columns.label=\" label\"'",
    ),
    "no header": (
        "d.csv",
        b"this is the first row of text,1\nok,0\n",
        "no header: the first line looks like data ('this is the first row of text', '1') (d.csv:1) - "
        "name the columns: --set 'data.header=[text, label]'",
    ),
    "bad jsonl line": (
        "d.jsonl",
        b'{"text":"a","label":"x"}\n{"text":"b","label":"y"}\n{"text":"c" "label":"x"}\n',
        'not JSON, character 13: Expecting \',\' delimiter: \'{"text":"c" "label":"x"}\' (d.jsonl:3) - '
        "write one JSON object per line",
    ),
    "no text": (
        "d.csv",
        b"text,label\n ,bad\na,good\n",
        "no text (d.csv:2, column 'text') - fill it in, or --set data.empty_text=drop (or keep)",
    ),
    "one label only": (
        "d.csv",
        b"text,label\na,x\nb,x\nc,x\n",
        "every row has the same label 'x' - a classifier needs at least two labels",
    ),
}


@pytest.mark.parametrize("mistake", DATA_MISTAKES)
def test_bad_data(run, tiny_model, mistake):
    file, content, expected = DATA_MISTAKES[mistake]
    Path(file).write_bytes(content)
    ended = run("finetune", "classify", "--model", tiny_model, "--data", file)
    assert ended.last == f"error: {expected}"
    assert (ended.code, ended.out, Path("runs").exists()) == (3, "", False)


PAIRS = ["--set", "data.columns={text: a, text_pair: b, label: label}"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "a,b,label\nx,,1\ny,z,0\n",
            "no text (d.csv:2, column 'b') - fill it in, or --set data.empty_text=drop (or keep)",
        ),
        (
            "a,label\nx,1\ny,0\n",
            "no column 'b'; there are 'a', 'label' (d.csv) - add --set data.columns.text_pair=COLUMN",
        ),
    ],
)
def test_a_pair_without_its_second_text(run, tiny_model, content, expected):
    Path("d.csv").write_text(content)
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "d.csv", *PAIRS)
    assert (ended.code, ended.last) == (3, f"error: {expected}")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, "a single row cannot be divided into training and validation rows (d.csv) - "),
        (2, "no row can be held out: each text is the only one with its label (d.csv) - "),
    ],
)
def test_too_few_rows(run, tiny_model, rows, expected):
    Path("d.csv").write_text("".join(GOOD.splitlines(keepends=True)[: rows + 1]))
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "d.csv")
    assert (ended.code, ended.last.startswith(f"error: {expected}")) == (3, True)


def test_a_label_outside_the_declared_ones(run, tiny_model):
    Path("d.csv").write_text("text,label\nok,0\na,1\nb,7\nc,0\nd,1\n")
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "d.csv", "--set", "labels=[bad,good]")
    assert ended.code == 3
    assert ended.last == (
        "error: label '7' is not one of the 2 labels (0 bad, 1 good) (d.csv:4, column 'label') - "
        "correct the row, or declare the names under `labels:`"
    )


def test_texts_that_spell_missing_values_stay_texts(run, trained):
    Path("d.csv").write_text("text\nNA\nnull\n007\nnan\n")
    ended = run("predict", "classify", "d.csv", "--model", trained)
    assert ended.code == 0
    assert [line.split('"text": ')[1].split(",")[0] for line in ended.out.splitlines()] == [
        '"NA"',
        '"null"',
        '"007"',
        '"nan"',
    ]


def test_another_delimiter_is_reported(run, tiny_model):
    Path("d.csv").write_text(GOOD.replace(",", ";"))
    ended = run("finetune", "classify", "--model", tiny_model, "--data", "d.csv", "--dry-run")
    assert ended.code == 0
    assert ended.err.splitlines()[0] == "the columns of d.csv are separated by ';'"


@pytest.mark.parametrize(
    ("mistake", "code", "expected"),
    [
        (
            "bert-base-uncase",
            5,
            "'bert-base-uncase' is neither a directory nor in the cache, and the Hub cannot be reached - "
            "did you mean bert-base-uncased; or name a directory (with config.json, weights and "
            "tokenizer.json) or demo (comes with bertkit), or "
            "`hf download bert-base-uncase --local-dir DIR` on a connected machine, then copy DIR here",
        ),
        ("./ckpt", 4, "no such directory: ./ckpt - folders in {folder}: notok"),
        (
            "notok",
            4,
            "no tokenizer files (notok) - copy tokenizer.json and tokenizer_config.json from the pretrained model",
        ),
        ("d.csv", 4, "not a model folder but a file (d.csv) - name the folder that it is in"),
    ],
)
def test_bad_models(run, tiny_model, tmp_path, monkeypatch, mistake, code, expected):
    cached = tmp_path / "hub" / "models--bert-base-uncased" / "snapshots"
    cached.mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cached.parent.parent))
    shutil.copytree(tiny_model, "notok", ignore=shutil.ignore_patterns("tokenizer*"))
    Path("d.csv").write_text(GOOD)
    ended = run("finetune", "classify", "--model", mistake, "--data", "d.csv")
    assert (ended.code, ended.last) == (code, "error: " + expected.format(folder=Path.cwd()))


def test_a_checkpoint_without_a_head_is_not_scored(run, tiny_model):
    Path("d.csv").write_text(GOOD)
    ended = run("eval", "classify", "--model", tiny_model, "--data", "d.csv")
    assert ended.code == 4
    assert ended.last == (
        f"error: no trained head for this task (it is a BertModel) ({tiny_model}) - "
        "fine-tune it first, or name another checkpoint"
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-1.0", "0.0", "100000.0"])
def test_learning_rates_out_of_range(run, value):
    ended = run("finetune", "cola", "--learning-rate", value)
    expected = f"error: training.learning_rate = {value} is out of range - give a number above 0 and below 1, or auto"
    assert (ended.code, ended.last) == (2, expected)


def test_a_learning_rate_with_a_space_is_a_number(run, tiny_model):
    Path("d.csv").write_text(GOOD)
    options = ["--model", tiny_model, "--data", "d.csv", "--learning-rate", "1e-5 ", "--dry-run"]
    assert "learning_rate: 1.0e-05" in run("finetune", "classify", *options).out


def test_a_misspelled_metric(run):
    ended = run("finetune", "classify", "--set", "metrics=[accuracyy]")
    assert ended.code == 2
    assert ended.last == "error: no metric is called 'accuracyy' - did you mean accuracy or balanced_accuracy?"


RECIPES = {
    "unknown key": (
        "extends: classify\ntraining:\n  epoch: 3\n",
        "unknown key 'training.epoch' (r.yaml:3) - did you mean epochs?",
    ),
    "key of the Trainer": (
        "extends: classify\ntraining:\n  num_train_epochs: 3\n",
        "unknown key 'training.num_train_epochs' (r.yaml:3) - write training.epochs",
    ),
    "key of the Trainer that is passed on": (
        "extends: classify\ntraining:\n  optim: adafactor\n",
        "unknown key 'training.optim' (r.yaml:3) - write training.extra.optim",
    ),
    "key at the top": (
        "extends: classify\nmodel_name_or_path: demo\n",
        "unknown key 'model_name_or_path' (r.yaml:2) - write model",
    ),
    "tab": (
        "extends: classify\ntraining:\n\tepochs: 3\n",
        "a tab where YAML needs spaces (r.yaml:3) - indent with spaces",
    ),
    "key given twice": (
        "extends: classify\nabout: a\nabout: b\n",
        "the key 'about' occurs twice (r.yaml:3) - it is in line 2 already",
    ),
    "aliases": (
        "a: &a [1]\nb: [*a, *a]\n",
        "anchors and aliases are not supported (r.yaml:1) - repeat the value",
    ),
    "python tag": (
        "a: !!python/object/apply:os.system [ls]\n",
        "the tag tag:yaml.org,2002:python/object/apply:os.system is not supported (r.yaml:1) - write a plain value",
    ),
    "circle": ("extends: r.yaml\n", "recipes extend each other in a circle (r.yaml) - remove one `extends:`"),
    "range": (
        "extends: classify\ntraining: {epochs: -2}\n",
        "training.epochs = -2 is out of range (r.yaml:2) - give a number above 0 and at most 10,000, or auto",
    ),
    "task": (
        "extends: classify\ntask: text_clasification\n",
        "no task family is called 'text_clasification' - did you mean text_classification or token_classification?",
    ),
}


@pytest.mark.parametrize("mistake", RECIPES)
def test_bad_recipes(run, mistake):
    text, expected = RECIPES[mistake]
    Path("r.yaml").write_text(text)
    ended = run("recipes", "check", "r.yaml")
    assert (ended.code, ended.last) == (2, f"error: {expected}")


def test_words_that_yaml_1_1_would_take_for_something_else(run):
    Path("r.yaml").write_text("extends: classify\nlabels: [no, yes]\ntraining: {learning_rate: 1e-5}\n")
    ended = run("recipes", "show", "r.yaml", "--json")
    assert '"labels": ["no", "yes"]' in ended.out
    assert '"learning_rate": 1e-05' in ended.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["finetune", "colla"], "no recipe is called 'colla' - did you mean cola?"),
        (["finetune", "nope.yaml"], "no such recipe file (nope.yaml) - `bertkit recipes list` shows the shipped ones"),
        (["finetune", "cola", "--set", "training.epoch=1"], "unknown key 'training.epoch' - did you mean epochs?"),
        (["finetune", "cola", "--set", "epochs"], "--set epochs is not key=value - write e.g. --set training.epochs=2"),
        (["finetun", "cola"], "no command is called 'finetun' - did you mean finetune?"),
        (["train", "cola"], "no command is called 'train' - write bertkit finetune"),
        (["evaluate", "cola"], "no command is called 'evaluate' - write bertkit eval"),
        (["finetune", "cola", "--nope"], "no option is called --nope - see `bertkit finetune --help`"),
        (["finetune"], "RECIPE is missing - write e.g. `bertkit finetune cola --model demo --data demo`"),
        (["predict", "cola"], "cola is a recipe, which has no checkpoint - give a run, or add --model RUN"),
        (["predict", "colla"], "no recipe is called 'colla' - did you mean cola?"),
        (["eval", "runs/colla"], "no such run: runs/colla - `bertkit runs list` shows the runs below runs/"),
        (
            ["predict", "cola", "x.csv", "--model", "m", "--text", "a"],
            "FILE and --text or --row are both given - leave one of them out",
        ),
        (
            ["predict", "cola", "x.csv", "--model", "m", "-o", "x.xls"],
            "--output x.xls: unknown ending '.xls' - use .jsonl, .csv, .tsv, .parquet",
        ),
    ],
)
def test_bad_command_lines(run, arguments, expected):
    ended = run(*arguments)
    assert (ended.code, ended.last) == (2, f"error: {expected}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["predict", "new rows.csv", "--text", "a"], "bertkit predict RUN 'new rows.csv'`; see `bertkit runs list`"),
        (["eval", "rows.tsv"], "bertkit eval RUN --data rows.tsv`; see `bertkit runs list`"),
        (["calibrate", "rows.tsv"], "bertkit calibrate RUN --data rows.tsv`; see `bertkit runs list`"),
        (["pretrain", "text.txt"], "bertkit pretrain recipe mlm --data text.txt`; see `bertkit recipes list`"),
        (
            ["probe", "words.conll", "--model", "demo"],
            "bertkit probe tag --data words.conll`; see `bertkit recipes list`",
        ),
        (["recipes", "show", "rows.tsv"], "bertkit recipes show classify`; see `bertkit recipes list`"),
        *(
            ([command, "rows.tsv"], f"bertkit {command} classify --data rows.tsv`; see `bertkit recipes list`")
            for command in ("finetune", "check", "bench", "distill")
        ),
    ],
)
def test_a_file_of_rows_in_the_place_of_a_recipe_is_answered_by_the_command_line(run, arguments, expected):
    file = next(name for name in arguments if "." in name)
    Path(file).write_text("text\ta\n")
    ended = run(*arguments)
    what = "run or a recipe" if "RUN" in expected else "recipe"
    assert (ended.code, ended.last) == (
        2,
        f"error: {file} is a file, and a {what} is expected - write e.g. `{expected}",
    )


def test_a_file_of_rows_as_the_option_recipe_is_refused(run):
    Path("rows.tsv").write_text("text\ta\n")
    ended = run("explain", "demo", "--recipe", "rows.tsv", "--text", "a")
    assert (ended.code, ended.last[:63]) == (2, "error: expected a recipe, got a file that is not YAML (rows.tsv")


def test_errors_as_json(run):
    import json

    Path("r.yaml").write_text("extends: classify\ntraining:\n  epoch: 3\n")
    printed = json.loads(run("recipes", "check", "r.yaml", "--json").out)
    assert printed["status"] == "error"
    assert printed["error"] == {
        "code": 2,
        "message": "unknown key 'training.epoch'",
        "file": "r.yaml",
        "row": 3,
        "record": None,
        "column": None,
        "hint": "did you mean epochs?",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["predict", "cola", "--lr", "1"], "no option is called --lr - see `bertkit predict --help`"),
        (
            ["finetune", "cola", "--task_name", "cola"],
            "no option is called --task_name - leave it out, and name the task as the recipe: bertkit finetune cola",
        ),
        (
            ["pretrain", "bert", "--line_by_line"],
            "no option is called --line_by_line - write data.documents=lines for one document per line",
        ),
        (
            ["pretrain", "bert", "--mlm_probability", "0.15"],
            "no option is called --mlm_probability - write --set options.mask_rate=...",
        ),
        (
            ["finetune", "cola", "--use_peft"],
            "no option is called --use_peft - write training.lora={} for low-rank adapters",
        ),
        (
            ["finetune", "cola", "--attn_implementation", "sdpa"],
            "no option is called --attn_implementation - leave it out: bertkit decides it",
        ),
        (
            ["eval", "cola", "--config", "my.yaml"],
            "no option is called --config - leave it out: a recipe or a run is named as the first argument",
        ),
        (["finetune", "cola", "--metrics", "f1"], "no option is called --metrics - write --set metrics=..."),
        (["eval", "cola", "--best_metric", "f1"], "no option is called --best_metric - write --set best_metric=..."),
        (
            ["finetune", "cola", "--label_column_name", "y"],
            "no option is called --label_column_name - write --set data.columns.label=...",
        ),
        (["finetune", "cola", "--fp16"], "no option is called --fp16 - write --set training.precision=..."),
        (
            ["finetune", "cola", "--warmup-steps", "10"],
            "no option is called --warmup-steps - write --set training.warmup_ratio=..., the fraction of all steps",
        ),
        (
            ["finetune", "cola", "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "2"],
            "no option is called --gradient_accumulation_steps - write --batch-size 32 "
            "--set training.gradient_accumulation=2, for all rows of a step",
        ),
        (
            ["finetune", "cola", "--save_total_limit=2"],
            "no option is called --save_total_limit - leave it out: the best and the last checkpoint stay; "
            "--set training.keep_all_checkpoints=true keeps all",
        ),
        (
            ["finetune", "cola", "--set", "training.load_best_model_at_end=true"],
            "unknown key 'training.load_best_model_at_end' - leave it out: the best checkpoint is always the result",
        ),
        (
            ["pretrain", "tokenizer", "--output", "t", "--data", "demo", "--set", "training.epochs=3"],
            "--set training.epochs: not read by this command - it reads data.*",
        ),
        *(
            (
                ["search", "build", "p.jsonl", "--model", "demo", "--output", "ix", "--set", f"{key}=body"],
                f"--set {key}: not read by this command - it reads data.limit, data.format, "
                "data.header, data.delimiter, data.quoting, data.encoding",
            )
            for key in ("data.columns.id", "data.columns.text", "data.split_column")
        ),
        (
            ["predict", "run", "--warmup_steps", "3"],
            "no option is called --warmup_steps - see `bertkit predict --help`",
        ),
        (
            ["pretrain", "tokenizer", "--vocab_size", "9"],
            "no option is called --vocab_size - write --vocabulary-size",
        ),
        (
            ["pretrain", "tokenizer", "--size", "9"],
            "no option is called --size - did you mean --vocabulary-size?",
        ),
        (["finetune", "cola", "--seeed", "0"], "no option is called --seeed - did you mean --seed or --seeds?"),
        (["finetune", "cola", "-x"], "no option is called -x - see `bertkit finetune --help`"),
        (["predict", "cola", "--lr", "0"], "no option is called --lr - see `bertkit predict --help`"),
        (["finetune", "cola", "--epochs"], "--epochs needs a value - write --epochs VALUE"),
        (
            ["finetune", "cola", "--seed", "abc"],
            "--seed = 'abc' is wrong: must be an integer - see `bertkit finetune --help`",
        ),
        (
            ["serve", "run", "--port", "99999"],
            "--port = '99999' is wrong: must be at most 65,535 - see `bertkit serve --help`",
        ),
        (
            ["predict", "cola", "--model", "m", "--text", "a\udcff"],
            "an argument is not UTF-8: a\\udcff - convert the text, or rename the file",
        ),
    ],
)
def test_what_to_type_instead(run, arguments, expected):
    ended = run(*arguments)
    assert (ended.code, ended.last) == (2, f"error: {expected}")


def test_every_name_of_the_trainer_leads_to_an_option_or_a_key_of_recipes():
    from typer.main import get_command

    from bertkit.cli.main import app
    from bertkit.recipe import load_recipe, parse_changes
    from bertkit.recipe.validation import other_options

    commands = [command for command in get_command(app).commands.values() if not hasattr(command, "commands")]
    commands += get_command(app).commands["pretrain"].commands.values()
    options = {name for command in commands for parameter in command.params for name in parameter.opts}
    for name, meant in other_options().items():
        assert f"--{name.replace('_', '-')}" not in options or not meant.startswith("--")
        if meant.startswith("--"):
            assert meant in options
            continue
        try:
            load_recipe("cola", parse_changes([f"{meant}=1"]))
        except RecipeError as error:  # of another type than 1, but known
            assert "unknown key" not in str(error)


HABITS = {
    "--num_train_epochs 2 --learning_rate 1e-4 --per_device_train_batch_size 8": {
        "epochs": 2,
        "learning_rate": 1e-4,
        "batch_size": 8,
    },
    "--lr=1e-4 --max_seq_length 64 --weight_decay=0.1 --seed 3": {
        "learning_rate": 1e-4,
        "max_length": 64,
        "weight_decay": 0.1,
        "seed": 3,
    },
    "--max_steps 5 --gradient_checkpointing --label_smoothing_factor 0.1": {
        "steps": 5,
        "gradient_checkpointing": True,
        "label_smoothing": 0.1,
    },
    "--gradient_checkpointing False --lr_scheduler_type cosine": {
        "gradient_checkpointing": False,
        "schedule": "cosine",
    },
}
"""What is typed for the Trainer's scripts -> the keys of `training` that it sets."""


@pytest.mark.parametrize("typed", HABITS)
def test_options_of_the_trainers_scripts_are_read(run, tiny_model, toy_data, typed):
    command = f"finetune classify --model_name_or_path {tiny_model} --train_file {toy_data}/train.csv"
    ended = run(*command.split(), *typed.split(), "--output_dir", "runs/here", "--dry-run", "--json")
    assert ended.code == 0, ended.err
    plan = json.loads(ended.out)
    resolved = yaml.safe_load(plan["resolved"])
    assert plan["folder"] == "runs/here" and resolved["data"]["files"] == {"train": f"{toy_data}/train.csv"}
    settings = TrainingConfig(**resolved["training"])
    assert {key: getattr(settings, key) for key in HABITS[typed]} == HABITS[typed]
    assert "--output_dir is read as --output" in ended.err


def test_a_batch_per_device_of_several_processes_is_refused(run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = run("finetune", "cola", "--per_device_train_batch_size", "8")
    assert (ended.code, ended.last) == (
        2,
        "error: no option is called --per_device_train_batch_size - write --batch-size 16, for all rows of a step",
    )


@pytest.mark.parametrize(
    "key",
    ["training.epochs", "distillation.temperature", "data.train_limit", "data.train_rows_per_label", "data.oversample"],
)
@pytest.mark.parametrize(
    "command", ["predict cola --model demo", "eval runs/x", "explain x", "check cola", "probe cola"]
)
def test_keys_of_training_are_refused_where_nothing_is_trained(run, command, key):
    ended = run(*command.split(), "--set", f"{key}=1")
    assert ended.code == 2 and ended.last.startswith(f"error: --set {key}: not read by this command - it reads")


@pytest.mark.parametrize("key", ["data.limit", "data.source", "data.empty_text", "gates.accuracy", "training.seed"])
@pytest.mark.parametrize("command", ["predict", "explain"])
def test_keys_of_labeled_rows_are_refused_if_rows_have_no_labels(run, command, key):
    ended = run(command, "runs/x", f"{key}=1")
    assert ended.code == 2 and ended.last.startswith(f"error: --set {key}: not read by this command - it reads")


@pytest.mark.parametrize(
    "typed", ["load_best_model_at_end", "greater_is_better", "deepspeed", "do_train", "push_to_hub"]
)
def test_options_without_an_equal_are_to_be_left_out(run, typed):
    ended = run("finetune", "cola", f"--{typed}=True")
    assert ended.code == 2 and ended.last.startswith(f"error: no option is called --{typed} - leave it out")


def test_no_trackers_are_none(run, tiny_model, toy_data):
    command = ("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--dry-run", "--json")
    ended = run(*command, "--report_to", "none")
    assert ended.code == 0, ended.err
    assert TrainingConfig(**yaml.safe_load(json.loads(ended.out)["resolved"])["training"]).report_to == []


def test_every_hint_names_options_and_keys_that_exist():
    from bertkit.recipe.validation import read_names

    for hint in set(read_names("hints").values()):
        for key, value in re.findall(r"--set (\S+?)=(\w*)", hint):
            load_recipe("cola", parse_changes([f"{key}={value or 0.5 if 'ratio' in key else value or 1}"]))


@pytest.mark.parametrize("arguments", [["finetun"], ["finetune"], ["finetune", "cola", "--fp16"]])
def test_errors_of_the_command_line_as_json_have_their_hint(run, arguments):
    import json

    ended = run(*arguments, "--json")
    error = json.loads(ended.out)["error"]
    assert error["hint"]
    assert ended.last == f"error: {error['message']} - {error['hint']}"


MODEL_FILES = {
    "config.json": ["[]", "null", "3", "{", '"x"', "NaN", "{}", '{"model_type": []}', "[" * 5000, "9" * 5000],
    "tokenizer_config.json": ["[]", "null", "{", '{"model_max_length": "x"}', '{"tokenizer_class": 3}'],
    "tokenizer.json": ["[]", "null", "{}", '{"model": {}}', '{"version": 1, "model": {"type": "x"}}'],
}


@pytest.mark.parametrize("file", MODEL_FILES)
def test_damaged_files_of_a_model(run, trained, toy_data, file):
    for content in MODEL_FILES[file]:
        shutil.rmtree("m", ignore_errors=True)
        shutil.copytree(trained, "m")
        Path("m", file).write_text(content)
        ended = run("predict", "classify", "--model", "m", "--text", "a")
        assert ended.code == 4, content
        assert ended.err.count("error: ") == 1
        assert "Traceback" not in ended.err


ODD = ["", "..", "{a: b}", "[[[[", "null", "!!int 3", "&a", "a: b: c", "\x1b[1m\x9b1m", "9" * 5000]
OPTIONS = ["--model", "--data", "--limit", "--epochs", "--batch-size", "--seed", "--output", "--set", "--set=about"]
OPTIONS += ["--set=name", "--set=labels", "--set=task", "--set=data.columns.text", "--set=data.encoding"]


QUICK = ["--model", "--data", "--limit", "--set", "--set=about", "--set=labels"]


@pytest.mark.parametrize("option", slow_unless(QUICK, OPTIONS))
def test_odd_texts_for_any_option_end_in_a_line(run, tiny_model, toy_data, option):
    for text in ODD:
        value = [f"{option}={text}"] if "=" in option else [option, text]
        ended = run("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--dry-run", *value)
        assert ended.code != 1, text
        assert "Traceback" not in ended.err
        assert not {"\x1b", "\x9b"} & {*ended.err, *ended.out}


def test_a_broken_module_of_your_own_is_never_a_fault_of_bertkit(run, tiny_model, toy_data, monkeypatch):
    Path("mytasks").mkdir()
    Path("mytasks", "broken.py").write_text(
        "from bertkit.tasks.text_classification import *\n"
        "from bertkit.tasks.text_classification import HAS_LABEL_NAMES, METRICS, OPTIONS\n\n\n"
        "def encode(rows, setup):\n    return rows[0]['no such column']\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    ended = run("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--set", "task=mytasks.broken")
    file = Path("mytasks", "broken.py").resolve()
    assert ended.last == (
        f"error: the task family mytasks.broken failed: KeyError: 'no such column' ({file}:6) - "
        "correct it; BERTKIT_DEBUG=1 shows the traceback"
    )
    assert (ended.code, list(Path().glob("bertkit-crash*"))) == (2, [])
