"""What is known of the license of a model's weights."""

from __future__ import annotations

from pathlib import Path

from bertkit.errors import BertkitError
from bertkit.recipe import read_yaml
from bertkit.storage.hub.encoders import list_encoders

_FENCE = "---\n"


def find_license(folder: Path) -> str | None:
    """Return the license that the card of a model folder names, or that of the encoder that it was trained from."""
    named = _license_of_card(folder / "README.md")
    if named is not None:
        return named
    try:
        file = folder / "recipe.yaml"
        values, _ = read_yaml(file.read_text(encoding="utf-8"), file)
    except (BertkitError, OSError):
        return None
    started = values.get("model")
    license = next((encoder.license for encoder in list_encoders() if encoder.name == started), None)
    return None if license is None else f"that of {started}, which it was trained from: {license}"


def _license_of_card(file: Path) -> str | None:
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    head = text.split(_FENCE)[1] if text.startswith(_FENCE) and text.count(_FENCE) > 1 else ""
    lines = [line.partition(":") for line in head.splitlines()]
    return next((value.strip().strip("'\"") for key, _, value in lines if key == "license" and value.strip()), None)
