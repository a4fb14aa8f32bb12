"""Diagnose this machine, or the folder of a run: one finding per check, with its figures and a remedy."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from shlex import quote
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from bertkit.checks import Finding, Level
from bertkit.data.checks import format_fraction
from bertkit.errors import (
    BertkitError,
    DivergedError,
    ModelError,
    ResourceError,
    UnavailableError,
    UsageError,
    error_summary,
    install_command,
    shorten,
)
from bertkit.hardware.device import Device, find_device
from bertkit.hardware.process import available_threads, read_memory
from bertkit.metrics.baselines import find_baseline_warning
from bertkit.progress import stage
from bertkit.storage import checkpoints, exports, files, hub, run_sets, runs
from bertkit.storage.cache import cache_folder
from bertkit.storage.fingerprints import is_complete, read_with_checksum
from bertkit.storage.run_list import count_bytes, read_log, read_state
from bertkit.storage.runs import RunRecord
from bertkit.vectors.search import index

MACHINE = "this machine"
_ERRORS: dict[str, type[BertkitError]] = {
    **dict.fromkeys(("packages", "device"), UnavailableError),
    **dict.fromkeys(("memory", "disks"), ResourceError),
    "files": ModelError,
    "training": DivergedError,
}
"""Group of findings -> type of the error that a failed check of the group causes in a run."""
_SHM = Path("/dev/shm")
_GB, _MB = 10**9, 10**6
# BERT base needs 2 GB of memory for its optimizer steps, and up to 4 GB of disk space for its run folder.
_LOW_MEMORY, _MIN_MEMORY = 4 * _GB, _GB
_LOW_SPACE, _MIN_SPACE, _MIN_FILES = 5 * _GB, 200 * _MB, 1000
# Docker's default is 64 MiB; loader processes pass batches through shared memory.
_MIN_SHM = 100 * _MB
_MAX_SYNC_SECONDS = 0.5  # per file; a checkpoint has a dozen files
_HUB_TIMEOUT = 3.0  # seconds
_MATRIX_SIZE = 64
_MAX_TRUNCATED = 0.01  # fraction of the rows

# Limits for the curves of a training. Most are fractions of the first loss, because the scale of a loss depends on the
# task: about 0.7 for two labels, about 10 for the tokens of a vocabulary.
_MIN_LINES, _NUM_PARTS = 15, 5  # log lines, and parts of them whose mean losses are compared
_TINY_RATE = 1e-6  # a lower learning rate cannot make the loss rise
_FLAT = 0.8  # a training loss that ends above this fraction of the first loss has barely fallen
_MIN_RISE, _MIN_PEAK, _MIN_EVAL_RISE = 0.1, 0.05, 0.05  # fractions of the first loss
_MAX_GENERALIZATION = 0.1  # fraction of the lowest validation loss; a larger rise is overfitting
_LATE_STEP = 2 / 3  # fraction of all steps; if the best step is earlier, the later steps were wasted
_MIN_LAST_FALL = (
    0.1  # fraction of the first loss; after a larger last fall of the validation loss, more steps would help
)


@dataclass(frozen=True)
class Diagnosis:
    """Findings about the machine or a folder."""

    subject: str
    """`MACHINE`, or the folder that was examined."""
    findings: list[Finding]

    @property
    def error(self) -> BertkitError | None:
        """Error that the first fault would cause in a run, or None if nothing would stop a run."""
        faults = [finding for finding in self.findings if finding.level == "fail"]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return _ERRORS.get(faults[0].group, BertkitError)(f"{faults[0].text}{more}") if faults else None


def judge(group: str, name: str, text: str, *, warn: str = "", fail: str = "") -> Finding:
    """Return a finding and its level: with `fail`, it would stop a run; with `warn`, it is doubtful.

    Both are remedies, which the text of the finding ends with.

    >>> judge("disks", "space", "3 MB are free", fail="free some space").text
    '3 MB are free - free some space'
    """
    remedy = fail or warn
    level: Level = "fail" if fail else "warn" if warn else "good"
    return Finding(level, group, name, f"{text} - {remedy}" if remedy else text)


def examine_machine() -> list[Finding]:
    """Check everything that a run needs. Checks after a fault still run."""
    findings = list[Finding]()
    for check in (check_packages, check_device, check_memory, check_disks, check_hub):
        with stage(check.__name__.replace("_", " ").replace("check", "checking"), total=1):
            findings += check()
    return findings


def check_packages() -> Iterator[Finding]:
    """Compare the installed versions of packages with the versions that bertkit requires."""
    from packaging.requirements import Requirement

    problems = list[str]()
    # The copy of bertkit in a package has no metadata, because it is not installed.
    distributions = metadata.distributions(name="bertkit")
    for package in [Requirement(text) for distribution in distributions for text in distribution.requires or ()]:
        # A marker such as `extra == "serve"` is false without the extra.
        if not package.marker or package.marker.evaluate({"extra": ""}):
            version = _find_version(package.name)
            if version is None or not package.specifier.contains(version, prereleases=True):
                problems.append(f"bertkit requires {package.name}{package.specifier}, installed is {version or 'none'}")
    text = "; ".join(problems) or ", ".join(f"{name} {version}" for name, version in runs.versions().items())
    yield judge("packages", "versions", text, fail=install_command() if problems else "")


def _find_version(package: str) -> str | None:
    return next((distribution.version for distribution in metadata.distributions(name=package)), None)


def check_device() -> Iterator[Finding]:
    """Multiply small matrices on the device of a run, compute the gradient, and time the precisions."""
    from bertkit.hardware.precision import detect_hardware

    try:
        device = find_device()
        is_right = _can_multiply(device)
    except (UnavailableError, RuntimeError) as error:  # RuntimeError comes from a driver or a missing kernel.
        yield judge("device", "device", error_summary(error), fail="--device cpu computes without it")
        return
    memory = f", {device.memory / _GB:,.1f} GB" if device.memory else ""
    text = f"{device.name}{memory}: a matrix product and its gradient are {'correct' if is_right else 'wrong'}"
    yield judge("device", "device", text, fail="" if is_right else "--device cpu computes without it")
    yield judge("device", "precision", f"for the sizes of BERT base, {detect_hardware('auto').reason}")


def _can_multiply(device: Device) -> bool:
    """Return whether a product of two matrices and its gradient are correct."""
    import torch

    # All values are 128: a value of the product sums 64 times 1 * 2, a value of the gradient a row of 64 twos.
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE, device=device.type, requires_grad=True)
    product = matrix @ torch.full((_MATRIX_SIZE, _MATRIX_SIZE), 2.0, device=device.type)
    gradient = torch.autograd.grad(product.sum(), matrix)[0]
    return all(bool((values == 2 * _MATRIX_SIZE).all()) for values in (product, gradient))


def check_memory() -> Iterator[Finding]:
    """Check the memory and the processors that this process can use.

    Control groups (containers) and affinity can restrict a process to a part of the machine.
    """
    if memory := read_memory():
        total_bytes, free_bytes = memory
        remedy = "end other programs, raise the container's limit, or use a smaller model or --batch-size"
        fail, warn = (remedy if free_bytes < minimum else "" for minimum in (_MIN_MEMORY, _LOW_MEMORY))
        text = f"{free_bytes / _GB:,.1f} of {total_bytes / _GB:,.1f} GB are free"
        yield judge("memory", "memory", text, fail=fail, warn=warn)
    threads = available_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    limit = f" ({threads.reason})" if threads.reason else ""
    text = f"{threads.text}{limit}; load average of the last minute: {load:.1f}"
    remedy = "wait until other programs end" if load > (os.cpu_count() or 1) + 1 else ""
    yield judge("memory", "processors", text, warn=remedy)


def check_disks() -> Iterator[Finding]:
    """Write, sync and lock a file in the cache and in the working folder, and read the free space."""
    cache = cache_folder("")
    for name, folder in (("cache", cache), ("working folder", Path.cwd())):
        yield from _check_folder(name, folder)
    if _SHM.is_dir() and (free_bytes := files.free_space(_SHM)[0]) is not None:
        remedy = "docker run --shm-size=1g" if free_bytes < _MIN_SHM else ""
        yield judge("disks", "shared memory", f"{_SHM}: {free_bytes / _MB:,.0f} MB are free", warn=remedy)
    yield judge("disks", "cache size", f"cache {cache}: {count_bytes(cache) / _MB:,.0f} MB, which may be deleted")


def _check_folder(name: str, folder: Path) -> Iterator[Finding]:
    """Check that a folder has free space, that files can be written and locked in it, and that this is fast."""
    label, (free_bytes, inodes) = f"{name} {folder}", files.free_space(folder)
    if free_bytes is not None:
        is_full = free_bytes < _MIN_SPACE or (inodes is not None and inodes < _MIN_FILES)
        remedy = "delete files" if is_full or free_bytes < _LOW_SPACE else ""
        more = "any number of" if inodes is None else f"{inodes:,}"
        text = f"{label}: {free_bytes / _GB:,.1f} GB are free, and {more} files can be created"
        yield judge("disks", f"space of the {name}", text, fail=remedy if is_full else "", warn=remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        seconds, has_locks = _try_folder(folder)
    except OSError as error:
        remedy = files.REMEDIES.get(error.errno or 0, "use another folder (BERTKIT_CACHE, --output)")
        text = f"{label}: a file cannot be written: {error.strerror}"
        yield judge("disks", f"writing to the {name}", text, fail=remedy)
        return
    text = f"{label}: {'locks' if has_locks else 'no locks'}, and a file is on disk in {1000 * seconds:,.1f} ms"
    remedy = "use a local disk" if seconds > _MAX_SYNC_SECONDS else ""
    remedy = remedy if has_locks else "use a local disk, or start no two commands at once that write there"
    yield judge("disks", f"writing to the {name}", text, warn=remedy)


def _try_folder(folder: Path) -> tuple[float, bool]:
    """Return the seconds until a file of a mebibyte is on disk, and whether the file system has locks."""
    with TemporaryDirectory(prefix=".bertkit-doctor-", dir=folder) as temporary:
        lock = Path(temporary, ".lock")
        with files.hold_lock(lock):
            start = time.perf_counter()
            files.write_bytes(Path(temporary, "file"), bytes(1 << 20))
            return time.perf_counter() - start, not files.get_lock_mark(lock).exists()


def check_hub() -> Iterator[Finding]:
    """Send the Hub a request unless offline mode is set, and look for a token without printing it."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import get_session

    text, remedy = f"{constants.ENDPOINT} answers", ""
    if hub.is_offline_by_choice():
        text, remedy = "HF_HUB_OFFLINE is set", "unset it to download missing files"
    else:
        try:
            with hub.hub_errors():
                get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT)
        except BertkitError as error:
            text = f"{constants.ENDPOINT}: {error.message}"
            remedy = "check network, proxy and HF_ENDPOINT, or work offline"
    yield judge("hub", "hub", text, warn=remedy)
    yield judge("hub", "token", "a token is set" if get_token() else "no token, which public models do not need")


