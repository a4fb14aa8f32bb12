"""What bertkit reads from disk: a reader per kind of file, and a whole file of that kind to begin with.

Three tools damage these files: attack_fuzz.py at random, attack_coverage.py by the branches that a file reaches, and
tests/test_fuzzed.py by Hypothesis. That test also reads again what was found once.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import yaml

from bertkit.data.sources import read_splits
from bertkit.errors import BertkitError
from bertkit.recipe import load_recipe
from bertkit.recipe.load import load_pretrain_recipe, parse_changes
from bertkit.storage.checkpoints import MANIFEST
from bertkit.storage.hub import find_model
from bertkit.tasks import load_task
from tools.attack_yard import REFUSED

SECONDS, BYTES = 5, 1 << 30
"""A reader that takes longer hangs, and one that takes more memory takes too much."""

ROWS = [{"text": f"the {word} film number {n}", "label": word} for n, word in enumerate(("good", "bad") * 6)]
SENTENCE = "-DOCSTART- -X- O O\n\n" + "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n. . O O\n\n" * 3
TREE = "# text = cats ran\n1\tcats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tran\trun\tVERB\t_\t_\t0\troot\t_\t_\n\n" * 3
ANSWERS = {"text": "good film", "answer_start": 6}
QUESTIONS = [{"id": f"q{n}", "question": "What?", "answers": [ANSWERS]} for n in range(3)]
SQUAD = {"version": "1.1", "data": [{"title": "A", "paragraphs": [{"context": "See a good film.", "qas": QUESTIONS}]}]}
SPANS = [{"text": "EU rejects it", "spans": [{"start": 0, "end": 2, "label": "ORG"}]} for _ in range(4)]
ASKED = {
    "liked": {"type": "yes_no", "instructions": "good"},
    "kind": {"type": "choice", "instructions": "film", "criteria": {"dull": None, "fine": "very good"}},
    "stars": {"type": "score", "instructions": "stars", "criteria": ["bad", "fine", "good"]},
}
TYPED = [
    {"state": f"film {n}", "questions": ASKED, "answers": {"liked": True, "kind": "fine", "stars": 2}} for n in range(3)
]
CASES = """tests:
  - {name: negation, template: "the film is {word}", slots: {word: [good, bad]}, answer: good}
  - {change: typo, allowed: 0.1}
  - {change: synonyms, words: {film: movie}, rises: good, rows: [{text: "a film", label: good}]}
"""


class Target(NamedTuple):
    """A kind of file."""

    file: str
    content: bytes
    read: Callable[[Path], object]
    """Reads the folder in which the file is."""
    folder: Path | None = None
    """What is beside it there."""

    def __repr__(self) -> str:
        """Return the name alone: a content has megabytes."""
        return self.file


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_table(delimiter: str) -> bytes:
    """Return the rows as a table."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["text", "label"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return stream.getvalue().encode()


def as_parquet() -> bytes:
    """Return the rows as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), stream := io.BytesIO())
    return stream.getvalue()


def as_zstd(data: bytes) -> bytes:
    """Return bytes as a file of zstd."""
    import pyarrow as pa

    with pa.CompressedOutputStream(stream := pa.BufferOutputStream(), "zstd") as compressed:
        compressed.write(data)
    return stream.getvalue().to_pybytes()


def as_workbook() -> bytes:
    """Return the rows as an Excel workbook."""
    import openpyxl

    book = openpyxl.Workbook()
    for row in [["text", "label"], *([row["text"], row["label"]] for row in ROWS)]:
        book.active.append(row)
    book.save(stream := io.BytesIO())
    return stream.getvalue()


def read_rows(file: Path, name: str) -> None:
    """Read a file of rows as a recipe does, and compare the texts with those of Python's own readers.

    Raises:
        ValueError: the rows are others.
    """
    recipe = load_recipe(name, {"data.source": str(file), "model": "demo"})
    task = load_task(recipe)
    splits = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), lambda _: True)
    texts = sorted(row["text"] for split in splits.values() for row in split.rows) if name == "classify" else None
    expected = texts_of(file)
    if texts is not None and expected is not None and texts != sorted(expected):
        raise ValueError(f"other rows: {[text for text in texts if text not in expected][:3]} {len(texts)}")


def texts_of(file: Path) -> list[str] | None:
    """Return the texts that Python's own reader finds; None where it finds no plain rows or the format has none."""
    data = b"" if file.is_dir() else file.read_bytes()
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError, csv.Error, RecursionError):
        if file.suffix == ".jsonl":
            return [json.loads(line)["text"] for line in data.decode("utf-8-sig").split("\n") if line.strip()]
        if file.suffix == ".json":
            return [row["text"] for row in json.loads(data.decode("utf-8-sig"))]
        if file.suffix == ".csv":
            return [
                row["text"] for row in csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
            ]
    return None


def as_documents() -> bytes:
    """Return texts with spans as spaCy's DocBin."""
    from spacy import blank
    from spacy.tokens import DocBin

    english = blank("en")
    documents = [english(row["text"]) for row in SPANS]
    for document, row in zip(documents, SPANS, strict=True):
        document.set_ents([document.char_span(span["start"], span["end"], span["label"]) for span in row["spans"]])
    return DocBin(docs=documents).to_bytes()


