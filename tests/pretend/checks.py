"""Trainings in a process of its own, on the CPU or on the pretend device, which leave what they have come to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pretend
import torch
from transformers.trainer_callback import CallbackHandler

from bertkit.evaluation.baselines import ScoredBaselines
from bertkit.progress import SILENT
from bertkit.recipe import load_pretrain_recipe, load_recipe
from bertkit.workflows.finetune import finetune, publish, scorer
from bertkit.workflows.pretrain import pretrain


def train(*cases: str) -> None:
    """Train by each case, a line of JSON, and write its log, scores and waits into a file of its name.

    What computes nothing on a device is left out: baselines, reports, and the files of a run.
    """
    scores, steps = {}, []
    begin_step = CallbackHandler.on_step_begin

    def begin(*arguments):
        steps.append([*pretend.waits])  # since the step before
        pretend.waits.clear()
        return begin_step(*arguments)

    CallbackHandler.on_step_begin = begin
    scorer._score_baselines = lambda inputs, setup: ScoredBaselines({}, {}, {inputs.validation.name: {}})
    publish.publish = lambda scorer, run, fit_result, scored, compared: keep(
        {f"{split}_{name}": score for split, each in scored.items() for name, score in each.scores.items()}
    )
    sys.modules["bertkit.workflows.pretrain"].publish = lambda *arguments: keep(arguments[-1].scores)

    def keep(found):
        scores.update(found)
        return []

    for case in map(json.loads, cases):
        scores.clear()
        steps.clear()
        pretend.waits.clear()
        folder = Path(case["recipe"])
        if case["command"] == "finetune":
            finetune(load_recipe(case["recipe"], case["changes"]), output=folder, progress=SILENT)
        else:
            pretrain(load_pretrain_recipe(case["recipe"], case["changes"]), output=folder, progress=SILENT)
        log = folder / "metrics.jsonl"
        entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        Path(f"{case['recipe']}.json").write_text(json.dumps({"log": entries, "scores": scores, "steps": steps}))