def examine_folder(folder: Path) -> list[Finding]:
    """Check the files of a run, a folder of runs, an index, an exported folder or a package; nothing is recomputed.

    Raises:
        UsageError: If the folder has another content, or is a file.
    """
    # 1. Reject other paths.
    if folder.is_file():
        remedy = f"name the folder of a run, or check rows: `bertkit check RECIPE --data {quote(str(folder))}`"
        raise UsageError("a file, not a folder", remedy, file=folder)
    if not folder.is_dir():
        raise UsageError("no such folder", "`bertkit runs list` shows the runs", file=folder)

    # 2. Check a run, or each run of a folder; in a folder, findings start with the name of the run.
    if (folder / runs.RECORD).is_file():
        return _examine_run(folder)
    if run_folders := sorted(file.parent for file in folder.glob(f"*/{runs.RECORD}")):
        findings = list[Finding]()
        for name in (run_sets.SEEDS, run_sets.SWEEP, run_sets.SPACE):
            error = ModelError("it is damaged", "repeat the command that wrote it", file=folder / name)
            findings += _find_fault(read_with_checksum, folder / name, error)
        for run in run_folders:
            findings += [replace(finding, text=f"{run.name}: {finding.text}") for finding in _examine_run(run)]
        return findings

    # 3. Check the checksums of an exported model, of a package (its model is in `model`), or of an index.
    export_folders = [part for part in (folder, folder / "model") if exports.is_exported(part)]
    if export_folders:
        faults = [*_find_fault(exports.check_export, export_folders[0])]
    elif (folder / index.MANIFEST).is_file():
        faults = [*_find_fault(partial(index.Index.open, verify=True), folder)]
    else:
        message = "not a run, nor a folder of runs, an index, an exported folder or a package"
        raise UsageError(message, "`bertkit runs list` shows the runs", file=folder)
    return faults or [judge("files", "healthy", "nothing is wrong: every file is intact")]


