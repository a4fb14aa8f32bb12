"""The folder of a package: its code, its model, and what says how it is used."""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any

import bertkit
from bertkit.errors import ModelError, UsageError
from bertkit.evaluation.calibration import read_calibration, write_calibration
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.sentence.formats import DENSE, find_format
from bertkit.reports.templates import load_template
from bertkit.runtime.backends import graph_file
from bertkit.runtime.packaged_model import SETTINGS
from bertkit.runtime.sessions import PACKAGES
from bertkit.storage.exports import listed_files, read_export, write_export
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import list_files
from bertkit.tasks import Task
from bertkit.workflows.package.sources import AVAILABLE, copy_sources

LICENSE = "LICENSE"

_LEFT_OUT = (
    "recipe.yaml",
    "config.json",
    "tokenizer_config.json",
    "training_rows.npy",
    "baselines.json",
    "parity.json",
)
"""Files of an exported folder that predictions do not depend on."""
_NOT_SERVED = ("training_rows.npy", "baselines.json", "parity.json")
_OF_TASK = ("COLUMNS", "read", "encode", "collator", "decode")
_TRAINING = ("max_length", "class_weights", "label_smoothing")
_DATA = ("columns", "unread", "label_range")
_PROGRAM = "bertkit.runtime.program"
_OPENING = '''"""A model that predicts: `Model().predict(...)`, or `python -m {name}`."""

from .{module} import {model} as Model

__all__ = ["Model"]
'''
_MAIN = '''"""`python -m {name}`."""

from . import Model
from .runtime.program import main

raise SystemExit(main(Model, "{name}", "{version}"))
'''


@dataclass(frozen=True)
class PackageFacts:
    """What a package is, for its code and its README."""

    name: str
    """Name of the module that is imported."""
    title: str
    """Name of the run or the model."""
    task: str
    backend: str
    precision: str
    requirements: tuple[str, ...]
    example: Mapping[str, Any]
    answer: str = ""
    """What is printed for it, as JSON; empty where that is not known."""
    license: str | None = None
    """License of the model; None where nothing says it."""
    version: str = bertkit.__version__
    embeds: bool = False
    wheel: str | None = None
    """Version of the package, if it has one."""
    serves: bool = False
    """Whether it is what an image with a server is built from."""


def check_name(name: str) -> None:
    """Check that a package may have a name.

    Raises:
        UsageError: it is no name of a module, or that of another one.
    """
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} is no name for a module", "use letters, digits and _: --name sst2_model")
    if name in sys.stdlib_module_names or name in AVAILABLE or name == "bertkit":
        raise UsageError(f"there is a module {name} already", f"choose another: --name {name}_model")


def requirements_of(backend: str) -> tuple[str, ...]:
    """Return the packages that a package needs, each from the release that bertkit asks for to the next major one."""
    return tuple(map(_range_of, (PACKAGES[backend], "tokenizers", "numpy")))


def with_serving(facts: PackageFacts) -> PackageFacts:
    """Return the facts of a package that serves: it has pinned requirements, and a server instead of a module."""
    pins = re.findall("^.+==[^ ]+", _pinned_file(facts.backend).read_text(encoding="utf-8"), re.MULTILINE)
    return replace(facts, serves=True, requirements=tuple(pins))


def _pinned_file(backend: str) -> Path:
    return Path(__file__).with_name(f"requirements-{backend}.txt")


def _range_of(package: str) -> str:
    installed = metadata.version(package)
    asked = (re.match(rf"{package}\b[^;]*>=\s*([0-9.]+)", line) for line in metadata.requires("bertkit") or ())
    least = next((found[1] for found in asked if found), installed)
    return f"{package}>={least},<{int(installed.split('.')[0]) + 1}"


def makes_vectors(folder: Path) -> bool:
    """Tell whether the texts of an exported model have one vector each."""
    return read_export(folder).reads == "texts" and find_format(folder) == DENSE


