"""What a statement of a module refers to."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

_ALWAYS = ("inference", "arrays")
"""Fields of a `Setup` that are true of every model that only predicts, and that torch does not run."""


@dataclass
class References:
    """Names that a statement refers to; those of types alone are apart, since they are never evaluated."""

    names: set[str] = field(default_factory=set)
    attributes: dict[str, set[str]] = field(default_factory=dict)
    """Name -> attributes of it that are read."""
    annotations: list[ast.expr] = field(default_factory=list)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    """Statements within functions."""

    @property
    def in_annotations(self) -> set[str]:
        """Names in annotations."""
        nodes = (node for annotation in self.annotations for node in ast.walk(annotation))
        return {node.id for node in nodes if isinstance(node, ast.Name)}


def find_references(statement: ast.AST) -> References:
    """Return what a statement refers to, without the branches that a package never takes."""
    visitor = _Visitor()
    visitor.visit(statement)
    return visitor.found


def takes_always(statement: ast.AST) -> TypeGuard[ast.If]:
    """Tell whether a statement returns early wherever a model only predicts: what follows is never reached."""
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Attribute)
        and isinstance(statement.test.value, ast.Name)
        and (statement.test.value.id, statement.test.attr) in [("setup", name) for name in _ALWAYS]
        and len(statement.body) == 1
        and isinstance(statement.body[0], ast.Return)
    )


class _Visitor(ast.NodeVisitor):
    """Collects references; methods have the names that `ast` calls."""

    def __init__(self) -> None:
        self.found = References()

    def visit_Name(self, node: ast.Name) -> None:
        self.found.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.found.attributes.setdefault(node.value.id, set()).add(node.attr)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found.imports.append(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.found.imports.append(node)

    def visit_arg(self, node: ast.arg) -> None:
        self._annotate(node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotate(node.annotation)
        self._visit_all([node.target, node.value])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._annotate(node.returns)
        self._visit_all([*node.decorator_list, node.args])
        for statement in node.body:
            if takes_always(statement):
                self.visit(statement.body[0])
                return
            self.visit(statement)

    def _annotate(self, annotation: ast.expr | None) -> None:
        if annotation is not None:
            self.found.annotations.append(annotation)

    def _visit_all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)
