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
    assert lines[3].split() == ["bf16", "32", "17,530", "1,250.0", "9.7%", "1,234", "MB", "fastest"]
    assert lines[4].split() == ["fp32", "32", "9", "-", "-", "-"]
    assert lines[7].split() == ["bf16", "32", "3,771.4", "1", "h", "15", "min", "3", "h", "45", "min"]
    assert max(map(len, lines)) <= 80


def test_a_note_is_printed_once(capsys):
    print_bench(bench(UNMEASURED, UNMEASURED))
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "  training speed"
    assert out.count("a note") == 1
    assert "fastest" not in out
