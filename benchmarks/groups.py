"""Clusters beside the senses of words, and duplicates beside those that were planted; time and memory at many rows.

    python -m benchmarks.groups --model DIR --data DIR [--only senses planted sizes] [--rows N ...]

`--data` has coarsewsd20/test.parquet, glue/qqp, glue/sst2 and squad in the columns of the hub. Writes
benchmarks/results/groups.json; `python -m benchmarks.report` writes the measured parts of docs/benchmarks.md.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import find_folder
from benchmarks.harness import (
    Report,
    read_columns,
    read_lines,
    read_options,
    run_bertkit,
    run_program,
    table,
    write_results,
    write_rows,
)
from benchmarks.load import machine

METHODS = ("kmeans", "agglomerative")
PLANTED = 200  # copies of each type


# --- Clusters beside senses ---


def measure_senses(model: str, data: Path, per_word: int) -> Report:
    """Cluster the sentences of each word into as many clusters as it has senses; return means over the words."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from bertkit.vectors.groups.clusters import fit_clusters

    rows = read_columns(data / "coarsewsd20" / "test.parquet", "word", "tokens", "word_pos", "sentence", "label")
    drawn: dict[str, list[Report]] = {}
    for row in random.Random(0).sample(rows, len(rows)):
        if len(drawn.setdefault(row["word"], [])) < per_word:
            drawn[row["word"]].append(row)
    chosen = [row for of_word in drawn.values() for row in of_word]
    words = np.array([row["word"] for row in chosen])
    senses = np.array([row["label"] for row in chosen])
    report: Report = {"words": len(drawn), "rows": len(chosen), "vectors": {}}
    for name, vectors in embed_senses(model, chosen).items():
        for method in METHODS:
            scores = []
            for word in drawn:
                gold = senses[words == word]
                _, labels = fit_clusters(vectors[words == word], method, len(set(gold)))
                scores.append((adjusted_rand_score(gold, labels), normalized_mutual_info_score(gold, labels)))
            means = np.mean(scores, axis=0).tolist()
            report["vectors"][f"{name}, {method}"] = dict(zip(("adjusted_rand", "nmi"), means, strict=True))
    return report


def embed_senses(model: str, rows: Sequence[Report]) -> Report:
    """Return vectors of the sentences, and of the target words in them."""
    from bertkit.vectors.embedder import Embedder
    from bertkit.vectors.embedding.units import UNITS

    targets = [(row["tokens"], row["word_pos"]) for row in rows]
    embedder = Embedder(model, precision="fp32")
    of_words = UNITS["target"].encode(embedder, targets).vectors
    return {"sentence": embedder.encode([row["sentence"] for row in rows]), "word": of_words}


# --- Planted duplicates ---


def plant(data: Path, folder: Path) -> dict[str, list[int]]:
    """Write rows.jsonl, in which some rows copy earlier ones, and pairs.jsonl; return the copies of each type.

    Copies in the same words differ in case and spaces. Near copies are paragraphs with every fiftieth word replaced.
    Paraphrases are questions of Quora that people have marked as duplicates; pairs that they have not marked are there,
    too.
    """
    draw = random.Random(0)
    sentences = distinct(
        row["sentence"] for row in read_columns(find_folder(data, "sst2") / "train.parquet", "sentence")
    )
    short = draw.sample([text for text in sentences if len(text) > 30], 2000)
    contexts = distinct(row["context"] for row in read_columns(data / "squad/validation.parquet", "context"))
    paragraphs = draw.sample(contexts, 250)
    questions = read_columns(find_folder(data, "qqp") / "train.parquet", "question1", "question2", "label")
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
    write_rows(({"text": text} for text in rows), folder / "rows.jsonl")
    pairs = read_columns(find_folder(data, "qqp") / "validation.parquet", "question1", "question2", "label")
    named = ({"text": row["question1"], "text_pair": row["question2"], "label": row["label"]} for row in pairs)
    write_rows(named, folder / "pairs.jsonl")
    return planted


