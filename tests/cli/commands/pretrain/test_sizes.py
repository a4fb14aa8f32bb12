"""`bertkit pretrain sizes`."""

from __future__ import annotations

import json

from bertkit.modeling.sizes import size_names


def test_every_size_has_a_line(run):
    lines = run("pretrain", "sizes").out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(size_names())
    assert max(map(len, lines)) <= 80


def test_json_has_the_shape_of_a_size(run):
    printed = {size["size"]: size for size in json.loads(run("pretrain", "sizes", "--json").out)["sizes"]}
    assert printed["base"] == {
        "size": "base",
        "layers": 12,
        "hidden": 768,
        "heads": 12,
        "model": "bert",
        "vocabulary": 30_522,
        "parameters": 109_482_240,
    }
