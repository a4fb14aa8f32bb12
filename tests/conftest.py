"""Tiny models and rows, made on the spot; no test needs a network or a file that is not in the project."""

from __future__ import annotations

import contextlib
import csv
import functools
import gc
import io
import json
import logging
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from hypothesis import HealthCheck, settings

from tests.quick import RESAMPLES, TIMING, compute_once, draw_resamples, fit_once, skip_waste

# a loaded machine is no fault of the code: only what an example shows may fail a test, not how long it took
settings.register_profile("any machine", max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("any machine"), max_examples=12)

PACKAGE = Path(__file__).parents[1] / "bertkit"
modules_frozen = 0
gc.disable()  # until all tests are collected: the imports allocate millions of objects, and none of them is garbage


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples per property where slow tests are left out too."""
    settings.load_profile("quick" if config.option.markexpr else "any machine")
    config.pluginmanager.register(ModulesWithExamples)  # hooks of a conftest see files beside it alone


class ModulesWithExamples:
    @staticmethod
    def pytest_ignore_collect(collection_path: Path) -> bool | None:
        """Tell whether a module of the package has no doctest, so that none is imported and searched for nothing."""
        if collection_path.suffix != ".py" or not collection_path.is_relative_to(PACKAGE):
            return None
        return b">>>" not in collection_path.read_bytes() or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[list[pytest.Collector]]:
    """Look for doctests in the package alone: to look for them here, where none is, is a tenth of the collection."""
    collectors = yield
    return [collector for collector in collectors if type(collector) is pytest.Module]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of the warm processes, so that one of two workers runs them all, and starts them alone.

    Each of the workers begins with one half of the tests, and then takes from the end of what the other has left.
    """
    warm = {"zygote", "light_zygote"}
    items.sort(key=lambda item: warm.isdisjoint(getattr(item, "fixturenames", ())))


def pytest_collection_finish() -> None:
    freeze_imports()
    gc.set_threshold(20_000, 50, 100)  # a twentieth of the tests was the search for garbage, of which there is little
    gc.enable()


def pytest_runtest_teardown() -> None:
    if len(sys.modules) > modules_frozen + 50:
        gc.collect()  # so that nothing but what is in use is kept
        freeze_imports()


def freeze_imports() -> None:
    """Leave out of every later garbage collection what the imports have left; the Trainer collects once per run."""
    global modules_frozen
    gc.freeze()
    modules_frozen = len(sys.modules)
    for logger in logging.root.manager.loggerDict.values():  # in each phase of a test, pytest joins those on their own
        if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
            logger.propagate = True


WORDS = {
    "good": ["good", "great", "lovely", "fine", "superb"],
    "bad": ["bad", "awful", "poor", "dull", "weak"],
    "filler": ["the", "a", "film", "book", "song", "is", "was", "very", "so", "and", "this", "that"],
}


LEARN = ["--batch-size", 16, "--learning-rate", "3e-3", "--set", "training.precision=fp32"]
ONCE = ["--set", "training.evaluate_every=999"]  # at the end alone, where nothing asks how scores rise
DEMO_ROWS = ["--data", "demo", "--limit", "40", "--set", "training.precision=fp32", "--set", "training.batch_size=8"]


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def make_tokenizer():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*"abcdefghijklmnopqrstuvwxyz.,!?"]
    tokens = [*special, *(word for words in WORDS.values() for word in words)]
    tokens += [token for token in [*letters, *(f"##{letter}" for letter in letters)] if token not in tokens]
    tokenizer = Tokenizer(models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random BERT of two small layers with its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def toy_rows(count: int, seed: int) -> list[dict[str, str]]:
    """Sentences of filler words with one word that decides the label."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        label = rng.choice(["good", "bad"])
        words = rng.choices(WORDS["filler"], k=rng.randint(2, 12))
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS[label]))
        rows.append({"text": " ".join(words), "label": label})
    return rows


def write_csv(file: Path, rows: list[dict[str, object]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def rewrite_predictions(run: Path, lines: Iterable[str]) -> None:
    """Replace the stored predictions of a run, and their checksum in its record."""
    from bertkit.storage import runs
    from bertkit.storage.fingerprints import describe_file

    (run / "predictions.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    record = runs.read_record(run)
    record["predictions"]["predictions.jsonl"] = describe_file(run / "predictions.jsonl")
    runs.write_record(run, record)


def write_jsonl(file: Path, rows: Iterable[dict[str, object]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that temporary files go to."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def toy_data(tmp_path: Path) -> Path:
    """A folder with train.csv (96 rows) and validation.csv (40 rows), columns text and label."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_csv(folder / "train.csv", toy_rows(96, seed=1))
    write_csv(folder / "validation.csv", toy_rows(40, seed=2))
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a bertkit command in this process, in an empty folder."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    monkeypatch.chdir(work)
    monkeypatch.setattr("bertkit.recipe.plugins._CUSTOM", {})
    monkeypatch.setattr(
        "bertkit.hardware.process._MONITOR_SECONDS", math.inf
    )  # whatever else takes the cores of the tests
    monkeypatch.setattr("bertkit.recipe.plugins._trusts_folders", False)
    time_once(monkeypatch)

    def run_command(*arguments: object, stdin: str | bytes = "") -> Ended:
        from bertkit.cli.main import main

        out, err = io.StringIO(), io.StringIO()
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["bertkit", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))
        streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with streams[0], streams[1], pytest.raises(SystemExit) as ended:
            main()
        return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return run_command


