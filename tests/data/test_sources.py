"""Splits from directories, single files, data sets in the hub's schema, and the demo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import is_blank
from bertkit.data.sources import find_single_file, find_unsplit_file, is_validation, missing_split_error, read_splits
from bertkit.errors import DataError, RecipeError, UnavailableError, UsageError
from bertkit.recipe import DataConfig, load_recipe
from tests.conftest import toy_rows, write_csv

COLUMNS = ColumnSpec(inputs=("text",), gold="label", optional=("text_pair",))


def read(changes: dict, choose=lambda name: name == "train" or is_validation(name), recipe="classify"):
    return read_splits(load_recipe(recipe, changes), COLUMNS, dict, choose)


def test_a_directory_with_splits_under_their_usual_names(tmp_path):
    write_csv(tmp_path / "train.csv", toy_rows(5, 1))
    write_csv(tmp_path / "dev.csv", toy_rows(3, 2))
    splits = read({"data.source": str(tmp_path)})
    assert {name: len(split.rows) for name, split in splits.items()} == {"train": 5, "validation": 3}
    assert list(splits["train"].lines) == [2, 3, 4, 5, 6]


def test_a_directory_without_validation_gives_up_a_share(tmp_path):
    write_csv(tmp_path / "train.csv", toy_rows(50, 1))
    splits = read({"data.source": str(tmp_path), "data.validation_fraction": 0.2, "data.hold_out": "by_label"})
    assert {name: len(split.rows) for name, split in splits.items()} == {"train": 40, "validation": 10}


def test_a_single_file_is_split_the_same_way_every_time(tmp_path):
    file = write_csv(tmp_path / "all.csv", [{"text": f"t{n}", "label": "a"} for n in range(100)])
    first, second = read({"data.source": str(file)}), read({"data.source": str(file)})
    assert first["validation"].lines == second["validation"].lines
    lines = sorted(first["train"].lines + first["validation"].lines)
    assert lines == list(range(2, 102))
    assert 3 <= len(first["validation"].rows) <= 18  # by the binomial distribution, in 99 of 100 files


def test_a_column_may_name_the_split(tmp_path):
    rows = [{"text": f"t{n}", "label": "a", "subset": ["train", "dev", "test"][n % 3]} for n in range(9)]
    file = write_csv(tmp_path / "all.csv", rows)
    splits = read({"data.source": str(file), "data.split_column": "subset"})
    assert {name: len(split.rows) for name, split in splits.items()} == {"train": 3, "validation": 3}
    with pytest.raises(DataError, match=r"no column 'subsett' .* - did you mean subset\?"):
        read({"data.source": str(file), "data.split_column": "subsett"})


def test_files_may_be_named_one_by_one(tmp_path):
    one, two = write_csv(tmp_path / "one.csv", toy_rows(4, 1)), write_csv(tmp_path / "two.csv", toy_rows(2, 2))
    splits = read({"data.files": {"train": str(one), "valid": str(two)}})
    assert {name: len(split.rows) for name, split in splits.items()} == {"train": 4, "validation": 2}


def test_a_named_file_leaves_the_other_splits_of_a_folder_where_they_are(tmp_path):
    write_csv(tmp_path / "train.csv", toy_rows(5, 1))
    write_csv(tmp_path / "dev.csv", toy_rows(3, 2))
    write_csv(tmp_path / "valid.csv", toy_rows(4, 3))
    with pytest.raises(DataError, match="two files could be the validation split") as refused:
        read({"data.source": str(tmp_path)})
    key, _, file = refused.value.remedy.removeprefix("choose one: --set ").partition("=")
    for named, counts in (({key: file}, (5, 3)), ({"data.files.validation": "valid.csv"}, (5, 4))):
        splits = read({"data.source": str(tmp_path), **named})
        assert tuple(len(splits[name].rows) for name in ("train", "validation")) == counts


@pytest.mark.parametrize(
    ("content", "what"), [(b"PK\x03\x04", "an Excel workbook"), (b"", "the file is empty"), (None, "no such file")]
)
def test_a_split_that_is_not_read_in_training_is_opened_all_the_same(tmp_path, content, what):
    write_csv(tmp_path / "train.csv", toy_rows(50, 1))
    if content is not None:
        (tmp_path / "test.csv").write_bytes(content)
    recipe = load_recipe("classify", {"data.source": str(tmp_path), "data.files.test": "test.csv"})

    def read_training(check_rest):
        return read_splits(recipe, COLUMNS, dict, lambda name: name != "test", check_rest=check_rest)

    assert list(read_training(False)) == ["train", "validation"]
    with pytest.raises(DataError, match=what):
        read_training(True)


def test_a_path_that_is_not_there(tmp_path):
    write_csv(tmp_path / "train.csv", toy_rows(2, 1))
    with pytest.raises(DataError, match=r"no such file or folder \(.*trian\.csv\) - did you mean .*train\.csv"):
        read({"data.source": str(tmp_path / "trian.csv")})


@pytest.mark.parametrize(("policy", "rows"), [("drop", 2), ("keep", 3)])
def test_blank_texts_are_dropped_or_kept_when_asked(tmp_path, policy, rows):
    file = write_csv(tmp_path / "all.csv", [{"text": text, "label": "a"} for text in (" ", "b", "c")])
    splits = read({"data.source": str(file), "data.empty_text": policy}, lambda name: name == "all")
    assert len(splits["all"].rows) == rows


def test_shards_are_read_in_order(tmp_path):
    import datasets

    for number in range(2):
        table = datasets.Dataset.from_list([{"text": f"{number}-{n}", "label": n} for n in range(3)])
        table.to_parquet(tmp_path / f"train-0000{number}-of-00002.parquet")
    table.to_parquet(tmp_path / "validation-00000-of-00001.parquet")
    splits = read({"data.source": str(tmp_path)})
    assert [row["text"] for row in splits["train"].rows] == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def hub_folder(folder: Path) -> Path:
    """A folder as `datasets.load_dataset` reads it, with GLUE's schema: numbered labels that have names."""
    import datasets

    names = datasets.ClassLabel(names=["unacceptable", "acceptable"])
    features = datasets.Features({"sentence": datasets.Value("string"), "label": names, "idx": datasets.Value("int32")})
    (folder / "data").mkdir(parents=True)
    for split, label in (("train", 1), ("validation", 0), ("test", -1)):
        rows = [{"sentence": f"{split} {n}", "label": label, "idx": n} for n in range(4)]
        datasets.Dataset.from_list(rows, features=features).to_parquet(
            folder / "data" / f"{split}-00000-of-00001.parquet"
        )
    return folder


