"""`bertkit package`: what it prints."""

from __future__ import annotations

from dataclasses import replace

from bertkit.cli.commands.package import print_package
from bertkit.workflows.package import PackageResult
from bertkit.workflows.package.cold_start import ColdStart

RESULT = PackageResult(
    model="runs/a",
    folder="packages/a",
    name="a_model",
    recipe="cola",
    backend="onnx",
    precision="int8",
    bytes=24_000_000,
    lines=1758,
    requirements=("onnxruntime>=1.26,<2", "numpy>=2.0,<3"),
    wheel="packages/a/a_model-1.0-py3-none-any.whl",
    cold_start=ColdStart(0.213, 94_000_000, ("numpy", "onnxruntime"), {}),
    parity=None,
    notes=["A note."],
)


def test_size_and_cold_start_are_printed(capsys):
    print_package(RESULT)
    assert capsys.readouterr().out.splitlines() == [
        "runs/a, cola: onnx, int8, 24.0 MB, 1,758 lines of code",
        "  from start to first answer: 0.21 s of processor time, 94 MB of memory; imported numpy, onnxruntime",
        "  A note.",
        "  needs onnxruntime>=1.26,<2, numpy>=2.0,<3",
        "  wheel: a_model-1.0-py3-none-any.whl",
        "",
        "Next:",
        "  cd packages/a && python -m a_model --file FILE",
    ]
    print_package(replace(RESULT, cold_start=None, wheel=None))
    assert "first answer" not in capsys.readouterr().out