def _find_fault(check: Callable[..., object], *arguments: object) -> Iterator[Finding]:
    """Call a check of files. If it raises an error, yield the error as a finding."""
    try:
        check(*arguments)
    except BertkitError as error:
        yield judge("files", "damaged_file", f"{error.message} ({error.file})", fail=error.remedy)


def _examine_run(folder: Path) -> list[Finding]:
    """Check whether the files of a run are intact, whether it is finished, and what its log and scores show."""
    # 1. Check the files and the state. An unfinished run has no scores to check.
    try:
        record = runs.read_record(folder) or {}
        state = read_state(folder, record)
    except BertkitError as error:
        return [judge("files", "damaged_file", f"{error.message} ({error.file})", fail=error.remedy)]
    findings = [*_find_damage(folder, record)]
    if state != "finished":
        return [*findings, _describe_state(folder, record, state)]

    # 2. Check the scores and the curves. A flat loss is a fault only if the scores are not above the baselines either.
    log = read_log(folder)
    doubts = [*_judge_baselines(record), *_find_single_answer(folder, record)]
    findings += judge_curve(log, record.get("best_step", 0), has_learned=not doubts)
    findings += [*doubts, *_judge_truncation(record)]
    if findings:
        return findings

    # 3. Without findings, report the figures that a reader would check.
    losses = [entry["loss"] for entry in log if "loss" in entry]
    curve = [f"the training loss falls from {losses[0]:.4g} to {losses[-1]:.4g}"] if len(losses) > 1 else []
    figures = ", ".join([f"{len(record.get('files', ()))} files are intact", *curve])
    return [judge("training", "healthy", f"nothing is wrong: {figures}")]


