"""`bertkit package`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.commands.export import NewFolderOption
from bertkit.cli.options import CheckpointRecipeOption, argument, option
from bertkit.cli.output import print_next, print_notes, print_result, print_text

if TYPE_CHECKING:
    from bertkit.workflows.package import PackageResult

ORDER = 54
EXAMPLE = "bertkit package runs/cola --output packages/cola"


def command(
    run: Annotated[
        str, argument("Run folder, a checkpoint of a run, any fine-tuned checkpoint, or an exported folder.", "RUN")
    ],
    output: NewFolderOption,
    to: Annotated[
        Literal["onnx", "openvino"] | None, option("What runs it.", "BACKEND", "onnx, or that of an exported folder")
    ] = None,
    recipe: CheckpointRecipeOption = None,
    name: Annotated[str | None, option("Name of the Python module.", "NAME", "that of the run, with _model")] = None,
    wheel: Annotated[str | None, option("Write a wheel of this version too.", "VERSION")] = None,
    serve: Annotated[bool, option("Write what an image with a server is built from, with a Dockerfile.")] = False,
) -> None:
    """Package a model with the code that it needs, to predict without torch and without bertkit.

    The folder has a Python module that answers as `predict` does. It needs ONNX Runtime or OpenVINO, tokenizers and
    numpy. Of an exported folder, its graph is taken, also one in int8. With --serve, the folder has bertkit's server
    instead, and all that it needs is pinned.
    """
    from bertkit.errors import UsageError
    from bertkit.workflows.package import package, package_server

    if serve and wheel is not None:
        raise UsageError("--wheel with --serve", "an image has no wheel: leave one of them out")
    write = package_server if serve else partial(package, wheel=wheel)
    result = write(run, output, to=to, recipe=recipe, name=name)
    print_result(result, print_package)


def print_package(result: PackageResult) -> None:
    """Print what was packaged, what it costs to start it, and what to do next."""
    size = f"{result.bytes / 1e6:,.1f} MB, {result.lines:,} lines of code"
    print_text(f"{result.model}, {result.recipe}: {result.backend}, {result.precision}, {size}")
    if result.parity is not None:
        print_text(f"  largest difference of outputs from the run's: {result.parity.largest:.2g}")
    if (start := result.cold_start) is not None:
        cost = f"{start.seconds:.2f} s of processor time, {start.memory / 1e6:,.0f} MB of memory"
        print_text(f"  from start to first answer: {cost}; imported {', '.join(start.imported)}")
    print_notes(result.notes)
    needed = ", ".join(result.requirements) if len(result.requirements) < 4 else f"{len(result.requirements)} packages"
    print_text(f"  needs {needed}")
    if result.wheel is not None:
        print_text(f"  wheel: {Path(result.wheel).name}")
    folder = quote(result.folder)
    if (Path(result.folder) / "Dockerfile").is_file():
        run = f"docker run --read-only --publish 127.0.0.1:8000:8000 {result.name}"
        print_next(f"docker build --tag {result.name} {folder} && {run}")
    else:
        print_next(f"cd {folder} && python -m {result.name} --file FILE")
