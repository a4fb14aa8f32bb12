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
# Skip weights and rows of the demo, which only training and examples need.
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.gz")
_ROW_FILES = ("training_rows.npy", "baselines.json", "parity.json")
"""Files of an exported folder that predictions do not read; some contain words or digests of rows."""
_INVALID_NAME_CHARACTERS = re.compile(r"[^0-9a-z]+")


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
    """Comparison of the graph with the run, or None for an exported folder, which contains its comparison."""


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
        progress: Progress display; by default, bars in notebooks.

    Raises:
        ModelError: If the task family needs custom code, or a library that the folder does not require.
        BertkitError: If anything else prevents the package; see `bertkit.errors`.
    """
    # 1. Check the folder and the model.
    folder = expand_path(output)
    check_empty(folder)
    info = open_trained(str(model), recipe)
    _check_packageable(info, to)
    with tempfile.TemporaryDirectory() as staging:
        # 2. Export the model to a temporary folder, unless it is an exported folder.
        exported, parity = info.folder, None
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
            name=_INVALID_NAME_CHARACTERS.sub("-", info.folder.resolve().name.lower()).strip("-") or "model",
            recipe=info.recipe.name,
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
            # In a checkout, the recipes are next to the package and not inside.
            shutil.copytree(recipe_folder(), target / "bertkit/recipes", dirs_exist_ok=True)
            _copy_model(exported, target / "model", graph)
            (target / "requirements.txt").write_text(requirements, encoding="utf-8", newline="\n")
            license_file = next(file for file in (source / "LICENSE", source.parent / "LICENSE") if file.is_file())
            shutil.copyfile(license_file, target / "LICENSE")
            _write_instructions(target, result, info, serve=serve)
            size = count_bytes(target)
    return replace(result, bytes=size)


def _check_packageable(info: CheckpointInfo, to: str | None) -> None:
    """Check what can be checked before an export, which takes much longer.

    Raises:
        UsageError: If `to` is not the backend of an exported folder.
        ModelError: If the task family needs custom code, or a library that the folder does not require.
    """
    if to is not None and is_exported(info.folder) and to != (backend := read_export(info.folder).backend):
        message = f"--to {to}, but the model is exported to {backend} already"
        raise UsageError(message, "leave it out, or name the run that it was exported from", file=info.folder)
    remedy = "use `bertkit export` and `bertkit predict`"
    if not str(getattr(info.task, "__name__", "")).startswith("bertkit.tasks."):
        raise ModelError(f"packages do not copy the code of your task family {info.recipe.task}", remedy)
    if info.recipe.task == "sparse":
        raise ModelError("sparse vectors need the package scipy, which packages do not require", remedy)


def _pin_installed(*packages: str) -> str:
    """Return requirements that pin packages and all their dependencies to the installed versions."""
    from packaging.requirements import Requirement

    # The marker of a dependency is false if the dependency is for another system or for an extra.
    pins, queue = dict[str, str](), list(packages)
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name not in pins and name not in _NEVER_IMPORTED:
            distribution = metadata.distribution(name)
            pins[name] = distribution.version
            dependencies = map(Requirement, distribution.requires or ())
            queue += [item.name for item in dependencies if not item.marker or item.marker.evaluate({"extra": ""})]
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def _copy_model(exported: Path, target: Path, graph: Export) -> None:
    """Copy an exported folder without the words and digests of its training rows."""
    names = [name for name in listed_files(exported) if name not in _ROW_FILES]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(exported / name, target / name)
    write_export(target, graph, list_files(target, names))
    if calibration := read_calibration(exported, graph.task):
        # The folds contain digests of the rows that the calibration was fitted on.
        write_calibration(target, replace(calibration, folds=[]))


def _write_instructions(target: Path, result: PackageResult, info: CheckpointInfo, *, serve: bool) -> None:
    """Write the README, and for a server the Dockerfile."""
    row, columns = info.example_row(), info.recipe.data.columns
    names = [columns.get(name, name) for name in row]
    variables = {
        "name": result.name,
        "package": result,
        "task": info.recipe.task,
        "license": find_license(info.folder),
        "version": bertkit.__version__,
        "row": row,
        "columns": [" and ".join([name] if isinstance(name, str) else name) for name in names],
        "options": example_row(info.task, info.recipe),
        "serves": serve,
    }
    for name, template_name in {"README.md": "package.md.j2", "Dockerfile": "package.Dockerfile.j2"}.items():
        if serve or name == "README.md":
            template = load_template(template_name, quote=quote, json=partial(json.dumps, ensure_ascii=False))
            (target / name).write_text(template.render(variables), encoding="utf-8", newline="\n")
