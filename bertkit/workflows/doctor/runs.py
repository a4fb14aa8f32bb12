"""Read the folder of a run, or of several, and say what went wrong or could be better; nothing is computed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from bertkit.checks import Finding
from bertkit.data.checks import share_of
from bertkit.errors import BertkitError, ModelError, UsageError, shorten
from bertkit.metrics.baselines import find_unbeaten
from bertkit.storage import checkpoints, exports, runs, seeds, sweeps
from bertkit.storage.files import split_lines
from bertkit.storage.fingerprints import is_whole
from bertkit.storage.records import RunRecord, read_signed
from bertkit.storage.summaries import read_log, read_state, summarize
from bertkit.vectors.search import manifest
from bertkit.workflows.doctor import judge
from bertkit.workflows.doctor.curve import judge_curve

_MUCH = 0.5  # of the time of training
_TRUNCATED = 0.01  # of the rows


def examine_folder(folder: Path) -> list[Finding]:
    """Look at a run, a folder of several, an index, an exported folder or a package.

    Raises:
        UsageError: it is none of these.
    """
    if folder.is_file():
        remedy = f"name the folder of a run; of rows, run `bertkit check RECIPE --data {quote(str(folder))}`"
        raise UsageError("a file, not a folder", remedy, file=folder)
    if not folder.is_dir():
        raise UsageError("no such folder", "`bertkit runs list` shows the runs", file=folder)
    if (folder / runs.RECORD).is_file():
        return _examine_run(folder)
    if parts := sorted(file.parent for file in folder.glob(f"*/{runs.RECORD}")):
        of_parts = ((part.name, finding) for part in parts for finding in _examine_run(part))
        named = [replace(finding, text=f"{name}: {finding.text}") for name, finding in of_parts]
        return [*_examine_several(folder, parts), *named]
    # alone, or in a package
    exported = [folder / exports.MANIFEST, *sorted(folder.glob(f"*/model/{exports.MANIFEST}"))]
    if exported[-1].is_file():
        faults = [*_find_fault(exports.check_export, exported[-1].parent)]
    elif (folder / manifest.MANIFEST).is_file():
        faults = [*_find_fault(partial(manifest.read_manifest, verify=True), folder)]
    else:
        what = "not a run, nor a folder of runs, an index, an exported folder or a package"
        raise UsageError(what, "`bertkit runs list` shows the runs", file=folder)
    return faults or [judge("files", "healthy", "nothing is wrong: every file is whole")]


def _find_fault(check: Callable[..., object], *arguments: object) -> Iterator[Finding]:
    """Say what a check of files finds, if anything: it raises an error for the first that is damaged."""
    try:
        check(*arguments)
    except BertkitError as error:
        yield judge("files", "damaged_file", f"{error.what} ({error.file})", fail=error.remedy)


def _examine_several(folder: Path, parts: Sequence[Path]) -> Iterator[Finding]:
    """Check the summary of several runs, and say so where seeds are further apart than rows by chance."""
    for name in (seeds.SUMMARY, sweeps.SUMMARY, sweeps.SPACE):
        damaged = ModelError("it is damaged", "repeat the command that wrote it", file=folder / name)
        yield from _find_fault(read_signed, folder / name, damaged)
    if seeds.is_seeds_folder(folder):
        scored = sorted((run.interval, run) for run in filter(None, map(summarize, parts)) if run.interval)
        if scored and scored[0][0][1] < scored[-1][0][0]:
            ends = [f"{Path(run.folder).name} has {run.metric} {run.score:.4f}" for _, run in (scored[0], scored[-1])]
            text = f"seeds are far apart: {' and '.join(ends)}, and their intervals do not meet"
            remedy = f"`bertkit runs table {quote(str(folder))}`; a smaller --learning-rate or longer warm-up helps"
            yield judge("scores", "seeds_apart", text, warn=remedy)


def _list_scores(record: RunRecord) -> list[tuple[str, Sequence[float]]]:
    """Return the score that chooses on each split of a run, as a text, and its interval, empty where there is none."""
    scores = []
    for result in record.get("results", []):
        recipe, results = record.get("identity", {}).get("recipe", {}), result.get("scores", {})
        metric = recipe.get("best_metric") or next(iter(results), "")
        interval, value = (result.get("intervals") or {}).get(metric) or (), results.get(metric)
        ends = f" (95% CI {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
        shown = "undefined" if value is None else f"{value:.4f}"
        scores.append((f"{result['split']}: {metric} {shown}{ends}", interval))
    return scores


def _examine_run(folder: Path) -> list[Finding]:
    """Read a run: first whether it is whole and finished, then what it learned and how."""
    try:
        record = runs.read_record(folder) or {}
        state = read_state(folder, record)
    except BertkitError as error:
        return [judge("files", "damaged_file", f"{error.what} ({error.file})", fail=error.remedy)]
    findings = [*_find_damage(folder, record)]
    if state != "finished":
        return [*findings, _describe_state(folder, record, state)]
    log = read_log(folder)
    doubts = [*_judge_baselines(record), *_find_single_answer(folder, record), *_find_gaps(record)]
    findings += judge_curve(log, record.get("best_step", 0), has_learned=not doubts)
    findings += [*doubts, *_judge_truncation(record), *_judge_times(record)]
    if findings:
        return findings
    losses = [entry["loss"] for entry in log if "loss" in entry]
    curve = [f"the training loss falls from {losses[0]:.4g} to {losses[-1]:.4g}"] if len(losses) > 1 else []
    shown = [text for text, _ in _list_scores(record)]
    whole = f"{len(record.get('files', ()))} files are whole"
    return [judge("training", "healthy", f"nothing is wrong: {', '.join([whole, *curve, *shown])}")]


def _find_damage(folder: Path, record: RunRecord) -> Iterator[Finding]:
    """Compare files with their checksums: those of the models, the predictions, and the checkpoints."""
    again = f"restore it, or train again: {record.get('command', 'the same command')} --fresh"
    for name, entry in {**record.get("files", {}), **record.get("predictions", {})}.items():
        # which may be left out of what is published
        if name != runs.TRAINING_ROWS or (folder / name).exists():
            yield from _find_fault(exports.compare_files, folder, {name: entry}, again)
    for checkpoint in sorted(folder.glob("checkpoint-*")):
        if fault := checkpoints.find_fault(checkpoint):
            yield judge("files", "damaged_checkpoint", f"{checkpoint}: {fault}", warn="delete it: a resume skips it")


def _describe_state(folder: Path, record: RunRecord, state: str) -> Finding:
    """Describe a run that is not finished, and what goes on with it."""
    newest, _ = checkpoints.newest_whole(folder)
    kept = f"its newest whole checkpoint is {newest.name}" if newest else "it has no whole checkpoint"
    if state in ("running", "stopped"):
        text = f"{'it is running' if state == 'running' else 'it was stopped'}, and {kept}"
        return judge("training", state, text, warn=f"resume it: {record.get('command')}" if state == "stopped" else "")
    what, _, remedy = str(record.get("error", "no reason is recorded")).partition(" - ")
    remedy = remedy or f"repeat it: {record.get('command')}"
    return judge("training" if state == "diverged" else "files", state, f"it {state}: {what}", fail=remedy)


def _judge_baselines(record: RunRecord) -> Iterator[Finding]:
    """Say so where a model is not clearly above its baselines, in the words of its own report."""
    for result in record.get("results", []):
        if result.get("lead") and not result["lead"]["is_clear"]:
            yield Finding("warn", "scores", "no_better_than_baseline", f"{result['split']}: {result['warnings'][-1]}")
    result = record.get("result", {})
    if unbeaten := find_unbeaten(result.get("scores", {}), result.get("baselines", {}), "perplexity"):
        yield judge("scores", "no_better_than_baseline", unbeaten, warn="train longer, or on more text")


def _find_single_answer(folder: Path, record: RunRecord) -> Iterator[Finding]:
    """Say so where all stored predictions of a split are one label, or one answer; of tags, where all of these are."""
    for name, entry in record.get("predictions", {}).items():
        if not name.endswith(".jsonl") or not is_whole(folder / name, entry):  # which is said
            continue
        lines = split_lines((folder / name).read_text(encoding="utf-8"))
        predicted = [json.loads(line).get("prediction") for line in lines]
        answers = {json.dumps(part) for value in predicted for part in (value if isinstance(value, list) else [value])}
        if len(answers) < 2 < len(lines):
            text = f"all {len(lines):,} predictions of {name} are {shorten(next(iter(answers), 'empty'), 40)}"
            yield judge("scores", "single_answer", text, warn=f"`bertkit errors {quote(str(folder))}` shows the rows")


def _find_gaps(record: RunRecord) -> Iterator[Finding]:
    """Say so where another split scores otherwise than the one that chose the best step, by more than chance."""
    scores = _list_scores(record)
    for text, interval in scores[1:]:
        both = (interval, scores[0][1])
        if all(both) and max(low for low, _ in both) > min(high for _, high in both):
            text = f"{scores[0][0]}, by which the best step was chosen; {text}"
            yield judge("scores", "splits_apart", text, warn="`bertkit check RECIPE` says how the splits differ")


def _judge_truncation(record: RunRecord) -> Iterator[Finding]:
    """Say how many rows the maximum length has shortened, and how many gold values lie beyond it."""
    truncated, rows = record.get("truncated", {}), record.get("rows", {})
    longest = truncated.get("max_tokens", 0)
    for name, split in (("training_rows", "train"), ("lost_gold", "validation")):
        what = "reach" if split == "train" else "have gold values beyond"
        count, total = truncated.get(name, 0), rows.get(split)
        if total and count > _TRUNCATED * total:
            text = f"{share_of(count, total)} {split} rows {what} {longest} tokens, where texts are truncated"
            remedy = f"--max-length {2 * longest}, if the model reads that"
            yield judge("tokens", f"truncated_{name}", text, warn=remedy)


def _judge_times(record: RunRecord) -> Iterator[Finding]:
    """Say so where training had no batch, or no core, for most of its time."""
    times = record.get("step_times") or {}
    seconds, waiting = times.get("seconds", 0.0), times.get("waiting_share", 0.0)
    if seconds and times.get("loading_seconds", 0.0) > _MUCH * seconds:
        text = f"training waited for batches for {times['loading_seconds']:,.1f} of {seconds:,.1f} s"
        yield judge("time", "loading", text, warn="a local disk, or in pretraining --set training.workers=2")
    if waiting > _MUCH:
        text = f"threads waited for a core for {waiting:.0%} of the time: other processes used the CPU"
        yield judge("time", "waiting", text, warn="run it on an idle machine")