def copy_code(facts: PackageFacts, task: Task) -> dict[str, str]:
    """Return the modules of a package: path -> text.

    Raises:
        ModelError: predictions of the task family need what packages do not have.
    """
    if not str(getattr(task, "__name__", "")).startswith("bertkit.tasks."):
        what = f"the task family {facts.task} is a module of your own, whose code packages do not copy"
        raise ModelError(what, "use `bertkit export` and `bertkit predict`")
    module, model = "runtime.packaged_model", "PackagedModel"
    if facts.embeds:
        module, model = "workflows.package.vectors", "PackagedVectors"
    roots = {f"bertkit.tasks.{facts.task}": _OF_TASK, f"bertkit.{module}": (model,), _PROGRAM: ("main",)}
    opening = _OPENING.format(name=facts.name, module=module, model=model)
    version = f"{facts.name} {facts.wheel or ''}".strip() + f", bertkit {facts.version}"
    program = _MAIN.format(name=facts.name, version=version)
    return {**copy_sources(roots), "__init__.py": opening, "__main__.py": program}


def write_code(folder: Path, code: Mapping[str, str]) -> None:
    """Write the modules of a package."""
    for path, text in code.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def write_model(target: Path, exported: Path, checkpoint: Checkpoint) -> None:
    """Copy what predictions depend on of an exported folder, with its settings and checksums."""
    # Only what predictions read: no training rows, no record of the run.
    names = _copy_files(target, exported, _LEFT_OUT)
    recipe = checkpoint.setup.recipe
    content = recipe.model_dump(mode="json")
    settings = {
        "labels": list(checkpoint.setup.labels),
        "recipe": {
            **{name: content[name] for name in ("labels", "metrics", "options")},
            "data": {name: content["data"][name] for name in _DATA},
            "training": {name: content["training"][name] for name in _TRAINING},
        },
    }
    write_json(target / SETTINGS, settings)
    plain = replace(read_export(exported), options={}, record={})
    write_export(target, plain, list_files(target, [*names, SETTINGS]))


def copy_server(target: Path, name: str, exported: Path) -> None:
    """Copy bertkit as it is, with its server, and an exported folder without its training rows."""
    left_out = shutil.ignore_patterns("__pycache__", "model.safetensors")  # of the demo
    shutil.copytree(Path(bertkit.__file__).parent, target / "bertkit", ignore=left_out)
    folder = target / "models" / name
    export = read_export(exported)
    write_export(folder, export, list_files(folder, _copy_files(folder, exported, _NOT_SERVED)))
    if calibration := read_calibration(exported, export.task):
        # its folds are digests of the rows that it was fitted to
        write_calibration(folder, replace(calibration, folds=[]))


def _copy_files(target: Path, exported: Path, left_out: Container[str]) -> list[str]:
    """Copy the files of an exported folder but some, and return their names."""
    names = [name for name in listed_files(exported) if name not in left_out]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(exported / name, target / name)
    return names


def write_supporting_files(folder: Path, facts: PackageFacts) -> None:
    """Write the README, the requirements, the license of the code, and what an image is built by."""
    requirements = "".join(f"{line}\n" for line in facts.requirements)
    templates = {"README.md": "package.md.j2"}
    if facts.serves:
        requirements = _pinned_file(facts.backend).read_text(encoding="utf-8")
        templates = {"README.md": "image.md.j2", "Dockerfile": "image.Dockerfile.j2"}
    for name, template in templates.items():
        loaded = load_template(template, quote=quote, json=partial(json.dumps, ensure_ascii=False))
        text = loaded.render(facts=facts, graph=graph_file(facts.backend, facts.precision))
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "requirements.txt").write_text(requirements, encoding="utf-8")
    (folder / LICENSE).write_text(license_text(), encoding="utf-8")


def license_text() -> str:
    """Return the license of bertkit, which is that of the code of a package."""
    package = Path(bertkit.__file__).parent
    file = next(file for file in (package / LICENSE, package.parent / LICENSE) if file.is_file())
    return file.read_text(encoding="utf-8")