def finetune(run, model, data, *options) -> Ended:
    return run("finetune", "classify", "--model", model, "--data", data, *LEARN, *options)


def distill(run, teacher, data, *options) -> Ended:
    return run("distill", "classify", "--teacher", teacher, "--data", data, *LEARN, *options)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory):
    """A process that has imported torch and runs commands in children, which it may be told to kill."""
    from tests.faults import build
    from tests.kills import Zygote

    warm = Zygote(tmp_path_factory.mktemp("cache"), preload=build(tmp_path_factory.mktemp("preload")))
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def light_zygote(tmp_path_factory):
    """A process that has imported the command line alone, and tells what a command imports on top of it."""
    from tests.kills import Zygote

    light = Zygote(tmp_path_factory.mktemp("cache"), light=True)
    yield light
    light.close()


@pytest.fixture
def timed_once(monkeypatch):
    """Let models that are compared read each row once, where a real comparison takes the best of some passes."""
    time_once(monkeypatch)


def time_once(patch: pytest.MonkeyPatch) -> None:
    for name, value in TIMING.items():
        patch.setattr(name, value)


@pytest.fixture
def loopback(tmp_path, monkeypatch):
    """A hub on the loopback, which the libraries in this process ask, with an empty cache; see tests/loopback_hub.py.

    The test needs the mark `allow_hosts(["127.0.0.1"])`.
    """
    import datasets
    from huggingface_hub import constants

    from bertkit.storage.cache import log_once
    from bertkit.storage.hub import repositories
    from tests.loopback_hub import serve_hub

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache" / "datasets")
    for library in (constants, datasets.config):
        monkeypatch.setattr(library, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a protocol that this hub does not speak
    monkeypatch.setattr(repositories, "_unreachable", "")
    for once in (repositories._look_up, log_once):
        once.cache_clear()
    with serve_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
        monkeypatch.setattr(
            datasets.config, "HUB_DATASETS_URL", hub.url + "/datasets/{repo_id}/resolve/{revision}/{path}"
        )
        yield hub


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder, so that errors show short paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def usual_resamples(tmp_path_factory) -> Iterator[dict[str, int]]:
    """Let tests cost less than what they test, all in one fixture, since each would be looked up for every test.

    Yield how many resamples users get; commands draw fewer in tests.
    """
    from importlib import metadata

    import typer

    from bertkit.hardware import precision
    from bertkit.recipe import yaml
    from bertkit.tasks import text_classification, text_regression

    usual = draw_resamples(RESAMPLES)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BERTKIT_CACHE", str(tmp_path_factory.mktemp("cache")))  # and not in the home
        # a killed process loses nothing that it wrote, and no test cuts the power
        patched.setattr(os, "fsync", os.fstat)
        # each run records the versions of eight packages, and most commands read the same recipes by the same parser
        patched.setattr(metadata, "version", functools.cache(metadata.version))
        patched.setattr(yaml, "_parse_yaml", compute_once(yaml._parse_yaml))
        patched.setattr(precision, "_measure_gain", compute_once(precision._measure_gain))
        for family in (text_classification, text_regression):
            patched.setattr(family, "fit_tfidf", fit_once(family.fit_tfidf))
        patched.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield usual
    draw_resamples(usual)


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """Let each test hear the lines that a process logs only once, and compute with one thread."""
    if "bertkit.storage.cache" in sys.modules:
        sys.modules["bertkit.storage.cache"].log_once.cache_clear()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    skip_waste()


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for two threads, where nobody asks for a number; what is computed takes one all the same."""
    import torch

    from bertkit.hardware import process

    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(process, "_PROCESS", process._Process())
    monkeypatch.setattr(process, "_watch_load", lambda: None)
    monkeypatch.setattr(process, "read_quota", lambda: 2.0)
    monkeypatch.setattr(process, "_find_core", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny_model) -> Path:
    """A run folder: the tiny model fine-tuned until it tells good words from bad ones."""
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune import finetune

    folder = tmp_path_factory.mktemp("trained")
    write_csv(folder / "train.csv", toy_rows(400, seed=3))
    write_csv(folder / "validation.csv", toy_rows(60, seed=4))
    changes = {
        "model": str(tiny_model),
        "data.source": str(folder),
        "training.epochs": 4,
        "training.batch_size": 16,
        "training.learning_rate": 3e-3,
        "training.precision": "fp32",
    }
    finetune(load_recipe("classify", changes), output=folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def still_model(tiny_model, tmp_path_factory) -> Path:
    """The tiny model without dropout: nothing random but the order of rows."""
    import json
    import shutil

    folder = Path(shutil.copytree(tiny_model, tmp_path_factory.mktemp("still") / "tiny"))
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
