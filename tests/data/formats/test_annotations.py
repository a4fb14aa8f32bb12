"""JSON of Prodigy and Label Studio as rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.data.files import read_records
from bertkit.data.spans import TextSpan, read_spans
from bertkit.errors import DataError
from bertkit.recipe import DataConfig
from tests.conftest import write_jsonl
from tests.data.test_spans import PEOPLE, TEXT, as_objects


def rows_of(file, **options):
    return [row for _, row in read_records(file, DataConfig(**options))]


def test_prodigy(here):
    spans = as_objects("start", "end", "label")
    rows = [
        {"text": TEXT, "_input_hash": 1, "_task_hash": 2, "spans": spans, "answer": "accept"},
        {"text": "Rome", "_input_hash": 3, "_task_hash": 4, "tokens": [{"text": "Rome"}], "answer": "reject"},
        {"text": "no", "_input_hash": 5, "_task_hash": 6, "meta": {"n": 1}, "answer": "accept", "_view_id": "ner"},
        {"text": "Oslo", "_input_hash": 7, "_task_hash": 8, "spans": spans, "answer": "ignore"},
    ]
    read = rows_of(write_jsonl(here / "p.jsonl", rows))
    assert [row["spans"] for row in read] == [spans, None, [], None]
    assert len({tuple(row) for row in read}) == 1
    classes = [{"text": "a", "label": "A", "_task_hash": 1, "answer": "accept"}]
    assert rows_of(write_jsonl(here / "c.jsonl", classes)) == classes


def test_choices_in_prodigy(here):
    """The labels of a text are a list only if some text has several."""
    row = {"options": [{"id": "A", "text": "A"}, {"id": "B", "text": "B"}], "_task_hash": 1, "answer": "accept"}
    single = [{"text": "a", **row, "accept": ["A"]}, {"text": "b", **row, "accept": []}]
    assert [row["label"] for row in rows_of(write_jsonl(here / "c.jsonl", single))] == ["A", None]
    several = [*single, {"text": "c", **row, "accept": ["B", "A"], "answer": "ignore", "meta": {}}]
    read = rows_of(write_jsonl(here / "d.jsonl", several))
    assert [(row["label"], row["answer"]) for row in read] == [
        (["A"], "accept"),
        ([], "accept"),
        (["B", "A"], "ignore"),
    ]


def label_studio(results, **more):
    return {"was_cancelled": False, "result": results, **more}


def test_label_studio(here):
    results = [
        {"value": {"start": start, "end": end, "text": TEXT[start:end], "labels": [label]}, "type": "labels"}
        for start, end, label in PEOPLE
    ]
    choice = {"value": {"choices": ["news"]}, "type": "choices"}
    tasks = [
        {"id": 4, "annotations": [label_studio([*results, choice])], "data": {"text": TEXT, "url": "u"}},
        {"id": 5, "annotations": [label_studio(results, was_cancelled=True)], "data": {"body": "b"}, "predictions": []},
        {"id": 6, "annotations": [], "data": {"text": TEXT}},
        {"id": 7, "annotations": [label_studio([]), label_studio(results, ground_truth=True)], "data": {"text": TEXT}},
    ]
    Path("ls.json").write_text(json.dumps(tasks))
    read = rows_of("ls.json")
    assert [row["text"] for row in read] == [TEXT, "b", TEXT, TEXT]
    assert [row["spans"] and read_spans(row["spans"], row["text"]) for row in read] == [PEOPLE, None, None, PEOPLE]
    tasks[3]["annotations"][1]["ground_truth"] = False
    Path("ls.json").write_text(json.dumps(tasks))
    with pytest.raises(DataError, match=r"2 annotations differ in spans \(ls.json:4, column 'annotations'\)"):
        rows_of("ls.json")


def write_tasks(results, **more):
    """Write a task per list of results, whose text is Zoe, with other keys of its data."""
    tasks = [
        {"id": number, "annotations": [label_studio(of_task)], "data": {"text": "Zoe", **more}}
        for number, of_task in enumerate(results)
    ]
    Path("ls.json").write_text(json.dumps(tasks))


def region(form="labels", tool="ner", text="text", **value):
    value = {"start": 0, "end": 3, "text": "Zoe", form: ["PER"], **value}
    return {"from_name": tool, "to_name": text, "type": form, "value": value}


def choice(*names, tool="topic", **value):
    return {"from_name": tool, "to_name": "text", "type": "choices", "value": {"choices": [*names], **value}}


@pytest.mark.parametrize("form", ["hypertextlabels", "htmllabels", "paragraphlabels"])
def test_regions_of_other_forms_are_read_by_their_global_offsets_or_refused_by_name(here, form):
    path = {"start": "/p[1]/text()[1]", "end": "/p[1]/text()[1]", "startOffset": 9, "endOffset": 12}
    write_tasks([[region(form, **path, globalOffsets={"start": 0, "end": 3})], [region(form, **path)]])
    read = rows_of("ls.json")
    assert read_spans(read[0]["spans"], "Zoe") == [TextSpan(0, 3, "PER")]
    with pytest.raises(DataError, match=f"span 1, .*{form}.* is not a start, an end and a label"):
        read_spans(read[1]["spans"], "Zoe")


def test_choices_in_label_studio_are_labels(here):
    write_tasks([[choice("news")], [choice("sport")], []])
    assert [row["label"] for row in rows_of("ls.json")] == ["news", "sport", None]
    assert "spans" not in rows_of("ls.json")[0]
    write_tasks([[choice("news", "sport")], [choice("sport")], [region(), choice("news", start=0, end=3)]])
    read = rows_of("ls.json")
    assert [row["label"] for row in read] == [["news", "sport"], ["sport"], []]
    assert [len(row["spans"]) for row in read] == [0, 0, 1]


def test_results_of_several_tools_in_label_studio_are_columns(here):
    write_tasks(
        [[region(), choice("news"), choice("good", tool="tone"), region(tool="parts")], [choice("bad", tool="tone")]]
    )
    read = rows_of("ls.json")
    assert [(row["topic"], row["tone"], len(row["ner"]), len(row["parts"])) for row in read] == [
        ("news", "good", 1, 1),
        (None, "bad", 0, 0),
    ]


def test_regions_of_another_text_in_label_studio_are_counted_and_not_read(here, caplog):
    write_tasks([[region(), region(text="title"), region(text="title")]], title="Zoe")
    with caplog.at_level("INFO", "bertkit"):
        assert len(rows_of("ls.json")[0]["spans"]) == 1
    assert caplog.messages == ["warning: annotations of ls.json that are not read: labels of title (2)"]
    (row,) = rows_of("ls.json", columns={"text": "title"})
    assert (row["title"], len(row["spans"])) == ("Zoe", 2)
