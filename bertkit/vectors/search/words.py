"""BM25 of the rows of an index, in a folder of its own that is written anew with every addition."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

from bertkit.errors import UnavailableError
from bertkit.progress import log
from bertkit.storage.fingerprints import list_files
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.lexical import LexicalIndex
from bertkit.vectors.search.manifest import Manifest

_FOLDER = "words-"


def write_words(folder: Path, manifest: Manifest) -> Manifest:
    """Count the words of all rows of an index, write their BM25 into its folder, and return the manifest with it.

    It counts when that manifest is written. Without bm25s, the index has none, which is said.
    """
    try:
        lexical = LexicalIndex.build(Index(folder, manifest).texts())
    except UnavailableError as error:
        log.info(f"no BM25 beside the vectors: {error.what} - {error.remedy}")
        return replace(manifest, lexical=None)
    current = manifest.lexical["folder"] if manifest.lexical else ""
    name = next(name for number in itertools.count() if (name := f"{_FOLDER}{number}") != current)
    shutil.rmtree(folder / name, ignore_errors=True)  # of a killed process
    lexical.save(folder / name)
    files = tuple(sorted(file.name for file in (folder / name).iterdir()))
    return replace(manifest, lexical={"folder": name, "files": list_files(folder / name, files)})


def sweep_words(folder: Path, manifest: Manifest) -> None:
    """Delete the BM25 that a manifest has replaced."""
    for words in folder.glob(f"{_FOLDER}*"):
        if not manifest.lexical or words.name != manifest.lexical["folder"]:
            shutil.rmtree(words, ignore_errors=True)
