"""An exported folder of each task family predicts without torch what it predicts with it, and what its run predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.families import FAMILIES, canonical_columns, rows_to_predict, same
from tests.runtime.without_torch import bertkit_command, run_process, serve

PRECISE = ["--set", "training.precision=fp32"]
TRAIN = ["--data", "demo", "--limit", 40, "--epochs", 1, "--set", "training.batch_size=8", *PRECISE]
VECTORS = ("similarity", "pairs to find")


def export_family(run, family: str) -> list[dict[str, object]]:
    """Fine-tune the demo model, export it to the folder `exported`, and return rows to predict."""
    recipe, changes = FAMILIES[family]
    sets = [part for change in changes for part in ("--set", change)]
    length = ["--set", "training.max_length=48"]
    ended = run("finetune", recipe, "--model", "demo", *TRAIN, *length, *sets, "--output", "trained")
    assert ended.code == 0, ended.err
    ended = run("export", "trained", "-o", "exported")
    assert ended.code == 0, ended.err
    return rows_to_predict(recipe, changes, Path("rows.jsonl"))


def to_records(lines: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.slow
@pytest.mark.enable_socket
@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_folder_answers_without_torch(family, run):
    rows = export_family(run, family)
    exported, file = Path("exported").resolve(), Path("rows.jsonl").resolve()
    options = [*canonical_columns(rows), *PRECISE, "--threads", 1]
    by_run, by_graph = (run("predict", model, file, *options) for model in ("trained", exported))
    assert (by_run.code, by_graph.code) == (0, 0), by_run.err + by_graph.err
    light = run_process(bertkit_command("predict", exported, file, *options))
    assert light == by_graph.out and len(light.splitlines()) == len(rows)
    tolerance = 1e-3 if family == "late" else 2e-5
    answers = to_records(light)
    for expected, answer in zip(to_records(by_run.out), answers, strict=True):
        assert same(expected, answer, tolerance), (expected, answer)
    with serve(exported) as post:
        served = [post("/v1/models/exported:predict", {"instances": [row]})["predictions"][0] for row in rows]
    for answer, reply in zip(answers, served, strict=True):
        assert same({name: answer[name] for name in reply}, reply, tolerance), (answer, reply)
    if family in VECTORS:
        texts = Path("texts.txt").resolve()
        texts.write_text("".join(f"{row.get('text', row.get('anchor'))}\n" for row in rows))
        arguments = ("embed", texts, "--model", exported, "--threads", 1)
        assert run_process(bertkit_command(*arguments)) == run(*arguments).out
