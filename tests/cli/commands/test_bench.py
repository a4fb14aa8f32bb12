"""What `bertkit bench` prints; its measurements are in tests/workflows."""

from __future__ import annotations

from bertkit.cli.commands.bench import print_bench
from bertkit.workflows.bench import Bench, Speed

FAST = Speed(
    "bf16",
    32,
    steps=20,
    tokens_per_second=17530.4,
    rows_per_second=1250.04,
    padding_share=0.097,
    peak_share=0.311,
    peak_memory_bytes=1_234_000_000,
    evaluation_rows_per_second=3771.4,
    epoch_seconds=4500.0,
    recipe_seconds=13500.0,
    notes=("a note",),
)
UNMEASURED = Speed("fp32", 32, notes=("a note",))


def bench(*speeds: Speed) -> Bench:
    return Bench("cola", "demo", "cpu", 1, 100, 1084, 3.0, list(speeds))


def test_the_tables_fit_80_columns_and_name_the_fastest(capsys):
    print_bench(bench(FAST, Speed("fp32", 32, steps=20, tokens_per_second=9.0)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cola, demo: 100 rows of 1,084 tokens, 3 epochs"
    assert lines[1] == "  training speed, measured over 20 steps"
    assert lines[3].split() == ["bf16", "32", "17,530", "1,250.0", "9.7%", "31.1%", "1,234", "MB", "fastest"]
    assert lines[4].split() == ["fp32", "32", "9", "-", "-", "-", "-"]
    assert lines[7].split() == ["bf16", "32", "3,771.4", "1", "h", "15", "min", "3", "h", "45", "min"]
    assert max(map(len, lines)) <= 80


def test_a_note_is_printed_once(capsys):
    print_bench(bench(UNMEASURED, UNMEASURED))
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "  training speed"
    assert out.count("a note") == 1
    assert "fastest" not in out


def test_the_ways_to_deploy_have_a_table_per_model_of_80_columns(capsys, monkeypatch):
    from bertkit.cli.commands import bench as command
    from bertkit.workflows.bench import Deployed, Deployment

    ways = [
        Deployed(model, way, 90_900_000, 8.214, 12345.0, 0.79, change, interval, way == "openvino-int8", 0.31)
        for model, way, change, interval in (
            ("runs/a", "torch-fp32", 0.0, None),
            ("runs/a", "openvino-int8", -0.0011, (-0.0057, 0.0034)),
            ("runs/b", "torch-fp32", -0.0344, (-0.0585, -0.0105)),
        )
    ]
    found = Deployment("mine", "matthews_correlation", "validation", 872, 1, ways, ["onnx: not installed"])
    monkeypatch.setattr("bertkit.workflows.bench.deploy", lambda *models, **options: found)
    command.command(deployed=["runs/a", "runs/b"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine, validation: 872 rows, threads: 1"
    assert [line.strip() for line in lines if "runs/" in line] == ["runs/a", "runs/b"]
    best = "openvino-int8 90.9 8.21 12,345 0.7900 -0.0011 -0.0057 to 0.0034 *"
    assert best.split() in [line.split() for line in lines]
    assert "  not measured: onnx: not installed" in lines
    assert any(line.startswith("  rounds of timing differ by up to 31%: ") for line in lines)
    assert max(map(len, lines)) <= 80
