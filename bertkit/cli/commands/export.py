"""`bertkit export`, `bertkit quantize` and `bertkit package`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.options import (
    CheckpointRecipeOption,
    LimitOption,
    TrainedArgument,
    argument,
    flag,
    option,
    output_option,
)
from bertkit.cli.output import (
    format_difference,
    format_rows,
    print_next,
    print_notes,
    print_result,
    print_table,
    print_text,
    print_with_gates,
)

if TYPE_CHECKING:
    from bertkit.evaluation.parity import Parity
    from bertkit.workflows.export import ExportResult
    from bertkit.workflows.package import PackageResult


ORDER = 52


NewFolderOption = Annotated[Path, output_option("Folder to write; it must not exist.", "DIR")]


def export_run(
    run: TrainedArgument,
    output: NewFolderOption,
    to: Annotated[Literal["onnx", "openvino"], option("Runtime: onnx or openvino.", "BACKEND")] = "onnx",
    recipe: CheckpointRecipeOption = None,
    data: Annotated[str | None, option("Rows to score both models on.", "DATA", "from the run")] = None,
    limit: LimitOption = None,
    with_baselines: Annotated[
        bool, flag("--with-baselines", "Copy baselines.json, which contains words of the training rows.")
    ] = False,
) -> None:
    """Export a fine-tuned model to ONNX or OpenVINO, which run without torch.

    The folder contains the graph, tokenizer, recipe, labels and thresholds, and `eval` and `predict` accept it as a
    model. The outputs, scores and speed of both models are compared, and the comparison is written to parity.json.
    """
    from bertkit.workflows.export import export

    copied_files = ["baselines.json"] if with_baselines else []
    result = export(run, output, to=to, recipe=recipe, data=data, limit=limit, extra_files=copied_files)
    print_with_gates(result, print_export, result.gates)


def print_export(result: ExportResult) -> None:
    """Print the exported model, its comparison with the original model, and the next commands."""
    print_text(f"{result.model}, {result.recipe}: {result.backend}, {result.precision}, {result.bytes / 1e6:,.1f} MB")
    print_parity(result.parity, result.backend)
    print_next(f"bertkit eval {result.folder}", f"bertkit predict {result.folder} FILE")


_FLIPS = {"model": "from the original model", "alone": "if a row is alone in its batch"}


def print_parity(parity: Parity, after: str) -> None:
    """Print the comparison of a graph with the original model."""
    print_text(f"  largest difference of outputs: {parity.largest:.2g}")
    if parity.least_cosine is not None:
        print_text(f"  lowest cosine of vectors: {parity.least_cosine:.6f}")
    from bertkit.hardware.speed import describe_spreads

    speed = [
        {
            "texts x tokens": f"{row['texts']} x {row['tokens']}",
            "torch": f"{row['torch']:.1f}",
            after: f"{row['exported']:.1f}",
            "times as fast": "n/a" if row["times_as_fast"] is None else f"{row['times_as_fast']:.2f}",
            "spread": f"{row['spread']:.0%}",
        }
        for row in parity.latency
    ]
    print_table("milliseconds per batch", speed)
    print_notes(describe_spreads(row["spread"] for row in parity.latency))
    scores = [
        {
            "metric": name,
            "torch": score["before"],
            after: score["after"],
            "difference": format_difference(score["difference"]),
            "95% CI": score["interval"],
        }
        for name, score in parity.scores.items()
    ]
    print_table(f"{parity.split}, {format_rows(parity.rows)}", scores)
    # Users see labels, which can be equal although outputs differ in the fifth digit.
    for name, difference in _FLIPS.items():
        if name in parity.flips:
            print_text(f"  labels that differ {difference}: {parity.flips[name]} of {format_rows(parity.rows)}")
    print_notes(parity.notes)


def quantize_run(
    run: TrainedArgument,
    output: NewFolderOption,
    to: Annotated[
        Literal["onnx-int8", "openvino-int8", "openvino-bf16"],
        option("Runtime and precision: onnx-int8, openvino-int8 or openvino-bf16.", "TARGET"),
    ] = "openvino-int8",
    margin: Annotated[float, option("Largest acceptable relative loss of the score, with 95% confidence.", "P")] = 0.01,
    sample: Annotated[int, option("Number of training rows that calibrate the range of activations.", "N")] = 256,
    recipe: CheckpointRecipeOption = None,
    data: Annotated[str | None, option("Rows to calibrate and score on.", "DATA", "from the run")] = None,
    limit: LimitOption = None,
) -> None:
    """Export a fine-tuned model in int8 or bf16, unless its score drops too much.

    Both models are scored on validation rows. Nothing is written unless the paired 95% interval of the loss is within
    the margin and, for vectors, the lowest cosine is at least 0.98.
    """
    from bertkit.workflows.export import MarginError, export

    try:
        backend, precision = to.split("-")
        result = export(
            run,
            output,
            to=backend,
            precision=precision,
            recipe=recipe,
            data=data,
            limit=limit,
            margin=margin,
            rows=sample,
        )
    # Nothing is written, but users need the comparison to select another margin or precision.
    except MarginError as error:
        parity = error.parity
        print_result({"parity": parity}, lambda _: print_parity(parity, to), error=error)
        return
    print_with_gates(result, print_export, result.gates)


def package_run(
    run: Annotated[
        str, argument("Run folder, a checkpoint of a run, any fine-tuned checkpoint, or an exported folder.", "RUN")
    ],
    output: NewFolderOption,
    to: Annotated[
        Literal["onnx", "openvino"] | None, option("Runtime: onnx or openvino.", "BACKEND", "onnx, or as exported")
    ] = None,
    recipe: CheckpointRecipeOption = None,
    serve: Annotated[
        bool, flag("--serve", "Add a Dockerfile and pinned requirements with hashes, for a server.")
    ] = False,
) -> None:
    """Package a model with bertkit and pinned requirements, to predict without torch.

    The folder contains a copy of bertkit, the exported model and requirements.txt with ONNX Runtime or OpenVINO, but
    neither torch nor transformers. An exported folder is packaged unchanged, also in int8.
    """
    from bertkit.workflows.package import package

    result = package(run, output, to=to, recipe=recipe, serve=serve)
    print_result(result, lambda _: print_package(result, serves=serve))


def print_package(result: PackageResult, *, serves: bool = False) -> None:
    """Print the package and the next command."""
    size = f"{result.bytes / 1e6:,.1f} MB"
    print_text(f"{result.model}, {result.recipe}: {result.backend}, {result.precision}, {size}")
    if result.parity is not None:
        print_text(f"  largest difference from the outputs of the run: {result.parity.largest:.2g}")
    print_text(f"  requires {len(result.requirements)} packages (requirements.txt), without torch")
    folder = quote(result.folder)
    if serves:
        run = f"docker run --read-only --publish 127.0.0.1:8000:8000 {result.name}"
        print_next(f"docker build --tag {result.name} {folder} && {run}")
    else:
        print_next(f"cd {folder} && pip install -r requirements.txt && python -m bertkit predict model FILE")


COMMANDS = {
    "export": (export_run, "bertkit export runs/cola --to onnx --output exported/cola"),
    "quantize": (quantize_run, "bertkit quantize runs/cola --to openvino-int8 --output exported/cola-int8"),
    "package": (package_run, "bertkit package runs/cola --output packages/cola"),
}
