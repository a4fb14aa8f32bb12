"""What the sections of a recipe are made of: a frozen record whose keys are fixed, and types of its values."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

Row = dict[str, Any]
"""One row of data, keyed by canonical column (``text``, ``text_pair``, ``label``, ...)."""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Finite = Annotated[float, AfterValidator(_finite)]


def _folder_name(name: str) -> str:
    if not name.strip(". ") or "/" in name or not name.isprintable() or len(name.encode()) > 200:
        raise ValueError("must be a plain name of at most 200 bytes, without a slash: the run folder is called so")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
"""The name of a folder in `runs/`, never a path that leads out of it."""


class Section(BaseModel):
    """A section of a recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