def _find_damage(folder: Path, record: RunRecord) -> Iterator[Finding]:
    """Compare models, predictions and checkpoints with their checksums."""
    remedy = f"restore it, or train again: {record.get('command', 'the same command')} --restart"
    for name, entry in {**record.get("files", {}), **record.get("predictions", {})}.items():
        # Published runs may lack the digests of training rows.
        if name != runs.TRAINING_ROWS or (folder / name).exists():
            yield from _find_fault(exports.compare_files, folder, {name: entry}, remedy)
    for checkpoint in sorted(folder.glob("checkpoint-*")):
        if defect := checkpoints.find_defect(checkpoint):
            yield judge("files", "damaged_checkpoint", f"{checkpoint}: {defect}", warn="delete it; resumes skip it")


def _describe_state(folder: Path, record: RunRecord, state: str) -> Finding:
    """Describe a run that is not finished, and how to continue it."""
    checkpoint, _ = checkpoints.get_last_checkpoint(folder)
    progress = f"its last complete checkpoint is {checkpoint.name}" if checkpoint else "it has no complete checkpoint"
    if state in ("running", "stopped"):
        text = f"{'it is running' if state == 'running' else 'it was stopped'}, and {progress}"
        return judge("training", state, text, warn=f"resume it: {record.get('command')}" if state == "stopped" else "")
    # The record has the error as it was printed: "message - remedy".
    message, _, remedy = str(record.get("error", "no reason is recorded")).partition(" - ")
    remedy = remedy or f"repeat it: {record.get('command')}"
    return judge("training" if state == "diverged" else "files", state, f"it {state}: {message}", fail=remedy)


