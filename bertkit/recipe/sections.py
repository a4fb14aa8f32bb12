"""What the sections of a recipe are made of: a frozen record whose keys are fixed, and types of its values."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer, PrivateAttr, WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from bertkit.errors import UsageError


def typed_path(typed: str | Path) -> Path:
    """Return the path that a user means: ``~`` and ``~name`` are homes, also where the shell has left them.

    Everything that is typed or written in a recipe passes here once, so that nothing behind it has to, and no library
    expands a path that bertkit took literally.

    Raises:
        UsageError: no such user.
    """
    path = Path(typed)
    # pathlib forgets the `./` that tells a folder called `~` from a home
    if not str(typed).startswith("~"):
        return path
    try:
        return path.expanduser()
    except RuntimeError:
        what = f"{typed}: {path.parts[0]} is the home of no user here"
        raise UsageError(what, f"write {Path.cwd() / path} for a folder of this name") from None


def _expand_home(typed: str) -> str:
    # a hub name stays as it is, to the letter
    return str(typed_path(typed)) if typed.startswith("~") else typed


Location = Annotated[str, AfterValidator(_expand_home)]
"""A key of a recipe that may be a path."""


_MAX_LAYERS = 1000  # more than any encoder has, and few enough to list


def read_layers(value: Any) -> int | list[int] | None:
    """Read the layers of a student from a recipe or a command: ascending indexes from 0, or a number of layers.

    >>> read_layers("0, 2, 4"), read_layers([1, 5]), read_layers("3"), read_layers("0,"), read_layers(None)
    ([0, 2, 4], [1, 5], 3, [0], None)

    Raises:
        ValueError: neither of these.
    """
    if value is None:
        return None
    layers = value
    if isinstance(value, str):
        is_list, parts = "," in value, value.rstrip().removesuffix(",").split(",")
        layers = parts if is_list else int(value) if _is_layer(value) else value
    if isinstance(layers, int) and not isinstance(layers, bool) and 1 <= layers <= _MAX_LAYERS:
        return layers
    if isinstance(layers, list) and layers and all(map(_is_layer, layers)):
        indexes = [int(layer) for layer in layers]
        if all(lower < higher for lower, higher in pairwise(indexes)):
            return indexes
    raise ValueError("must be layers in ascending order, from 0, such as [0, 2, 4], or a number of layers")


def _is_layer(value: Any) -> bool:
    text = str(value).strip()
    return text.isdecimal() and len(text) <= len(str(_MAX_LAYERS))


Row = dict[str, Any]
"""One row of data, keyed by canonical column (``text``, ``text_pair``, ``label``, ...)."""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Finite = Annotated[float, AfterValidator(_finite)]


class Auto(float):
    """A number that is not chosen yet: it is NaN until the rows and the encoder are known."""

    def __str__(self) -> str:
        """Return how a recipe writes it."""
        return "auto"


AUTO = Auto("nan")


def _keep_auto(value: object, check_number: ValidatorFunctionWrapHandler) -> object:
    return AUTO if value == "auto" or isinstance(value, Auto) else check_number(value)


_OR_AUTO = (WrapValidator(_keep_auto), PlainSerializer(lambda value: "auto" if isinstance(value, Auto) else value))
Epochs = Annotated[float, Gt(0), Le(10_000), *_OR_AUTO]
"""A number of epochs, or `auto`."""
Rate = Annotated[float, Gt(0), Lt(1), *_OR_AUTO]
"""A learning rate, or `auto`."""


def _folder_name(name: str) -> str:
    if not name.strip(". ") or "/" in name or not name.isprintable() or len(name.encode()) > 200:
        raise ValueError("must be a plain name of at most 200 bytes, without a slash: the run folder is called so")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
"""The name of a folder in `runs/`, never a path that leads out of it."""


class Section(BaseModel):
    """A section of a recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    EXAMPLE: ClassVar[str] = "see `bertkit recipes show cola`"
    """What shows a user such a file."""
    _may_run_code: bool = PrivateAttr(default=True)
    """Whether modules and scripts that a recipe names may run; not where it came with a model."""

    def changed(self, section: str, **values: object) -> Self:
        """Return this with other values in one of its sections, which are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})
