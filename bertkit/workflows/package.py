"""Write a folder that predicts without torch: a copy of bertkit, an exported model, and its pinned requirements."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from shlex import quote

import bertkit
from bertkit.errors import ModelError, UsageError
from bertkit.evaluation.calibration import read_calibration, write_calibration
from bertkit.evaluation.checkpoint import CheckpointInfo, open_trained
from bertkit.evaluation.parity import Parity
from bertkit.hardware.device import on_cpu
from bertkit.progress import Progress, with_progress
from bertkit.recipe.load import recipe_folder
from bertkit.recipe.sections import expand_path
from bertkit.reports.templates import load_template
from bertkit.runtime.sessions import PACKAGES
from bertkit.storage.exports import Export, is_exported, listed_files, read_export, write_export
from bertkit.storage.files import disk_errors
from bertkit.storage.fingerprints import list_files
from bertkit.storage.outputs import check_empty, create_folder_atomically
from bertkit.storage.run_list import count_bytes
from bertkit.tasks import example_row
from bertkit.workflows.export import export, find_license

_REQUIRED = ("filelock", "numpy", "pydantic", "pyyaml", "rich", "tokenizers", "typer")
_NEVER_IMPORTED = ("huggingface-hub", "openvino-telemetry")
"""Requirements of tokenizers and OpenVINO that no prediction imports."""
# Weights and rows of the demo, which only training and examples need.
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.gz")
_ABOUT_ROWS = ("training_rows.npy", "baselines.json", "parity.json")
"""Files of an exported folder that predictions do not read; some hold words or digests of rows."""
_NAME = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True)
class PackageResult:
    """A package, and how its model compares with the run."""

    model: str
    folder: str
    name: str
    """Name of the model for the server."""
    recipe: str
    backend: str
    precision: str
    bytes: int
    """Size of the folder."""
    requirements: tuple[str, ...]
    parity: Parity | None
    """Comparison of the graph with the run, or None for an exported folder, which has its own."""


@on_cpu()
@with_progress
def package(
    model: str | Path,
    output: str | Path,
    *,
    to: str | None = None,
    recipe: str | None = None,
    serve: bool = False,
    progress: Progress | None = None,
) -> PackageResult:
    """Package a run, a fine-tuned checkpoint or an exported folder.

    The folder appears when it is complete.

    Args:
        model: Run folder, a checkpoint of a run, any fine-tuned checkpoint, or an exported folder.
        output: Folder to write, which must not exist.
        to: ``onnx`` (the default) or ``openvino``; an exported folder keeps its backend.
        recipe: Recipe of a checkpoint that bertkit did not train.
        serve: Whether to add a Dockerfile, and the requirements of the server with their hashes.
        progress: Shows the progress; by default bars, in notebooks only.

    Raises:
        ModelError: If the task family needs code or packages that packages do not have.
        BertkitError: If anything else prevents the package; see `bertkit.errors`.
    """
    # 1. Check the folder and the model.
    folder = expand_path(output)
    check_empty(folder)
    saved = open_trained(str(model), recipe)
    _check_packageable(saved, to)
    with tempfile.TemporaryDirectory() as staging:
        # 2. Export the model to a temporary folder, unless it is an exported folder.
        exported, parity = saved.folder, None
        if not is_exported(exported):
            exported = Path(staging) / "exported"
            parity = export(model, exported, to=to or "onnx", recipe=recipe).parity
        graph = read_export(exported)

        # 3. Pin the requirements. For a server, tools/make_server_requirements.py has written them with hashes.
        if serve:
            file = Path(bertkit.__file__).parent / f"server/requirements-{graph.backend}.txt"
            requirements = file.read_text(encoding="utf-8")
        else:
            requirements = _pin_installed(PACKAGES[graph.backend], *_REQUIRED)
        result = PackageResult(
            model=str(model),
            folder=str(folder),
            name=_NAME.sub("-", saved.folder.resolve().name.lower()).strip("-") or "model",
            recipe=saved.recipe.name,
            backend=graph.backend,
            precision=graph.precision,
            bytes=0,
            requirements=tuple(re.findall(r"^[^#\s]+==[^\s]+", requirements, re.MULTILINE)),
            parity=parity,
        )

        # 4. Write the folder: a copy of bertkit with its recipes, the model, requirements, license and instructions.
        with disk_errors(folder.parent), create_folder_atomically(folder) as target:
            source = Path(bertkit.__file__).parent
            shutil.copytree(source, target / "bertkit", ignore=_NOT_COPIED)
            # A checkout has the recipes next to the package, an installation has them inside.
            shutil.copytree(recipe_folder(), target / "bertkit/recipes", dirs_exist_ok=True)
            _copy_model(exported, target / "model", graph)
            (target / "requirements.txt").write_text(requirements, encoding="utf-8", newline="\n")
            license = next(file for file in (source / "LICENSE", source.parent / "LICENSE") if file.is_file())
            shutil.copyfile(license, target / "LICENSE")
            _write_instructions(target, result, saved, serve=serve)
            size = count_bytes(target)
    return replace(result, bytes=size)


def _check_packageable(saved: CheckpointInfo, to: str | None) -> None:
    """Check what can be checked before an export, which takes much longer.

    Raises:
        UsageError: If `to` is not the backend of an exported folder.
        ModelError: If the task family needs code or packages that packages do not have.
    """
    if to is not None and is_exported(saved.folder) and to != (backend := read_export(saved.folder).backend):
        message = f"--to {to}, but the model is exported to {backend} already"
        raise UsageError(message, "leave it out, or name the run that it was exported from", file=saved.folder)
    remedy = "use `bertkit export` and `bertkit predict`"
    if not str(getattr(saved.task, "__name__", "")).startswith("bertkit.tasks."):
        message = f"packages do not copy the code of your task family {saved.recipe.task}"
        raise ModelError(message, remedy)
    if saved.recipe.task == "sparse":
        raise ModelError("sparse vectors need the package scipy, which packages do not require", remedy)


def _pin_installed(*packages: str) -> str:
    """Return requirements that pin packages, and the packages that these require, to the installed versions."""
    from packaging.requirements import Requirement

    # Requirements of requirements are pinned too. A marker is false for another system or for an extra.
    pins, waiting = dict[str, str](), list(packages)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in pins and name not in _NEVER_IMPORTED:
            distribution = metadata.distribution(name)
            pins[name] = distribution.version
            required = map(Requirement, distribution.requires or ())
            waiting += [item.name for item in required if not item.marker or item.marker.evaluate({"extra": ""})]
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def _copy_model(exported: Path, target: Path, graph: Export) -> None:
    """Copy an exported folder without the words and digests of its training rows."""
    names = [name for name in listed_files(exported) if name not in _ABOUT_ROWS]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(exported / name, target / name)
    write_export(target, graph, list_files(target, names))
    if calibration := read_calibration(exported, graph.task):
        # Its folds are digests of the rows that it was fitted on.
        write_calibration(target, replace(calibration, folds=[]))


def _write_instructions(target: Path, result: PackageResult, saved: CheckpointInfo, *, serve: bool) -> None:
    """Write the README, and the Dockerfile of a server."""
    row, columns = saved.example_row(), saved.recipe.data.columns
    names = [columns.get(name, name) for name in row]
    variables = {
        "name": result.name,
        "package": result,
        "task": saved.recipe.task,
        "license": find_license(saved.folder),
        "version": bertkit.__version__,
        "row": row,
        "columns": [" and ".join([name] if isinstance(name, str) else name) for name in names],
        "options": example_row(saved.task, saved.recipe),
        "serves": serve,
    }
    for name, template in {"README.md": "package.md.j2", "Dockerfile": "package.Dockerfile.j2"}.items():
        if serve or name == "README.md":
            loaded = load_template(template, quote=quote, json=partial(json.dumps, ensure_ascii=False))
            (target / name).write_text(loaded.render(variables), encoding="utf-8", newline="\n")