def _of_rows(name: str, recipe: str, content: bytes) -> Target:
    return Target(name, content, lambda folder: read_rows(folder / name, recipe))


def row_targets() -> Iterator[Target]:
    """Yield the formats of rows, each with a recipe that reads it."""
    lines = json_lines(ROWS)
    yield _of_rows("rows.csv", "classify", as_table(","))
    yield _of_rows("rows.tsv", "classify", as_table("\t"))
    yield _of_rows("rows.jsonl", "classify", lines)
    yield _of_rows("rows.json", "classify", json.dumps(ROWS).encode())
    yield _of_rows("rows.parquet", "classify", as_parquet())
    yield _of_rows("zipped.jsonl.zst", "classify", as_zstd(lines))
    yield _of_rows("zipped.csv.gz", "classify", gzip.compress(as_table(","), mtime=0))
    yield _of_rows("rows.xlsx", "classify", as_workbook())
    yield _of_rows("words.conll", "ner", SENTENCE.encode())
    yield _of_rows("trees.conllu", "pos", TREE.encode())
    yield _of_rows("spans.jsonl", "tag", json_lines(SPANS))
    if find_spec("spacy"):
        yield _of_rows("spans.spacy", "tag", as_documents())
    yield _of_rows("squad.json", "squad", json.dumps(SQUAD).encode())
    yield _of_rows("typed.jsonl", "decide", json_lines(TYPED))


def read_recipe(file: Path) -> None:
    """Read a recipe, and load the family that it names."""
    load_task(load_recipe(str(file), {"model": "demo"}))


def read_changes(file: Path) -> None:
    """Read lines as `--set` does its values."""
    load_recipe("classify", parse_changes(file.read_bytes().decode("utf-8", "surrogateescape").split("\n")))


def setting_targets() -> Iterator[Target]:
    """Yield recipes, overrides and tests."""
    from bertkit.workflows.test import read_tests

    root = Path(__file__).parent.parent / "recipes"
    mixed = (
        b"extends: classify\ntraining: {epochs: 2, learning_rate: 1e-5}\nlabels: [good, bad]\noptions: {overlap: 8}\n"
    )
    changes = b"training.epochs=3\noptions.long_text=windows_mean\ndata.files={train: a.csv}\nlabels=[a, b]"
    questions = yaml.safe_dump({"extends": "decide", "options": {"questions": ASKED}}).encode()
    yield Target("questions.yaml", questions, lambda folder: read_recipe(folder / "questions.yaml"))
    yield Target("recipe.yaml", mixed, lambda folder: read_recipe(folder / "recipe.yaml"))
    mlm = (root / "pretrain" / "mlm.yaml").read_bytes()
    yield Target("mlm.yaml", mlm, lambda folder: load_pretrain_recipe(str(folder / "mlm.yaml")))
    yield Target("changes", changes, lambda folder: read_changes(folder / "changes"))
    yield Target("cases.yaml", CASES.encode(), lambda folder: read_tests(folder / "cases.yaml"))


def read_run(folder: Path) -> None:
    """Read a run, or several, as `runs show`, `runs list`, `doctor` and `predict` do."""
    from bertkit.storage.hub.models import check_model
    from bertkit.storage.run_list import find_runs, list_changes, summarize
    from bertkit.storage.runs import read_record
    from bertkit.workflows.doctor import examine_folder

    run = summarize(folder)
    if run is not None and run.state != "damaged" and run.seeds is None:
        list_changes(read_record(folder) or {})
    list(find_runs(folder))
    examine_folder(folder)
    if run is not None and run.seeds is None:
        check_model(folder)


def read_checkpoint(folder: Path) -> None:
    """Look for the newest whole checkpoint of a run, as training does that goes on."""
    from bertkit.storage.checkpoints import get_last_checkpoint

    get_last_checkpoint(folder, to_train=True)


def read_index(folder: Path) -> None:
    """Read an index as `search query --verify` does."""
    from bertkit.vectors.search.index import Index

    Index.open(folder, verify=True)


def read_export(folder: Path) -> None:
    """Read an exported folder as `predict` does, without its graph."""
    from bertkit.storage import exports

    exports.read_export(folder)
    exports.check_export(folder)


def read_model(folder: Path) -> None:
    """Read a model and its tokenizer, and encode a text."""
    from transformers import AutoModel

    from bertkit.modeling.checkpoint import load_config, quiet_transformers, read_config
    from bertkit.modeling.load import load_weights
    from bertkit.modeling.tokenizer import load_tokenizer

    quiet_transformers()
    read_config(folder)
    load_tokenizer(folder)("the good film")
    load_weights(AutoModel, folder, load_config(folder))


