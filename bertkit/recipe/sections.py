"""What the sections of a recipe are made of: a frozen record whose keys are fixed, and types of its values."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer, PrivateAttr, WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

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
