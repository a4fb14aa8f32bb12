"""What a statement refers to: names apart from types, and none of a branch that is never taken."""

from __future__ import annotations

import ast

from bertkit.workflows.package.references import find_references, takes_always


def references(source: str):
    return find_references(ast.parse(source).body[0])


def test_types_are_apart_from_what_is_evaluated():
    found = references("@wrap\ndef f(a: Model, *, b: int = SIZE) -> Answer:\n    c: Other = g(a)\n    return c.d")
    assert {"wrap", "SIZE", "g"} <= found.names
    assert not {"Model", "Answer", "Other"} & found.names
    assert {"Model", "Answer", "Other", "int"} == found.in_annotations
    assert found.attributes == {"c": {"d"}}


def test_what_follows_a_branch_that_is_always_taken_is_not_read():
    source = "def f(setup):\n    first()\n    if setup.arrays:\n        return second()\n    import torch\n    third()"
    found = references(source)
    assert {"first", "second"} <= found.names and "third" not in found.names
    assert found.imports == []
    assert takes_always(ast.parse(source).body[0].body[1])


def test_other_branches_are_read():
    for condition in ("setup.labels", "not setup.arrays", "other.arrays"):
        source = f"def f(setup):\n    if {condition}:\n        return second()\n    from x import y\n    return y()"
        found = references(source)
        assert {"second", "y"} <= found.names and len(found.imports) == 1, condition
