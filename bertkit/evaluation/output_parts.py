"""Outputs of a model that several processes share: each keeps its batches' on disk, where one reads those of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.storage.files import write_bytes
from bertkit.storage.fingerprints import with_digest
from bertkit.storage.parts import PartFolder, is_whole, read_part

Share = tuple[dict[int, dict[str, Any]], float, int]
"""Outputs of a process by the number of their feature, the sum of their losses, and over how many items that is."""

_LOSS = "loss"


@dataclass
class OutputParts:
    """The parts of the outputs of one split, which all processes compute before one of them reads all."""

    folder: PartFolder
    tokens: int = 0
    """The most tokens of a batch. It is the same for all, so that each knows which batches are its own."""
    name: str = ""
    """What tells these outputs from those of other splits and other members of an ensemble."""
    files: list[Path] = field(default_factory=list)
    """The parts of all processes, as far as they are known."""
    reads: bool = False
    """Whether the outputs of all are read. Before that, each process only computes its own."""

    @property
    def rank_and_size(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return self.folder.launch.rank, self.folder.launch.size

    def of(self, name: object) -> OutputParts:
        """Return the parts of one split, or of one member of an ensemble."""
        return replace(self, name=f"{self.name}{name}.")

    def gather(self, chunk: int, run: Callable[[], Share]) -> list[Share]:
        """Return the shares of all processes where they are read; else see that one's own is on disk."""
        rank, size = self.rank_and_size
        files = [self.folder.folder / f"{self.name}{chunk}-{number + 1}of{size}.part" for number in range(size)]
        if self.reads:
            return list(map(_read_share, files))
        self.files.extend(files)
        if not is_whole(files[rank]):
            _write_share(files[rank], run())
        return []


def _write_share(file: Path, share: Share) -> None:
    import numpy as np
    from safetensors.numpy import save

    outputs, *loss = share
    arrays = {f"{number}.{name}": array for number, output in outputs.items() for name, array in output.items()}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_bytes(file, with_digest(save({**contiguous, _LOSS: np.array(loss)})))


def _read_share(file: Path) -> Share:
    from safetensors.numpy import load

    arrays = load(read_part(file).to_pybytes())
    total, count = arrays.pop(_LOSS).tolist()
    outputs: dict[int, dict[str, Any]] = {}
    for key, array in arrays.items():
        number, _, name = key.partition(".")
        outputs.setdefault(int(number), {})[name] = array
    return outputs, total, int(count)