@pytest.mark.slow
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_data_set_of_the_hub_comes_through_the_datasets_library(loopback, tmp_path):
    loopback.add("datasets", "me/glue", hub_folder(tmp_path / "glue"))
    splits = read({"data.source": "me/glue", "data.columns.text": "sentence"}, lambda name: True)
    assert {name: split.rows[0]["label"] for name, split in splits.items()} == {
        "train": "acceptable",
        "validation": "unacceptable",
        "test": None,
    }
    assert splits["train"].rows[1]["text"] == "train 1"


def test_a_data_set_that_cannot_be_reached_says_what_else_there_is():
    with pytest.raises(UnavailableError, match=r"neither a path nor in the cache.*--data demo"):
        read({}, recipe="cola")


def test_is_blank():
    assert is_blank("\u200b \t") is False
    assert is_blank("\u00a0\t")


def test_training_needs_a_validation_split(tmp_path, tiny_model):
    from bertkit.workflows.trial_run import dry_run as plan

    file = write_csv(tmp_path / "all.csv", [{**row, "subset": "train"} for row in toy_rows(9, 1)])
    changes = {"model": str(tiny_model), "data.source": str(file), "data.split_column": "subset"}
    with pytest.raises(DataError, match=r"no validation split \(found: train\)"):
        plan(load_recipe("classify", changes))