def _judge_baselines(record: RunRecord) -> Iterator[Finding]:
    """Yield a finding, in the words of the report, for each split whose score is not clearly above its baselines."""
    for result in record.get("results", []):
        if result.get("lead") and not result["lead"]["is_clear"]:
            yield Finding("warn", "scores", "no_better_than_baseline", f"{result['split']}: {result['warnings'][-1]}")
    # A pretraining run has one result, with the scores of held-out text.
    result = record.get("result", {})
    if unbeaten := find_baseline_warning(result.get("scores", {}), result.get("baselines", {}), "perplexity"):
        yield judge("scores", "no_better_than_baseline", unbeaten, warn="train longer, or on more text")


def _find_single_answer(folder: Path, record: RunRecord) -> Iterator[Finding]:
    """Yield a finding for each split whose predictions are one label, one answer, or one tag for all words."""
    for name, entry in record.get("predictions", {}).items():
        # Damaged files have a finding already.
        if not name.endswith(".jsonl") or not is_complete(folder / name, entry):
            continue
        lines = files.split_lines((folder / name).read_text(encoding="utf-8"))
        predicted = [json.loads(line).get("prediction") for line in lines]
        answers = {json.dumps(part) for value in predicted for part in (value if isinstance(value, list) else [value])}
        if len(answers) < 2 < len(lines):
            text = f"all {len(lines):,} predictions of {name} are {shorten(next(iter(answers), 'empty'), 40)}"
            yield judge("scores", "single_answer", text, warn=f"`bertkit errors {quote(str(folder))}` shows the rows")


def _judge_truncation(record: RunRecord) -> Iterator[Finding]:
    """Yield a finding if many training rows are truncated, or many validation rows lose their gold values."""
    truncated, rows = record.get("truncated", {}), record.get("rows", {})
    max_tokens = truncated.get("max_tokens", 0)
    for name, split in (("training_rows", "train"), ("lost_gold", "validation")):
        verb = "reach" if split == "train" else "have gold values beyond"
        count, total = truncated.get(name, 0), rows.get(split)
        if total and count > _MAX_TRUNCATED * total:
            text = f"{format_fraction(count, total)} {split} rows {verb} the maximum of {max_tokens} tokens"
            remedy = f"use --max-length {2 * max_tokens}, if the model reads that many"
            yield judge("tokens", f"truncated_{name}", text, warn=remedy)


def judge_curve(log: Sequence[Mapping[str, Any]], best_step: int, *, has_learned: bool) -> list[Finding]:
    """Judge the learning rate and the number of steps by the log of a training.

    Args:
        log: Lines of `metrics.jsonl`.
        best_step: Step of the best checkpoint.
        has_learned: Whether the model is clearly above its baselines, so that a flat loss is not a fault.
    """
    # Each line has either a training loss or the scores of an evaluation.
    losses = [entry for entry in log if isinstance(entry.get("loss"), float) and "step" in entry]
    evaluations = [entry for entry in log if isinstance(entry.get("eval_loss"), float) and "step" in entry]
    highest_rate = max((entry.get("learning_rate", 0.0) for entry in losses), default=0.0)
    # A trend needs some log lines. With a tiny rate, fewer are enough, because only a flat loss is a finding.
    if len(losses) < (_NUM_PARTS if 0 < highest_rate < _TINY_RATE else _MIN_LINES):
        return []
    findings = [*_judge_rate(losses, highest_rate, has_learned=has_learned)]
    return findings or [*_judge_length(losses, evaluations, best_step)]


