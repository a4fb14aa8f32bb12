"""`bertkit package`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.commands.export import NewFolderOption
from bertkit.cli.options import CheckpointRecipeOption, argument, option
from bertkit.cli.output import print_next, print_result, print_text

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
    serve: Annotated[bool, option("Add a Dockerfile, and pin the requirements of a server by their hashes.")] = False,
) -> None:
    """Package a model with bertkit and pinned requirements, to predict without torch.

    The folder holds a copy of bertkit, the exported model and requirements.txt, which has ONNX Runtime or OpenVINO but
    neither torch nor transformers. An exported folder is packaged as it is, including int8.
    """
    from bertkit.workflows.package import package

    result = package(run, output, to=to, recipe=recipe, serve=serve)
    print_result(result, lambda _: print_package(result, serves=serve))


def print_package(result: PackageResult, *, serves: bool = False) -> None:
    """Print what was packaged, and what to do next."""
    size = f"{result.bytes / 1e6:,.1f} MB"
    print_text(f"{result.model}, {result.recipe}: {result.backend}, {result.precision}, {size}")
    if result.parity is not None:
        print_text(f"  largest difference of outputs from the run's: {result.parity.largest:.2g}")
    print_text(f"  requires {len(result.requirements)} packages (requirements.txt), without torch")
    folder = quote(result.folder)
    if serves:
        run = f"docker run --read-only --publish 127.0.0.1:8000:8000 {result.name}"
        print_next(f"docker build --tag {result.name} {folder} && {run}")
    else:
        print_next(f"cd {folder} && pip install -r requirements.txt && python -m bertkit predict model FILE")