def distinct(texts: Any, others: Sequence[str] = ()) -> list[str]:
    """Return texts that differ in more than case and spaces, from each other and from `others`."""
    seen = {" ".join(text.casefold().split()) for text in others}
    kept: dict[str, str] = {}
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


def measure_planted(model: Path, data: Path, folder: Path) -> Report:
    """Run `bertkit dedup` on planted rows, and return precision, and recall of each type of copy."""
    planted = plant(data, folder)
    report: Report = {"planted": {name: len(rows) for name, rows in planted.items()}}
    options = ["--model", model.resolve(), "--pairs", "pairs.jsonl", "--precision", "0.8"]
    for name, more in (("words alone", []), ("words and meaning", options)):
        result = run_bertkit("dedup", "rows.jsonl", "--report", "report.jsonl", *more, threads=2, folder=folder)
        groups = read_lines(folder / "report.jsonl")
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


# --- Many rows ---


def measure_rows(rows: int, dimension: int = 384) -> Report:
    """Look for planted near vectors among random ones; return time, memory and what was found."""
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


def senses_part(reports: Sequence[Report]) -> str:
    """Build the table of clusters and senses."""
    rows = []
    for name, scores in reports[0]["senses"]["vectors"].items():
        vectors, _, method = name.rpartition(", ")
        rows.append([vectors, method, f"{scores['adjusted_rand']:.2f}", f"{scores['nmi']:.2f}"])
    return table(("vectors of the", "method", "adjusted Rand", "NMI"), rows, "llll")


def planted_part(reports: Sequence[Report]) -> str:
    """Build the table of planted duplicates."""
    rows = []
    for name in ("words alone", "words and meaning"):
        scores = reports[0]["planted"][name]
        at = "" if scores["threshold"] is None else f", cosine {scores['threshold']:.2f} and more"
        shares = [scores["precision"], *(scores["recall"][kind] for kind in ("exact", "near", "meaning"))]
        counts = [f"{scores[count]:,}" for count in ("rows", "removed")]
        rows.append([name + at, *counts, *(f"{share:.2f}" for share in shares)])
    titles = ("compared", "rows", "removed", "precision", "recall: same words", "nearly the same", "paraphrased")
    return table(titles, rows, "lllllll")


def sizes_part(reports: Sequence[Report]) -> str:
    """Build the table of time and memory."""
    columns = {
        "rows": "{rows:,}",
        "processor seconds": "{processor_seconds:,.0f}",
        "memory": lambda size: f"{size['megabytes'] / 1000:.1f} GB",
        "copies": "{planted:,}",
        "found": "{found:,}",
        "removed wrongly": "{others_removed:,}",
    }
    return table(columns, reports[0]["sizes"], "llllll")


PARTS: dict[str, tuple[str, Callable[[Sequence[Report]], str]]] = {
    "senses": ("groups", senses_part),
    "planted": ("groups", planted_part),
    "sizes": ("groups", sizes_part),
}
"""Part of docs/benchmarks.md -> the file of results, and the function that writes it."""


def main() -> None:
    own = {
        "only": PARTS,
        "rows": [100_000],
        "per_word": (60, "sentences of each word"),
        "in_this_process": int,
    }
    asked = read_options(__doc__, "model? data? output", **own)
    if asked.in_this_process:
        print(json.dumps(measure_rows(asked.in_this_process)))
        return
    report: Report = {"machine": machine(2)}
    if "senses" in asked.only:
        report["senses"] = measure_senses(str(asked.model), asked.data, asked.per_word)
    if "planted" in asked.only:
        with tempfile.TemporaryDirectory() as folder:
            report["planted"] = measure_planted(asked.model, asked.data, Path(folder))
    if "sizes" in asked.only:  # in processes of their own, whose memory is their own
        command = ("benchmarks.groups", "--in-this-process")
        report["sizes"] = [run_program(*command, rows, threads=2)["printed"] for rows in asked.rows]
    file = asked.output / "groups.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    write_results({**before, **report}, file)


if __name__ == "__main__":
    main()
