"""Make a folder of a model that predicts, or that serves it as an image does, without torch and transformers."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.evaluation.checkpoint import SavedCheckpoint, open_checkpoint, open_trained
from bertkit.evaluation.parity import Parity
from bertkit.hardware.device import on_cpu
from bertkit.progress import Progress, stage, takes_progress
from bertkit.recipe import typed_path
from bertkit.storage.exports import is_exported, read_export
from bertkit.storage.files import disk_errors
from bertkit.storage.outputs import building, refuse_existing
from bertkit.workflows.export import export, find_license
from bertkit.workflows.package.cold_start import ColdStart, measure_cold_start
from bertkit.workflows.package.folder import (
    PackageFacts,
    check_name,
    copy_code,
    copy_server,
    makes_vectors,
    requirements_of,
    with_serving,
    write_code,
    write_model,
    write_supporting_files,
)
from bertkit.workflows.package.wheel import check_version, write_wheel
from bertkit.workflows.serve import check_packages


@dataclass(frozen=True)
class PackageResult:
    """What was packaged."""

    model: str
    folder: str
    name: str
    """Name of the module that is imported, or of the model that is served."""
    recipe: str
    backend: str
    precision: str
    bytes: int
    """Size of the folder, without the wheel."""
    lines: int
    """Lines of code."""
    requirements: tuple[str, ...]
    wheel: str | None
    cold_start: ColdStart | None
    """None where the model cannot answer a made-up row."""
    parity: Parity | None
    """How the graph compares with the run; None of an exported folder, which has its own."""
    notes: list[str]


@on_cpu()
@takes_progress
def package(
    model: str | Path,
    output: str | Path,
    *,
    to: str | None = None,
    recipe: str | None = None,
    name: str | None = None,
    wheel: str | None = None,
    progress: Progress | None = None,
) -> PackageResult:
    """Package a run, a fine-tuned checkpoint or an exported folder, and have the package answer a row.

    The folder appears when it is whole and has answered.

    Args:
        model: run folder, a checkpoint of a run, any fine-tuned checkpoint, or an exported folder.
        output: the folder to write, which must not exist.
        to: ``onnx`` (the default) or ``openvino``; of an exported folder, what it was exported to.
        recipe: of a checkpoint that is not of a run.
        name: of the module; the name of the model with ``_model`` after it by default.
        wheel: version of a wheel to be written too.
        progress: shows how far the work is; by default bars, in notebooks only.

    Raises:
        ModelError: the task family needs what packages do not have.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    folder = typed_path(output)
    refuse_existing(folder)
    if wheel is not None:
        check_version(wheel)
    module = f"{_word_of(str(model), folder)}_model" if name is None else name
    check_name(module)
    with _exported(model, module, to, recipe) as (facts, saved, parity):
        return _write_package(folder, replace(facts, wheel=wheel), saved, parity)


@on_cpu()
def package_server(
    model: str | Path, output: str | Path, *, to: str | None = None, recipe: str | None = None, name: str | None = None
) -> PackageResult:
    """Write what an image that serves a model is built from, and have the server answer a row.

    Arguments and errors are those of `package`; `name` is that of the model, which is in addresses.
    """
    folder = typed_path(output)
    refuse_existing(folder)
    check_packages()
    if name is not None:
        check_name(name)
    with _exported(model, name or _word_of(str(model), folder), to, recipe) as (facts, saved, parity):
        return _write_package(folder, with_serving(facts), saved, parity)


@contextmanager
def _exported(
    model: str | Path, name: str, to: str | None, recipe: str | None
) -> Iterator[tuple[PackageFacts, SavedCheckpoint, Parity | None]]:
    """Yield the facts of a package, the exported folder that it is made of, and how that compares with its run."""
    # What cannot be packaged is refused before it is exported, which takes much longer.
    saved, parity = open_trained(str(model), recipe), None
    if saved.recipe.options.get("word_split") == "subwords":
        raise ModelError("packages do not split texts into subwords", "use `bertkit export` and `bertkit predict`")
    source, is_graph = saved.folder, is_exported(saved.folder)
    if is_graph:
        backend = read_export(source).backend
        if to is not None and to != backend:
            what = f"--to {to}, and the model is exported to {backend} already"
            raise UsageError(what, "leave it out, or name the run that it was exported from", file=source)
    else:
        refuse_family(saved)
    # A package runs a graph: a checkpoint is exported first, into a folder that is gone afterwards.
    with tempfile.TemporaryDirectory() as staging:
        if not is_graph:
            exported = Path(staging) / "exported"
            parity = export(model, exported, to=to or "onnx", recipe=recipe).parity
            saved = open_checkpoint(saved.recipe, saved.task, exported)
        described = read_export(saved.folder)
        facts = replace(
            _facts(name, saved, described.backend, saved.example_row()),
            title=re.sub(r"[^\w.-]", "_", source.resolve().name),  # it is a part of Markdown
            precision=described.precision,
            license=find_license(source),
            embeds=makes_vectors(saved.folder),
        )
        yield facts, saved, parity


def refuse_family(saved: SavedCheckpoint) -> None:
    """Check that the predictions of a checkpoint can be packaged, before anything is exported.

    Raises:
        ModelError: they need what packages do not have.
    """
    copy_code(_facts("probe", saved, "onnx", {}), saved.task)


def _facts(name: str, saved: SavedCheckpoint, backend: str, row: Mapping[str, Any]) -> PackageFacts:
    return PackageFacts(name, saved.recipe.name, saved.recipe.task, backend, "fp32", requirements_of(backend), row)


def _write_package(folder: Path, facts: PackageFacts, saved: SavedCheckpoint, parity: Parity | None) -> PackageResult:
    checkpoint = saved.load()
    # The code is found before anything is written: it names what the package cannot have.
    code, notes = copy_code(facts, saved.task), list[str]()
    start = None
    with disk_errors(folder.parent), building(folder) as target:
        if facts.serves:
            copy_server(target, facts.name, saved.folder)
        else:
            write_code(target / facts.name, code)
            write_model(target / facts.name / "model", saved.folder, checkpoint)
        # The package answers a row in a process of its own, before it counts as written: a missing import ends here.
        with stage("starting the package"):
            try:
                start = measure_cold_start(target, facts.name, facts.example, serves=facts.serves)
                facts = replace(facts, answer=json.dumps({**facts.example, **start.answer}, ensure_ascii=False))
            except DataError as error:
                notes.append(f"No cold start: the model cannot answer a made-up row ({error.what}).")
        write_supporting_files(target, facts)
        size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        lines = sum(file.read_bytes().count(b"\n") for file in target.rglob("*.py"))
        file = None if facts.wheel is None else write_wheel(target, facts.name, facts.wheel, facts.requirements).name
    return PackageResult(
        model=str(saved.recipe.model),
        folder=str(folder),
        name=facts.name,
        recipe=saved.recipe.name,
        backend=facts.backend,
        precision=facts.precision,
        bytes=size,
        lines=lines,
        requirements=facts.requirements,
        wheel=None if file is None else str(folder / file),
        cold_start=start,
        parity=parity,
        notes=notes,
    )


def _word_of(model: str, folder: Path) -> str:
    """Make a word of the name of a model, or of the folder to write where that has no letters."""
    for name in (typed_path(model).resolve().name, folder.resolve().name):
        word = re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_").lstrip("0123456789_")
        if word:
            return word
    return "packaged"