def _judge_rate(losses: Sequence[Mapping[str, Any]], rate: float, *, has_learned: bool) -> Iterator[Finding]:
    """Yield a finding if the losses indicate a learning rate that is too high or too low.

    If the training loss rises, the rate is too high; if it barely falls and does not rise, the rate is too low
    (Goodfellow et al. 2016, "Deep Learning", section 11.4.1). The log is compared as mean losses of five parts, because
    the losses of single lines depend on their rows.
    """
    values = [entry["loss"] for entry in losses]
    bounds = [part * len(values) // _NUM_PARTS for part in range(_NUM_PARTS + 1)]
    means = [fmean(values[start:stop]) for start, stop in pairwise(bounds)]
    first, highest, last, lowest = values[0], max(values), means[-1], min(means)
    has_risen = last - lowest > _MIN_RISE * first
    is_flat = last > _FLAT * first and not has_learned
    # With too high a rate, the loss can also rise at first and then return to its start: a peak in the middle.
    if not 0 < rate < _TINY_RATE and (has_risen or (is_flat and highest - first > _MIN_PEAK * first)):
        start, end = (lowest, last) if has_risen else (first, highest)
        text = f"the training loss rises from {start:.4g} to {end:.4g}: the learning rate of {rate:.2g} may be too high"
        yield judge("training", "high_learning_rate", text, warn=f"use --learning-rate {rate / 10:.1g}")
    elif is_flat:
        text = f"the training loss goes from {first:.4g} to {last:.4g}: the learning rate of {rate:.2g} may be too low"
        remedy = f"use --learning-rate {max(10 * rate, 1e-5):.1g}, or more steps"
        yield judge("training", "low_learning_rate", text, warn=remedy)


def _judge_length(
    losses: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], best_step: int
) -> Iterator[Finding]:
    """Yield a finding if a model overfits and its best step came early, or if training ended too early.

    The model overfits if the training loss falls and the validation loss ends 10% above its minimum: the generalization
    loss of Prechelt 1998, "Early Stopping - But When?". If a metric such as accuracy rises along with the validation
    loss, the best step is late, and no step was wasted.
    """
    if len(evaluations) < 2:
        return
    lowest = min(evaluations, key=lambda evaluation: evaluation["eval_loss"])
    previous_loss, eval_loss = (evaluation["eval_loss"] for evaluation in evaluations[-2:])
    last_step, first_loss, last_loss = evaluations[-1]["step"], losses[0]["loss"], losses[-1]["loss"]
    # Take the training loss at the lowest validation loss: if it rises from there too, the model does not overfit.
    train_losses = [entry["loss"] for entry in losses if entry["step"] <= lowest["step"]] or [first_loss]
    min_rise = max(_MAX_GENERALIZATION * lowest["eval_loss"], _MIN_EVAL_RISE * first_loss)
    is_overfit = eval_loss - lowest["eval_loss"] > min_rise and last_loss < train_losses[-1]
    if is_overfit and best_step <= _LATE_STEP * last_step:
        text = f"overfitting since epoch {lowest.get('epoch', 0):.3g}: the validation loss rises from "
        text += f"{lowest['eval_loss']:.4g} to {eval_loss:.4g}, the training loss falls from {train_losses[-1]:.4g} to "
        text += f"{last_loss:.4g}, and the best step is {best_step:,} of {last_step:,}"
        yield judge("training", "overfitting", text, warn=f"more rows, or --set training.steps={best_step}")
    elif best_step >= last_step and previous_loss - eval_loss > _MIN_LAST_FALL * first_loss:
        text = "the best checkpoint is the last one, and the validation loss was still falling: "
        text += f"from {previous_loss:.4g} to {eval_loss:.4g}"
        yield judge("training", "best_is_last", text, warn=f"train longer: --set training.steps={2 * last_step}")
