"""What each layer of an encoder knows, from the length of a text to the senses of words: a table and one picture.

    python -m benchmarks.probing --model DIR --data DIR [--seeds N]

`--data` has ud_en_ewt, conll2003 and coarsewsd20 as Parquet files in the columns of the hub. Adds one JSON line per
task to benchmarks/results/probing.jsonl; a task that is there is not measured again. Then it draws
docs/images/probing.svg and prints the table of docs/probe.md. With MiniLM and five seeds that takes about 6 minutes of
a core. A row of `TASKS` is a command, such as:

    bertkit probe pos --model DIR --data DIR/ud_en_ewt --seeds 5 --limit 800 --items 5000
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.harness import RESULTS, ROOT, measure_once, read_options, table
from benchmarks.pictures import draw_panels

PICTURE = ROOT / "docs" / "images" / "probing.svg"

TASKS = {
    "length": ("length", "ud_en_ewt", "accuracy", 1500),
    "parts of speech": ("pos", "ud_en_ewt", "accuracy", 800),
    "dependency arcs": ("arcs", "ud_en_ewt", "accuracy", 800),
    "dependency relations": ("relations", "ud_en_ewt", "accuracy", 800),
    "named entities": ("ner", "conll2003", "f1_macro", 1500),
    "senses": ("wsd", "coarsewsd20", "accuracy", 1500),
}
"""Title -> task, folder, metric, and training rows."""

ITEMS = 5000


def measure(model: Path, data: Path, title: str, seeds: int) -> dict[str, Any]:
    """Probe all layers for a task, and return the result with the processor time that it took."""
    from bertkit.workflows.probe import ProbeSettings, load_probe_recipe, probe

    task, folder, metric, limit = TASKS[title]
    recipe = load_probe_recipe(task, {"model": str(model), "data.source": str(data / folder)})
    settings = ProbeSettings(metric=metric, seeds=seeds, limit=limit, items=ITEMS, precision="fp32")
    start = time.process_time()
    result = dataclasses.asdict(probe(recipe, settings))
    seconds = round(time.process_time() - start, 1)
    return {**result, "title": title, "model": model.name, "source": folder, "cpu_seconds": seconds}


def as_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Write a table: per task the score of each layer with its selectivity and compression, and the summary.

    >>> layer = {"layer": 0, "score": 0.5, "selectivity": 0.25, "compression": 1.5, "is_as_good": True}
    >>> probed = {"layers": [layer], "best_layer": 0, "baselines": {"most frequent label": 0.25}}
    >>> probed |= {"center_of_gravity": 0.0}
    >>> print(as_markdown([{"title": "length", "metric": "accuracy", "probed": probed}]))
    | task (metric) | most frequent label / of each word | 0 | best (as good) | center of gravity |
    |---|---|---|---|---|
    | length (accuracy) | .250 | **.500** | 0 | 0.00 |
    | selectivity |  | .250 |  |  |
    | compression |  | 1.50 |  |  |
    """
    layers = [str(one["layer"]) for one in results[0]["probed"]["layers"]]
    lines = []
    for result in results:
        probed = result["probed"]
        best, rows = probed["best_layer"], probed["layers"]
        scores = [_short(one["score"], "**" if one["layer"] == best else "") for one in rows]
        others = ", ".join(str(one["layer"]) for one in rows if one["is_as_good"] and one["layer"] != best)
        baseline = " / ".join(map(_short, probed["baselines"].values()))
        best = f"{best} ({others})" if others else best
        title = f"{result['title']} ({result['metric']})"
        lines += [
            [title, baseline, *scores, best, f"{probed['center_of_gravity']:.2f}"],
            ["selectivity", "", *(_short(one["selectivity"]) for one in rows), "", ""],
            ["compression", "", *(f"{one['compression']:.2f}" for one in rows), "", ""],
        ]
    titles = ("task (metric)", "most frequent label / of each word", *layers, "best (as good)", "center of gravity")
    return table(titles, lines, "l" * len(titles))


def draw(results: Sequence[Mapping[str, Any]]) -> str:
    """Draw a panel per task, two side by side, as one picture that stands alone."""
    from bertkit.reports.insight.probe import draw_layers

    panels = []
    for result in results:
        layers = [SimpleNamespace(**one) for one in result["probed"]["layers"]]
        shown: Any = SimpleNamespace(**{**result, "probed": SimpleNamespace(**{**result["probed"], "layers": layers})})
        panels.append((result["title"], draw_layers(shown)))
    return draw_panels(panels, f"What each layer of {results[0]['model']} knows", columns=2)


def _short(score: float, mark: str = "") -> str:
    return f"{mark}{score:.3f}{mark}".replace("0.", ".", 1)


def main() -> None:
    asked = read_options(__doc__, "model data", seeds=5, output=RESULTS / "probing.jsonl")
    results = [
        measure_once(asked.output, {"title": title}, partial(measure, asked.model, asked.data, title, asked.seeds))
        for title in TASKS
    ]
    PICTURE.write_text(draw(results), encoding="utf-8")
    print(as_markdown(results))


if __name__ == "__main__":
    main()
