"""Clusters beside the senses of words, and duplicates beside those that were planted; time and memory at many rows.

    python -m benchmarks.groups --model DIR --data DIR [--only senses planted sizes] [--rows N ...]

`--data` has coarsewsd20/test.parquet, glue/qqp, glue/sst2 and squad in the columns of the hub. Writes
benchmarks/results/groups.json and the measured parts of docs/vectors.md.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import ROOT, environment, write_results
from benchmarks.load import machine
from benchmarks.report import replace_part
from bertkit.storage.files import split_lines

METHODS = ("kmeans", "agglomerative")
PLANTED = 200  # copies of each type
RESULTS = ROOT / "benchmarks" / "results" / "groups.json"
PAGE = ROOT / "docs" / "vectors.md"


def read_columns(file: Path, *names: str) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return parquet.read_table(file, columns=list(names)).to_pylist()


# --- Clusters beside senses ---


def measure_senses(model: str, data: Path, per_word: int) -> dict[str, Any]:
    """Cluster the sentences of each word into as many clusters as it has senses; return means over the words."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from bertkit.vectors.groups.clusters import fit_clusters

    rows = read_columns(data / "coarsewsd20" / "test.parquet", "word", "tokens", "word_pos", "sentence", "label")
    drawn = defaultdict(list)
    for row in random.Random(0).sample(rows, len(rows)):
        if len(drawn[row["word"]]) < per_word:
            drawn[row["word"]].append(row)
    chosen = [row for of_word in drawn.values() for row in of_word]
    words = np.array([row["word"] for row in chosen])
    senses = np.array([row["label"] for row in chosen])
    report: dict[str, Any] = {"words": len(drawn), "rows": len(chosen), "vectors": {}}
    for name, vectors in embed_senses(model, chosen).items():
        for method in METHODS:
            scores, shares = [], []
            for word in drawn:
                of_word = words == word
                gold = senses[of_word]
                clustering, labels = fit_clusters(vectors[of_word], method, len(set(gold)))
                scores.append((adjusted_rand_score(gold, labels), normalized_mutual_info_score(gold, labels)))
                again = (clustering.assign(vectors[of_word]), fit_clusters(vectors[of_word], method, len(set(gold)))[1])
                shares.append([(other == labels).mean() for other in again])
            names = ("adjusted_rand", "nmi", "assigned_as_fitted", "same_with_the_same_seed")
            means = [*np.mean(scores, axis=0).tolist(), *np.mean(shares, axis=0).tolist()]
            report["vectors"][f"{name}, {method}"] = dict(zip(names, means, strict=True))
    return report


