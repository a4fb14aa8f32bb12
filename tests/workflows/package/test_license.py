"""The license of a model's weights, as far as its folder tells."""

from __future__ import annotations

import pytest

from bertkit.workflows.package.license import find_license


@pytest.mark.parametrize(
    ("card", "recipe", "expected"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# A\n", None, "mit"),
        ("---\nlicense: 'cc-by-4.0'\n---\n", "extends: cola\nmodel: google-bert/bert-base-uncased\n", "cc-by-4.0"),
        (
            "---\ntags: [a]\n---\nlicense: mit\n",
            "model: google-bert/bert-base-uncased\n",
            "that of google-bert/bert-base-uncased, which it was trained from: Apache-2.0",
        ),
        (None, "model: own/model\n", None),
        ("no front matter", ": [", None),
        (None, None, None),
    ],
    ids=["card", "card first", "encoder", "unknown", "damaged", "nothing"],
)
def test_a_license_is_that_of_the_card_or_of_the_encoder(card, recipe, expected, tmp_path):
    for name, text in (("README.md", card), ("recipe.yaml", recipe)):
        if text is not None:
            (tmp_path / name).write_text(text)
    found = find_license(tmp_path)
    assert (found or "").lower() == (expected or "").lower()