def test_only_a_single_file_without_a_column_of_splits_is_divided(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,label\na,1\n")
    assert find_unsplit_file(DataConfig(source=str(file))) == file
    assert find_unsplit_file(DataConfig(source=str(tmp_path))) is None
    assert find_unsplit_file(DataConfig(source=str(file), split_column="split")) is None
    assert find_unsplit_file(DataConfig(source=str(file), files={"validation": str(file)})) is None
    assert find_single_file(DataConfig(source=str(file), split_column="split")) == file


def test_a_pipe_is_named_as_one(here):
    os.mkfifo("train.csv")
    with pytest.raises(UsageError, match="a pipe or device, not a file"):
        read({"data.source": "train.csv"})
    with pytest.raises(UsageError, match="a pipe or device, not a file"):
        read({"data.source": "/dev/zero"})


def test_files_beside_the_demo_rows_are_refused():
    recipe = load_recipe("cola", {"data.source": "demo", "data.files.train": "mine.csv"})
    with pytest.raises(RecipeError, match=r"the demo data has no files, but data.files names .*mine\.csv"):
        read_splits(recipe, ColumnSpec(("text",), "label"), lambda row: row, lambda _name: True)


def test_a_folder_without_training_rows_names_the_other_files_that_lie_there(tmp_path):
    write_csv(tmp_path / "wnut.dev.csv", toy_rows(4, 1))
    data = DataConfig(source=str(tmp_path))
    assert str(missing_split_error("train", data, ["validation"])) == (
        f"no train split (found: validation) ({tmp_path}) - name it in data.splits or data.files"
    )
    (tmp_path / "notes").write_text("no data")
    write_csv(tmp_path / "emerging.csv", toy_rows(4, 2))
    assert str(missing_split_error("train", data, ["validation"])) == (
        f"no train split (found: validation; other files: emerging.csv, notes) ({tmp_path}) - "
        "add --set data.files.train=emerging.csv"
    )
    files = {"data.source": str(tmp_path), "data.files.train": "emerging.csv"}
    assert {name: len(split.rows) for name, split in read(files).items()} == {"train": 4, "validation": 4}
    write_csv(tmp_path / "more.csv", toy_rows(4, 2))
    assert str(missing_split_error("train", data, [])).endswith("- add --set data.files.train=FILE")


def test_values_of_a_split_column_as_people_write_them(tmp_path, caplog):
    parts = ["Train", "train ", "TRAINING", "Devel", "eval", "eval", "", "test"]
    rows = [{"text": f"t{number}", "label": "ab"[number % 2], "part": part} for number, part in enumerate(parts)]
    changes = {"data.source": str(write_csv(tmp_path / "all.csv", rows)), "data.split_column": "part"}
    with caplog.at_level("INFO", logger="bertkit"):
        splits = read(changes, lambda name: name in ("train", "validation"))
    texts = {name: [row["text"] for row in split.rows] for name, split in splits.items()}
    assert texts == {"train": ["t0", "t1", "t2"], "validation": ["t3"]}
    assert [message for message in caplog.messages if message.endswith("by their 'part': '' (1), 'eval' (2)")]
    splits = read({**changes, "data.splits.validation": "Eval"}, lambda name: name == "validation")
    assert [row["text"] for row in splits["validation"].rows] == ["t4", "t5"]


def test_a_column_of_splits_that_is_not_read_is_told(tmp_path, caplog):
    rows = [{"text": f"text {number}", "label": "ab"[number % 2], "part": "train"} for number in range(30)]
    file = write_csv(tmp_path / "all.csv", rows)
    with caplog.at_level("INFO", logger="bertkit"):
        read({"data.source": str(file)}, lambda name: name in ("train", "validation"))
    assert [message for message in caplog.messages if "--set data.split_column=part" in message]


def test_two_named_files_of_one_split_are_both_read(tmp_path):
    for name, count in (("a", 5), ("b", 2), ("c", 3)):
        write_csv(tmp_path / f"{name}.csv", toy_rows(count, count))
    files = {
        f"data.files.{split}": str(tmp_path / file)
        for split, file in zip(("train", "dev", "valid"), ("a.csv", "b.csv", "c.csv"), strict=True)
    }
    assert {name: len(split.rows) for name, split in read(files).items()} == {"train": 5, "validation": 5}
