"""What each layer of an encoder knows, from the length of a text to the senses of words: a table and one picture.

    python -m benchmarks.probing --model DIR --data DIR [--seeds N]

`--data` has ud_en_ewt, conll2003 and coarsewsd20 as Parquet files in the columns of the hub. Adds one JSON line per
task to benchmarks/results/probing.jsonl; a task that is there is not measured again. Then it draws
docs/images/probing.svg and prints the table of docs/probe.md. With MiniLM and five seeds that takes about 6 minutes of
a core. A row of `TASKS` is a command, such as:

    bertkit probe pos --model DIR --data DIR/ud_en_ewt --seeds 5 --limit 800 --items 5000
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.cases import ROOT
from bertkit.storage.files import split_lines

RESULTS = ROOT / "benchmarks" / "results" / "probing.jsonl"
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

_ITEMS = 5000
_TOP, _GAP = 30, 24
_STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#57606a}.title{fill:#1f2328;font-weight:600;font-size:15px}
.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d8dee4}.guide{stroke:#8c959f;stroke-dasharray:5 4}
.line{fill:none;stroke:#0969da;stroke-width:2}.dot,.band,.swatch{fill:#0969da}.band{fill-opacity:.18}
.ring{fill:none;stroke:#1f2328;stroke-width:1.6}.whisker{fill:none;stroke:#57606a;stroke-width:1.3}
.s1 .line{stroke:#bc4c00}.s1 .dot,.s1 .band,.s1 .swatch{fill:#bc4c00}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}.grid{stroke:#30363d}.guide{stroke:#656c76}
.line{stroke:#4493f8}.dot,.band,.swatch{fill:#4493f8}.ring{stroke:#f0f6fc}.whisker{stroke:#9198a1}
.s1 .line{stroke:#f0883e}.s1 .dot,.s1 .band,.s1 .swatch{fill:#f0883e}}
</style>"""


def measure(model: str, data: Path, title: str, seeds: int) -> dict[str, Any]:
    """Probe all layers for a task, and return the result with the processor time that it took."""
    from bertkit.workflows.probe import ProbeSettings, load_probe_recipe, probe

    task, folder, metric, limit = TASKS[title]
    recipe = load_probe_recipe(task, {"model": model, "data.source": str(data / folder)})
    settings = ProbeSettings(metric=metric, seeds=seeds, limit=limit, items=_ITEMS, precision="fp32")
    start = time.process_time()
    result = dataclasses.asdict(probe(recipe, settings))
    seconds = round(time.process_time() - start, 1)
    return {**result, "title": title, "model": Path(model).name, "source": folder, "cpu_seconds": seconds}


def as_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Write a table: per task the score of each layer with its selectivity and compression, and the summary.

    >>> layer = {"layer": 0, "score": 0.5, "selectivity": 0.25, "compression": 1.5, "is_as_good": True}
    >>> probed = {"layers": [layer], "best_layer": 0, "baselines": {"most frequent label": 0.25}}
    >>> probed |= {"center_of_gravity": 0.0}
    >>> print(as_markdown([{"title": "length", "metric": "accuracy", "probed": probed}]))
    | task (metric) | most frequent label / of each word | 0 | best (as good) | center of gravity |
    |---|---|---|---|---|
    | length (accuracy) | .250 | **.500** | 0 | 0.00 |
    | selectivity | | .250 | | |
    | compression | | 1.50 | | |
    """
    layers = [str(one["layer"]) for one in results[0]["probed"]["layers"]]
    names = "most frequent label / of each word"
    lines = [f"| task (metric) | {names} | {' | '.join(layers)} | best (as good) | center of gravity |"]
    lines.append("|---" * (len(layers) + 4) + "|")
    for result in results:
        probed = result["probed"]
        best, rows = probed["best_layer"], probed["layers"]
        scores = [_short(one["score"], "**" if one["layer"] == best else "") for one in rows]
        others = ", ".join(str(one["layer"]) for one in rows if one["is_as_good"] and one["layer"] != best)
        baseline = " / ".join(map(_short, probed["baselines"].values()))
        lines += [
            f"| {result['title']} ({result['metric']}) | {baseline} | {' | '.join(scores)} "
            f"| {best}{f' ({others})' if others else ''} | {probed['center_of_gravity']:.2f} |",
            f"| selectivity | | {' | '.join(_short(one['selectivity']) for one in rows)} | | |",
            f"| compression | | {' | '.join(format(one['compression'], '.2f') for one in rows)} | | |",
        ]
    return "\n".join(lines)


def draw(results: Sequence[Mapping[str, Any]]) -> str:
    """Draw a panel per task, two side by side, as one picture that stands alone."""
    from bertkit.reports.insight.probe import draw_layers
    from bertkit.reports.svg import WIDTH

    panels, height = [], 0.0
    for number, result in enumerate(results):
        probed = result["probed"]
        layers = [SimpleNamespace(**one) for one in probed["layers"]]
        shown = SimpleNamespace(**{**result, "probed": SimpleNamespace(**{**probed, "layers": layers})})
        panel = str(draw_layers(shown))
        own = float(panel.partition('viewBox="')[2].split('"')[0].split()[3])
        left, top = (WIDTH + _GAP) * (number % 2), number // 2 * (own + _TOP + _GAP)
        height = top + own + _TOP + _GAP
        place = f'<svg x="{left}" y="{top + _TOP:.0f}" width="{WIDTH}" height="{own:g}" overflow="visible" '
        panels.append(f'<text class="title" x="{left}" y="{top + 16:.0f}">{result["title"]}</text>')
        panels.append(panel.replace("<svg ", place, 1))
    width = 2 * WIDTH + _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 0 {width + 8} {height:.0f}" role="img">'
    title = f"<title>What each layer of {results[0]['model']} knows</title>"
    return "\n".join([head, title, _STYLE, *panels, "</svg>"]) + "\n"


def _short(score: float, mark: str = "") -> str:
    return f"{mark}{score:.3f}{mark}".replace("0.", ".", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    lines = split_lines(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    found = {result["title"]: result for result in map(json.loads, lines)}
    for title in TASKS:
        if title not in found:
            found[title] = measure(arguments.model, arguments.data, title, arguments.seeds)
            with RESULTS.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(found[title]) + "\n")
            print(f"{title}: {found[title]['cpu_seconds']} s of a core", flush=True)
    results = [found[title] for title in TASKS]
    PICTURE.write_text(draw(results), encoding="utf-8")
    print(as_markdown(results))


if __name__ == "__main__":
    main()