def embed_senses(model: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return vectors of the sentences, and of the target words in them."""
    from bertkit.progress import SILENT
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.embedding.units import UNITS

    targets = [(row["tokens"], row["word_pos"]) for row in rows]
    embedder = Embedder(model, precision="fp32")
    of_words = UNITS["target"].encode(embedder, targets, SILENT).vectors
    return {"sentence": embedder.encode([row["sentence"] for row in rows]), "word": of_words}


# --- Planted duplicates ---


def plant(data: Path, folder: Path) -> dict[str, list[int]]:
    """Write rows.jsonl, in which some rows copy earlier ones, and pairs.jsonl; return the copies of each type.

    Copies in the same words differ in case and spaces. Near copies are paragraphs with every fiftieth word replaced.
    Paraphrases are questions of Quora that people have marked as duplicates; pairs that they have not marked are there,
    too.
    """
    draw = random.Random(0)
    sentences = distinct(row["sentence"] for row in read_columns(data / "glue/sst2/train.parquet", "sentence"))
    short = draw.sample([text for text in sentences if len(text) > 30], 2000)
    contexts = distinct(row["context"] for row in read_columns(data / "squad/validation.parquet", "context"))
    paragraphs = draw.sample(contexts, 250)
    questions = read_columns(data / "glue/qqp/train.parquet", "question1", "question2", "label")
    alike = draw.sample([row for row in questions if row["label"] == 1], PLANTED)
    others = draw.sample([row for row in questions if row["label"] == 0], 1000)
    firsts = distinct(row["question1"] for row in alike + others)
    texts = [*short, *paragraphs, *firsts, *distinct((row["question2"] for row in others), firsts)]
    draw.shuffle(texts)
    copies = {
        "exact": [f" {text.upper()} ".replace(" ", "  ") for text in draw.sample(short, PLANTED)],
        "near": [replace_words(text, draw) for text in draw.sample(paragraphs, PLANTED)],
        "meaning": distinct((row["question2"] for row in alike), texts),
    }
    planted, rows = {}, list(texts)
    for name, of_type in copies.items():
        planted[name] = list(range(len(rows), len(rows) + len(of_type)))
        rows += of_type
    write_jsonl(folder / "rows.jsonl", [{"text": text} for text in rows])
    pairs = read_columns(data / "glue/qqp/validation.parquet", "question1", "question2", "label")
    named = [{"text": row["question1"], "text_pair": row["question2"], "label": row["label"]} for row in pairs]
    write_jsonl(folder / "pairs.jsonl", named)
    return planted


def distinct(texts: Any, others: Sequence[str] = ()) -> list[str]:
    """Return texts that differ in more than case and spaces, from each other and from `others`."""
    seen = {" ".join(text.casefold().split()) for text in others}
    kept = {}
    for text in texts:
        key = " ".join(text.casefold().split())
        if key and key not in seen:
            kept.setdefault(key, text)
    return list(kept.values())


def replace_words(text: str, draw: random.Random) -> str:
    """Replace every fiftieth word, one at least, by another one of the text.

    >>> replace_words("one two", random.Random(1))
    'two two'
    """
    words = text.split()
    for place in draw.sample(range(len(words)), -(-len(words) // 50)):
        words[place] = draw.choice([word for word in words if word != words[place]] or words)
    return " ".join(words)


def write_jsonl(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure_planted(model: str, data: Path, folder: Path) -> dict[str, Any]:
    """Run `bertkit dedup` on planted rows, and return precision, and recall of each type of copy."""
    planted = plant(data, folder)
    report: dict[str, Any] = {"planted": {name: len(rows) for name, rows in planted.items()}}
    options = ["--model", model, "--pairs", "pairs.jsonl", "--precision", "0.8"]
    for name, more in (("words alone", []), ("words and meaning", options)):
        command = ["dedup", "rows.jsonl", "--report", "report.jsonl", "--json", *more]
        result = json.loads(run_bertkit(folder, command))
        groups = [json.loads(line) for line in split_lines((folder / "report.jsonl").read_text(encoding="utf-8"))]
        gone = {row["row"] - 1: row["reason"] for row in groups if not row["kept"]}
        copies = {row: kind for kind, rows in planted.items() for row in rows}
        # of a copy and its original either may go: the group says that they belong together
        with_copy = {row["group"] for row in groups if row["row"] - 1 in copies}
        right = [row for row in groups if not row["kept"] and row["group"] in with_copy]
        report[name] = {
            "rows": result["rows"],
            "removed": len(gone),
            "threshold": result["threshold"],
            "precision": len(right) / max(len(gone), 1),
            "recall": {kind: float(np.mean([row in gone for row in rows])) for kind, rows in planted.items()},
        }
    return report


def run_bertkit(folder: Path, arguments: Sequence[str]) -> str:
    command = [sys.executable, "-m", "bertkit", *arguments]
    ended = subprocess.run(
        command, cwd=folder, env=environment(2, PYTHONPATH=str(ROOT)), capture_output=True, text=True
    )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return ended.stdout


# --- Many rows ---


def measure_apart(rows: int) -> dict[str, Any]:
    """Measure in a process of its own, whose memory is its own."""
    options = ["--model", "-", "--data", "-", "--in-this-process", str(rows)]
    command = [sys.executable, "-m", "benchmarks.groups", *options]
    ended = subprocess.run(command, cwd=ROOT, env=environment(2), check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def measure_rows(rows: int, dimension: int = 384) -> dict[str, Any]:
    """Look for planted near vectors among random ones, in this process; return time, memory and what was found."""
    import resource
    import time

    import torch

    from bertkit.vectors.groups.meaning import find_similar

    torch.set_num_threads(2)
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((rows, dimension), dtype=np.float32)
    copies = rows // 100
    originals = draw.choice(rows - copies, copies, replace=False)
    vectors[-copies:] = vectors[originals] + 0.3 * draw.standard_normal((copies, dimension), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    start, busy = time.monotonic(), time.process_time()
    similar = find_similar(vectors, 0.9)
    return {
        "rows": rows,
        "seconds": time.monotonic() - start,
        "processor_seconds": time.process_time() - busy,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "planted": copies,
        "found": int((similar.kept[-copies:] == originals).sum()),
        "others_removed": int((similar.kept[:-copies] >= 0).sum()),
        "approximate_recall": similar.recall,
    }


# --- The page ---


def senses_part(report: dict[str, Any]) -> str:
    """Write the table of clusters and senses."""
    lines = ["| vectors of the | method | adjusted Rand | NMI |", "|---|---|---|---|"]
    for name, scores in report["vectors"].items():
        vectors, _, method = name.rpartition(", ")
        lines.append(f"| {vectors} | {method} | {scores['adjusted_rand']:.2f} | {scores['nmi']:.2f} |")
    return "\n".join(lines)


def planted_part(report: dict[str, Any]) -> str:
    """Write the table of planted duplicates."""
    head = "| compared | rows | removed | precision | recall: same words | nearly the same | paraphrased |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for name in ("words alone", "words and meaning"):
        scores = report[name]
        shares = " | ".join(f"{scores['recall'][kind]:.2f}" for kind in ("exact", "near", "meaning"))
        at = "" if scores["threshold"] is None else f", cosine {scores['threshold']:.2f} and more"
        lines.append(
            f"| {name}{at} | {scores['rows']:,} | {scores['removed']:,} | {scores['precision']:.2f} | {shares} |"
        )
    return "\n".join(lines)


def sizes_part(sizes: Sequence[dict[str, Any]]) -> str:
    """Write the table of time and memory."""
    lines = ["| rows | processor seconds | memory | copies | found | removed wrongly |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {size['rows']:,} | {size['processor_seconds']:,.0f} | {size['megabytes'] / 1000:.1f} GB |"
        f" {size['planted']:,} | {size['found']:,} | {size['others_removed']:,} |"
        for size in sizes
    ]
    return "\n".join(lines)


PARTS: dict[str, Callable[[Any], str]] = {"senses": senses_part, "planted": planted_part, "sizes": sizes_part}


def write_page(report: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in PARTS.keys() & report.keys():
        page = replace_part(page, name, PARTS[name](report[name]))
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure these parts anew")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--per-word", type=int, default=60, help="sentences of each word")
    parser.add_argument("--in-this-process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_this_process:
        print(json.dumps(measure_rows(arguments.in_this_process)))
        return
    report: dict[str, Any] = {"machine": machine(2)}
    if "senses" in arguments.only:
        report["senses"] = measure_senses(arguments.model, arguments.data, arguments.per_word)
    if "planted" in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            report["planted"] = measure_planted(arguments.model, arguments.data, Path(folder))
    if "sizes" in arguments.only:
        report["sizes"] = [measure_apart(rows) for rows in arguments.rows]
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    write_results({**before, **report}, RESULTS)
    write_page({**before, **report})


if __name__ == "__main__":
    main()
