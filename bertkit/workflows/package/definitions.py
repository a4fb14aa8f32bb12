"""Modules of bertkit as the definitions and imports that they are made of."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import bertkit

ROOT = "bertkit"
FOLDER = Path(bertkit.__file__).parent


@dataclass(frozen=True)
class SourceImport:
    """Where a name of a module comes from; `name` is None where the module itself is meant."""

    module: str
    name: str | None


@dataclass
class SourceModule:
    """A module of bertkit, and what of it is copied."""

    name: str
    file: Path
    source: bytes
    tree: ast.Module
    definitions: dict[str, ast.AST] = field(default_factory=dict)
    """Name -> the statement that defines it; of ``a, b = x, y`` the part of the name."""
    imports: dict[str, SourceImport] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    @property
    def level(self) -> int:
        """How many dots lead from the module to the top of the package."""
        return len(self.name.split(".")) - (self.file.name != "__init__.py")

    @property
    def path(self) -> str:
        """Where the copy is in the package."""
        return self.file.relative_to(FOLDER).as_posix()


def read_module(name: str) -> SourceModule:
    """Read a module of bertkit, none of whose definitions is kept yet."""
    file = _module_file(name)
    assert file is not None, name
    source, tree = _parse(file)
    module = SourceModule(name, file, source, tree)
    for statement in module.tree.body:
        if isinstance(statement, ast.If):  # imports for types
            statements: list[ast.stmt] = statement.body
        else:
            statements = [statement]
        for one in statements:
            if isinstance(one, (ast.Import, ast.ImportFrom)):
                module.imports |= read_imports(one)
            else:
                module.definitions |= _read_definitions(one)
    return module


def read_imports(statement: ast.Import | ast.ImportFrom) -> dict[str, SourceImport]:
    """Return the names that a statement imports, and where each comes from."""
    if isinstance(statement, ast.Import):
        return {one.asname or one.name: SourceImport(one.name, None) for one in statement.names}
    return {one.asname or one.name: SourceImport(str(statement.module), one.name) for one in statement.names}


def _read_definitions(statement: ast.stmt) -> dict[str, ast.AST]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name: statement}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id: statement}
    if not isinstance(statement, ast.Assign):
        return {}
    (target,), value = statement.targets, statement.value
    if isinstance(target, ast.Name):
        return {target.id: statement}
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        names = [one.id for one in target.elts if isinstance(one, ast.Name)]
        return dict(zip(names, value.elts, strict=True))
    return {}


@cache
def _parse(file: Path) -> tuple[bytes, ast.Module]:
    source = file.read_bytes()
    return source, ast.parse(source)


@cache
def _module_file(name: str) -> Path | None:
    parts = FOLDER.joinpath(*name.split(".")[1:])
    candidates = (parts / "__init__.py", parts.with_suffix(".py"))
    return next(filter(Path.is_file, candidates), None)


def is_module(imported: SourceImport) -> bool:
    """Tell whether a name is that of a module of bertkit, and not of a definition."""
    return (
        imported.name is not None
        and imported.module.split(".")[0] == ROOT
        and _module_file(f"{imported.module}.{imported.name}") is not None
    )
