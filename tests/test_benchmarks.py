"""The arithmetic of the benchmarks; what they measure is never run here."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import re
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest
from scipy import stats

from benchmarks import (
    cases,
    coverage,
    encoders,
    few_shot,
    harness,
    load,
    peers,
    quality,
    report,
    reproduction,
    speed,
    whole,
)
from bertkit.recipe import load_recipe, recipe_names

FILES = sorted(Path(report.__file__).parent.glob("*.py"))


@pytest.mark.parametrize(
    "name",
    [
        "harness",
        "load",
        "null_tables",
        "quality",
        "speed",
    ],
)
def test_examples(name):
    tried = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert tried.attempted
    assert not tried.failed


def test_foreign_load_is_what_is_left_of_the_busy_time(monkeypatch):
    readings = iter([(100.0, 50.0, 20.0), (110.0, 66.0, 35.0)])
    monkeypatch.setattr(load.Watch, "_read", lambda watch: next(readings))
    assert load.Watch(1).foreign() == pytest.approx(0.1)


def test_the_programs_own_time_can_be_read():
    import os

    watch = load.Watch(os.getpid())
    assert watch.foreign() >= 0
    assert load.peak_memory(os.getpid()) > 10


def test_flops_of_a_row_by_hand():
    # one layer of width 2 with 8 inside, one row of 3: 4 square products, 2 wide ones, scores and mixing, times three
    by_hand = 3 * (4 * 2 * 3 * 2 * 2 + 2 * 2 * 3 * 2 * 8 + 2 * 2 * 3 * 3 * 2)
    assert load.training_flops(3, 9, layers=1, hidden=2, intermediate=8) == by_hand


def test_intervals_of_drawn_rows_hold_the_truth_nearly_always():
    for name, counts in coverage.measure(0, 20, trials=20).items():
        assert 17 <= counts["held"] + 20 - counts["intervals"] <= 20, name


def test_welch_bound_is_scipys():
    ours, theirs = [0.51, 0.55, 0.53, 0.50], [0.52, 0.50, 0.49]
    tested = stats.ttest_ind(ours, theirs, equal_var=False)
    assert quality.lower_bound(ours, theirs) == pytest.approx(tested.confidence_interval(0.90).low)
    assert quality.lower_bound([0.5], [0.4, 0.5]) == -math.inf
    assert quality.lower_bound([0.5, 0.5], [0.4, 0.4]) == pytest.approx(0.1)


class Scripted:
    """An engine whose rounds were disturbed so much."""

    name = "scripted"

    def __init__(self, *foreign):
        self.foreign = iter(foreign)

    def run(self, steps):
        return {"steps": steps, "foreign": next(self.foreign)}


def test_a_disturbed_round_is_repeated_and_then_marked(monkeypatch, capsys):
    monkeypatch.setattr(speed.time, "sleep", lambda seconds: None)
    assert speed.run_clean_round(Scripted(0.5, 0.02), 3, 0.06, 2) == {
        "steps": 3,
        "foreign": 0.02,
        "clean": True,
        "repeats": 1,
    }
    assert speed.run_clean_round(Scripted(0.5, 0.2, 0.3), 3, 0.06, 2) == {
        "steps": 3,
        "foreign": 0.2,
        "clean": False,
        "repeats": 2,
    }
    assert "no clean round of 3" in capsys.readouterr().err


def one_round(seconds, clean=True):
    return {"seconds": seconds, "steps": 2, "tokens": 100, "squares": 900, "examples": 8, "memory": 300.4} | {
        "clean": clean,
        "foreign": 0.0 if clean else 1.0,
    }


def speed_report():
    peak = {"first_step": 1, "rounds": [{"rates": {"bf16": 1e9}}, {"rates": {"bf16": 3e9}}, {"rates": {"bf16": 2e9}}]}
    found = {
        "peak": peak,
        "bertkit": {"first_step": 0.5, "rounds": [one_round(1.0), one_round(3.0), one_round(90.0, clean=False)]},
        "hf-default": {"first_step": 1.5, "rounds": [one_round(40.0)]},
    }
    shape = {"layers": 1, "hidden": 4, "intermediate": 16}
    return {
        "task": "cola",
        "model": shape,
        "settings": {"batch_size": 4, "limit": None},
        "machine": {**load.machine(2), "date": "2030-01-01"},
        **speed.summarize_all(found, shape),
    }


def test_only_clean_rounds_count():
    summed = speed_report()
    ours = summed["engines"]["bertkit"]
    assert summed["peak_gflops"] == {"bf16": 2.0}
    assert ours["tokens_per_second"] == 50  # 200 tokens in 4 seconds
    assert (ours["median_step"], ours["clean_rounds"]) == (1.0, 2)
    flops = load.training_flops(200, 1800, layers=1, hidden=4, intermediate=16)
    assert ours["share_of_peak"]["bf16"] == pytest.approx(flops / 4 / 2e9, abs=1e-4)


def test_the_page_is_written_between_its_marks_only(tmp_path):
    results, page = tmp_path / "results", tmp_path / "docs" / "benchmarks.md"
    results.mkdir()
    page.parent.mkdir()
    marks = (
        f"## {name}\n\n<!-- measured: {name} -->\n<!-- end: {name} -->\n" for name in report.PARTS["benchmarks.md"]
    )
    page.write_text("\n".join(marks))
    (results / "speed-cola.json").write_text(json.dumps(speed_report()))
    report.write_report(results, page.parent)
    page.write_text(page.read_text().replace("## goals", "Written by hand.\n\n## goals"))
    report.write_report(results, page.parent)
    text = page.read_text()
    assert text.count("Written by hand.") == text.count("| cola |") == 1
    assert "| cola | 50 | 300 | 20x, reached (goal 20x) |" in text
    assert "Measured on 2030-01-01." in text
    assert [file.name for file in (page.parent / "images").iterdir()] == ["speed.svg"]


def test_the_table_of_encoders_is_written_into_its_page(tmp_path):
    def case(model_type, shape, task, ours, theirs):
        engines = {
            "bertkit": {"tokens_per_second": ours, "memory_mb": 900},
            "hf-tuned": {"tokens_per_second": theirs, "memory_mb": 1000 if task == "ner" else 1200},
        }
        machine = {"cpu": "A chip", "threads": 1, "flags": ["avx2"], "date": "2030-01-01"}
        names = {"type": model_type, "shape": shape, "task": task}
        return {**names, "layers": 22, "hidden": 768, "engines": engines, "machine": machine}

    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    docs.mkdir()
    measured = [case("bert", "small", "cola", 3000, 2000), case("bert", "small", "ner", 1100, 1000)]
    measured.append(case("modernbert", "base", "stsb", 500, 1000))
    harness.write_rows(measured, results / "encoders.jsonl")
    (docs / "encoders.md").write_text("Before.\n<!-- measured: encoders -->\n<!-- end: encoders -->\nAfter.\n")
    report.write_report(results, docs)
    text = (docs / "encoders.md").read_text()
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert "A chip, 1 thread, avx2. Measured on 2030-01-01." in text
    assert "| `bert` | 3,000 / 2,000 = **1.50x** |  | 1,100 / 1,000 = **1.10x** | 0.75 to 0.90x |" in text
    assert "| `modernbert` 22 x 768 |  | 500 / 1,000 = **0.50x** |  | 0.75x |" in text


@pytest.mark.parametrize("model_type", sorted(encoders.ARCHITECTURES))
def test_every_model_type_can_be_measured(model_type):
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**encoders.get_small_fields(CONFIG_MAPPING[model_type]()))
    sizes = load.get_shape(config)
    assert (sizes["layers"], sizes["hidden"], config.num_attention_heads) == (6, 384, 12)
    assert sizes["intermediate"] in (576, 1032, 1536)
    assert not getattr(config, "num_key_value_heads", None) or config.num_key_value_heads == 12


def test_pictures_are_xml_and_follow_the_page_color():
    drawn = report.draw_bars([("a < b", [report.Bar("x & y", 2.0, "2", True), report.Bar("z", 1.0, "1")])], "n")
    assert len(tree.fromstring(drawn).findall(".//{http://www.w3.org/2000/svg}rect")) == 2
    assert "prefers-color-scheme:dark" in drawn


def test_a_case_is_measured_once(tmp_path):
    file, measured = tmp_path / "new" / "runs.jsonl", []

    def measure():
        measured.append(1)
        return {"score": len(measured)}

    identity = {"key": {"seed": 1}, "rows": None}
    assert [harness.measure_once(file, identity, measure)["score"] for _ in range(2)] == [1, 1]
    assert harness.measure_once(file, {**identity, "rows": 5}, measure)["score"] == 2
    assert [line["score"] for line in harness.read_lines(file)] == [1, 2]


def test_options_say_what_they_take(monkeypatch):
    words = "cola stsb --model m --rows 5 --seeds 1 2 --sets b --files x y --no-fast --limit 3"
    monkeypatch.setattr("sys.argv", ["script", *words.split()])
    own = {"rows": (10, "rows"), "seeds": [3], "sets": {"a": 1, "b": 2}, "files": [Path], "fast": True, "work": Path}
    options = harness.read_options("A script.", "recipes+ model data? limit", **own)
    assert (options.recipes, options.model, options.data, options.limit) == (["cola", "stsb"], Path("m"), None, 3)
    assert (options.rows, options.seeds, options.sets, options.files) == (5, [1, 2], ["b"], [Path("x"), Path("y")])
    assert (options.fast, options.work) == (False, None)


def test_a_program_says_what_it_took_and_how_it_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tell.py").write_text("import sys; print('talk'); print('[1]'); sys.exit(*map(int, sys.argv[1:]))")
    took = harness.run_program("tell")
    assert took["printed"] == [1]
    assert took["memory_mb"] > 1 and took["seconds"] > 0
    with pytest.raises(SystemExit, match="tell 3\nexit code 3"):
        harness.run_program("tell", 3)


def test_a_recorded_run_is_not_repeated(tmp_path):
    file = tmp_path / "quality.jsonl"
    file.write_text('{"key": {"seed": 1}, "scores": {"f1": 0.5}}\n{"key": {"seed": 2}, "sco')
    assert harness.find_line(file, {"key": {"seed": 1}})["scores"] == {"f1": 0.5}
    assert harness.find_line(file, {"key": {"seed": 2}}) is None


def test_no_worse_needs_the_bound_above_the_margin():
    def runs(*values):
        key = {"recipe": "cola", "epochs": 3.0, "limit": None, "engine": "bertkit"}
        return [{"key": key, "scores": {"f1": value}} for value in values]

    assert quality.compare(runs(0.5, 0.51, 0.49), runs(0.5, 0.51, 0.49), "f1", 0.03)["no_worse"]
    assert not quality.compare(runs(0.4, 0.41, 0.39), runs(0.5, 0.51, 0.49), "f1", 0.03)["no_worse"]
    assert not quality.compare(runs(0.5), runs(0.5), "f1", 0.03)["no_worse"]


def test_every_engine_is_compared_with_each_peer_that_trained_on_the_same():
    def run(engine, seed, score, limit=None):
        key = {"recipe": "ner", "epochs": 1.0, "limit": limit, "batch_size": None, "model": "m", "engine": engine}
        return {"key": {**key, "seed": seed}, "scores": {"f1": score}}

    engines = {"bertkit": 0.8, "bertkit:training.batching=random": 0.82, "hf-dynamic": 0.81, "hf-tuned": 0.79}
    runs = [run(engine, seed, score) for engine, score in engines.items() for seed in (1, 2)]
    lines = quality.quality_table(quality.compare_all([*runs, run("bertkit", 1, 0.1, limit=50)])).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(each[4], each[5], each[8]) for each in cells] == [
        ("bertkit", "hf-dynamic", "-0.0100"),
        ("bertkit", "hf-tuned", "+0.0100"),
        ("bertkit, batching=random", "hf-dynamic", "+0.0100"),
        ("bertkit, batching=random", "hf-tuned", "+0.0300"),
    ]


def test_the_picture_of_quality_shows_intervals_around_differences():
    def run(engine, seed, score):
        key = {"recipe": "cola", "epochs": 3.0, "limit": None, "batch_size": None, "model": "m", "engine": engine}
        return {"key": {**key, "seed": seed}, "scores": {"matthews_correlation": score, "accuracy": 0.9}}

    def dots(*runs):
        return re.findall("<title>([^<]*): ([^<:]*)</title>", report.quality_picture(runs))

    ours, theirs = [0.50, 0.52, 0.51], [0.51, 0.52, 0.50]
    runs = [run("bertkit", seed, score) for seed, score in enumerate(ours)]
    runs += [run("hf-dynamic", seed, score) for seed, score in enumerate(theirs)]
    bound = 100 * quality.lower_bound(ours, theirs)
    assert dots(*runs) == [("cola, epochs=3", f"+0.00 ({bound:+.2f} to {-bound:+.2f})")]  # one metric, the recipe's
    slow = [run("bertkit:training.precision=bf16;training.batching=random", seed, 0.4) for seed in (1, 2)]
    label, shown = dots(*runs, *slow)[1]
    assert label == "cola, epochs=3, batching=random"
    assert shown.startswith("-11.00 (-")
    assert quality.compare_all(runs[:4])[0]["bound"] == -math.inf  # one seed has no interval


def test_the_gain_of_few_shot_is_that_of_each_draw():
    scores = {"few-shot": [0.7, 0.66, 0.69], "fine-tuning": [0.62, 0.65, 0.6]}
    runs = [
        {"key": {"task": "sst2", "per_class": 8, "method": method, "draw": draw}, "accuracy": value}
        for method, values in scores.items()
        for draw, value in enumerate(values)
    ]
    runs.append({"key": {"task": "sst2", "method": "zero-shot"}, "accuracy": 0.5, "interval": [0.4, 0.6]})
    lines = few_shot.few_shot_part(runs).splitlines()[2:]
    gains = [ours - theirs for ours, theirs in zip(*scores.values(), strict=True)]
    ends = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert f"| {sum(gains) / 3:+.3f} ({ends.low:+.3f} to {ends.high:+.3f}) | 3 |" in lines[2]
    assert lines[0] == "| sst2 | 0 | zero-shot | 0.500 (0.400 to 0.600) |  |  |"


def test_a_case_is_options_and_changes(tmp_path):
    (tmp_path / "glue" / "cola").mkdir(parents=True)
    case = cases.make_case("cola", "m", tmp_path, limit=9)
    assert case.load().data.limit == 9
    assert "data.limit=9" in case.options()
    with pytest.raises(SystemExit, match="no rows for squad"):
        cases.make_case("squad", "m", tmp_path)


def test_goals_say_what_is_reached():
    assert "missed (goal 1.3x)" in report.format_goal(1.2, 1.3, "{:.2g}x")
    assert report.format_goal(1.2, None, "{:.2g}x") == "1.2x"


def test_medians_are_those_of_clean_runs():
    seconds = {1.0: 0.0, 2.0: 0.05, 4.0: 0.0, 90.0: 1.5}
    runs = [{"seconds": took, "memory_mb": int(300 + took), "foreign": foreign} for took, foreign in seconds.items()]
    summary = harness.summarize_runs(runs, 0.06)
    assert (summary["seconds"], summary["memory_mb"], summary["clean_runs"]) == (2.0, 304, 3)
    assert harness.summarize_runs(runs[3:], 0.06)["seconds"] == 90
    engines = {name: {**summary, "threads": 2, "precision": "fp32"} for name in ("bertkit", "peer")}
    report = {"task": "cola", "settings": {"epochs": 1.0, "limit": 7}, "engines": engines}
    assert "| peer | 2.0 | 1.00x | 304 | 2 | fp32 |" in whole.programs_part([report])


@pytest.mark.parametrize("threads", [None, 3])
def test_an_engine_gets_a_number_of_threads_only_if_it_is_required(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    environment = harness.make_environment(threads)
    assert environment.get("OMP_NUM_THREADS") == (str(threads) if threads else None)
    assert "GOMP_SPINCOUNT" not in environment


@pytest.mark.parametrize(("flags", "has_bf16"), [({"avx2"}, False), ({"avx2", "avx512_bf16"}, True)])
def test_the_tuned_peer_uses_bf16_only_if_the_cpu_has_it(monkeypatch, tmp_path, flags, has_bf16):
    monkeypatch.setattr(peers, "cpu_flags", lambda: flags)
    arguments = {
        name: peers.training_arguments(peers.VARIANTS[name], str(tmp_path)) for name in ("hf-tuned", "hf-dynamic")
    }
    assert arguments["hf-tuned"].bf16 == has_bf16
    assert not arguments["hf-dynamic"].bf16


def test_results_are_read_back_as_they_were(tmp_path):
    kept = {"a": [1, 2.5, None], "b": {"name": "two  words", "c": [{"d": 1}, {"d": 2}]}}
    harness.write_results(kept, tmp_path / "new" / "r.json")
    text = (tmp_path / "new" / "r.json").read_text()
    assert json.loads(text) == kept
    assert len(text.splitlines()) < 12


def test_servers_have_a_row_each_and_medians_of_rounds():
    from benchmarks.serving import serving_part

    cases = [
        {"case": f"{engine}, {clients} clients, round {turn}", "engine": engine, "clients": clients, "machine": "A CPU"}
        | {"per_second": rate * turn, "p50_ms": 8.0, "p99_ms": 16.0 * turn, "failed": 0, "requests": 500}
        for turn in (1, 2, 3)
        for engine, rate in (("bertkit", 100), ("naive", 20))
        for clients in (1, 32)
    ]
    lines = serving_part([{"case": "memory, 100 requests", "megabytes": [1, 2]}, *cases]).splitlines()
    assert lines[0] == "| requests/s (p50 and p99, ms) | 1 client | 32 clients |"
    assert lines[2:4] == ["| bertkit | 200 (8, 32) | 200 (8, 32) |", "| naive | 40 (8, 32) | 40 (8, 32) |"]
    assert lines[-1].startswith("Medians of 3 rounds. 0 of 6,000 requests failed. A CPU")


def test_the_page_of_reproduction_has_the_published_scores_of_every_recipe():
    part = reproduction.reproduction_part(report.read_reports(harness.RESULTS, "reproduction"))
    assert part in (harness.ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8"), (
        "run `python -m benchmarks.report`"
    )
    published = [name for name in recipe_names() if load_recipe(name).published]
    assert [line.split("`")[1] for line in part.split("\n")[2:]] == [f"bertkit finetune {name}" for name in published]


def test_answers_of_another_text_are_counted_and_so_are_lost_ones():
    from benchmarks.soak import count_outcomes

    def answer(score):
        return [{"label": "yes", "score": score}, {"label": "no", "score": 1 - score}]

    expected = {"a": {"yes": 0.75, "no": 0.25}, "b": {"yes": 0.5, "no": 0.5}}
    answers = [("a", 200, answer(0.75 + 1e-7)), ("b", 200, answer(0.75)), ("a", 429, {}), ("b", 0, "reset")]
    counted = count_outcomes(answers, expected)
    assert counted["statuses"] == {"200": 2, "429": 1, "0": 1}
    assert (counted["lost"], counted["mixed"], counted["largest_difference"]) == (1, 1, 0.25)
