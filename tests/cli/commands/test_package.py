"""`bertkit package`: what it prints."""

from __future__ import annotations

from bertkit.cli.commands.package import print_package
from bertkit.workflows.package import PackageResult

RESULT = PackageResult(
    model="runs/a",
    folder="packages/a",
    name="a",
    recipe="cola",
    backend="onnx",
    precision="int8",
    bytes=24_000_000,
    requirements=("numpy==2.4.6", "onnxruntime==1.32.0"),
    parity=None,
)


def test_size_requirements_and_the_next_command_are_printed(capsys):
    print_package(RESULT)
    assert capsys.readouterr().out.splitlines() == [
        "runs/a, cola: onnx, int8, 24.0 MB",
        "  requires 2 packages (requirements.txt), without torch",
        "",
        "Next:",
        "  cd packages/a && pip install -r requirements.txt && python -m bertkit predict model FILE",
    ]
    print_package(RESULT, serves=True)
    assert "docker build --tag a packages/a && docker run" in capsys.readouterr().out