def folder_targets(store: Path) -> Iterator[Target]:
    """Yield files of the folders that commands have made, and of models."""
    readers: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
        "run": (read_run, ("run.json", "metrics.jsonl", "predictions.jsonl", "trainer_state.json")),
        "seeds": (read_run, ("seeds.json",)),
        "sweep": (read_run, ("sweep.json",)),
        "index": (read_index, ("manifest.json",)),
        "exported": (read_export, ("exported.json",)),
    }
    for name, (read, files) in readers.items():
        for file in files:
            if (store / name / file).is_file():
                yield Target(file, (store / name / file).read_bytes(), read, store / name)
    for manifest in sorted((store / "run").glob(f"checkpoint-*/{MANIFEST}"))[-1:]:
        file = str(manifest.relative_to(store / "run"))
        yield Target(file, manifest.read_bytes(), read_checkpoint, store / "run")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        yield Target(file, (find_model("demo") / file).read_bytes(), read_model, find_model("demo"))


def kept_targets(folder: Path) -> Iterator[Target]:
    """Yield what is read beside another file, and what the cache keeps: tokens of text, features of rows, numbers."""
    import datasets
    import numpy as np

    from bertkit.pretraining.shards import TokenizedDocuments, TokenShard
    from bertkit.storage.disk import ArrayWriter, load_arrays, map_arrays, save_arrays
    from bertkit.vectors.vector_files import read_vectors

    pair = folder / "brat"
    pair.mkdir(parents=True)
    (pair / "a.txt").write_text("Zoe went to New York.\nThen home to Zoe.")
    entities = b"T1\tPER 0 3\tZoe\nR1\tIn Arg1:T1 Arg2:T2\nT2\tLOC 12 20\tNew York\n#1\tAnnotatorNotes T1\tsure\n"
    yield Target("a.ann", entities, lambda place: read_rows(place / "a.ann", "tag"), pair)
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    for file in ("data-00000-of-00001.arrow", "state.json"):
        content = (folder / "saved" / file).read_bytes()
        yield Target(file, content, lambda place: read_rows(place, "classify"), folder / "saved")
    shard = TokenShard(folder / "shard")
    shard.folder.mkdir(parents=True, exist_ok=True)
    columns = {name: np.arange(4, dtype=np.int64) for name in TokenizedDocuments._fields}
    shard.save(0, TokenizedDocuments(**columns))
    shard.finish(1)
    save_arrays(folder / "numbers", {"a": np.arange(9.0)})
    np.save(folder / "vectors.npy", np.ones((4, 3), np.float32))
    for file in ("000000.arrays", "manifest.json"):
        content = (shard.folder / file).read_bytes()
        yield Target(file, content, lambda place: list(TokenShard(place).read()), shard.folder)
    yield Target("numbers", (folder / "numbers").read_bytes(), lambda place: load_arrays(place / "numbers"))
    vectors = (folder / "vectors.npy").read_bytes()
    yield Target("vectors.npy", vectors, lambda place: read_vectors(place / "vectors.npy", 4))
    with ArrayWriter(folder / "arrays", {"ids": "<u2"}) as writer:
        writer.append("ids", np.arange(9))
        writer.finish({"rows": 9})
    for file in ("ids.npy", "manifest.json"):
        yield Target(file, (folder / "arrays" / file).read_bytes(), map_arrays, folder / "arrays")


def all_targets(folder: Path, store: Path | None = None) -> dict[str, Target]:
    """Return all kinds of files by name; those of runs where a `store` of made things is there."""
    targets = [*row_targets(), *setting_targets(), *kept_targets(folder)]
    targets += folder_targets(store or Path("nowhere"))
    return {f"{target.folder.name}/{target.file}" if target.folder else target.file: target for target in targets}


class Hang(BaseException):
    """A reader took too long."""


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Hang


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Let what runs inside have `SECONDS` and `BYTES`, and end it in a Hang or a MemoryError where it takes more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, _interrupt)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def lay_out(target: Target, data: bytes, folder: Path) -> Path:
    """Write bytes as the file of a target, with what is beside it, and return where."""
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    if target.folder:
        shutil.copytree(target.folder, place, copy_function=os.link)
        (place / target.file).unlink(missing_ok=True)
    else:
        place.mkdir(parents=True)
    (place / target.file).write_bytes(data)
    return place


def warm_up(target: Target, folder: Path) -> None:
    """Let a target read its whole file, and import what it needs for that, which takes time and memory once."""
    target.read(lay_out(target, target.content, folder))


def try_target(target: Target, data: bytes, folder: Path) -> tuple[str, str | None]:
    """Let a target read bytes; return whether it read or refused, and what is wrong: all but a line of bertkit's."""
    place = lay_out(target, data, folder)
    try:
        with limited():
            target.read(place)
    except BertkitError as error:
        line = str(error)
        is_line = error.exit_code in REFUSED and "\n" not in line and len(line) < 4000
        return "refused", None if is_line else f"{type(error).__name__}: {line[:300]!r}"
    except OSError:  # which a command says in one line: see `_name_error` of bertkit/cli/main.py
        return "refused", None
    except (Exception, Hang) as error:
        return "crashed", f"{type(error).__name__}: {str(error)[:300]}"
    return "read", None
