"""Modules as definitions and imports."""

from __future__ import annotations

from bertkit.workflows.package.definitions import SourceImport, is_module, read_module


def test_a_module_is_read_as_what_it_defines_and_imports():
    module = read_module("bertkit.tokens.features")
    assert {"Feature", "Setup", "encode_texts", "_STEPS", "TOKENS_AT_ONCE"} <= module.definitions.keys()
    assert module.imports["RecipeError"] == SourceImport("bertkit.errors", "RecipeError")
    assert module.imports["torch"] == SourceImport("torch", None)  # for types
    assert (module.level, module.path) == (2, "tokens/features.py")
    assert (read_module("bertkit.tasks").level, read_module("bertkit.errors").level) == (2, 1)


def test_a_module_is_told_from_a_definition():
    assert is_module(SourceImport("bertkit.tokens", "long_texts"))
    assert not is_module(SourceImport("bertkit.tokens.features", "Setup"))
    assert not is_module(SourceImport("os", "path"))
