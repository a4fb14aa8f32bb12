"""The code of a package: those definitions of bertkit that its predictions use, copied out of bertkit's own modules.

So there is no second implementation to be kept equal to the first. A function that is needed brings along what it
refers to, in this module and in others. What nobody refers to is left out, and with it nearly every import. So are
comments and the types of arguments.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import bertkit
from bertkit.errors import ModelError

AVAILABLE = frozenset({"numpy", "tokenizers", "onnxruntime", "openvino"})
"""Packages that the code of a package may import, beside the standard library."""

_ROOT, _FOLDER = "bertkit", Path(bertkit.__file__).parent
_ALWAYS = ("setup.inference", "setup.arrays", "word_split != 'subwords'")
"""What is true of every model that only predicts, and that torch does not run."""


class _Import(NamedTuple):
    """Where a name of a module comes from; `name` is None where the module itself is meant."""

    module: str
    name: str | None

    @property
    def is_ours(self) -> bool:
        return self.module.split(".")[0] == _ROOT

    @property
    def is_module(self) -> bool:
        """Whether the name is that of a module of bertkit, and not of a definition."""
        return self.is_ours and self.name is not None and _module_file(f"{self.module}.{self.name}") is not None


@dataclass
class _Module:
    """A module of bertkit: its definitions and imports by name, and which of them are copied."""

    name: str
    file: Path
    about: str
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, _Import] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)


def copy_sources(roots: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the code that some definitions need: path of a module in the package -> its text.

    Args:
        roots: module of bertkit -> names of the definitions that are needed.

    Raises:
        ModelError: they need a package that packages do not have.
    """
    modules: dict[str, _Module] = {}
    for module, names in roots.items():
        for name in names:
            _keep_definition(modules, module, name)
    code = {}
    for copied in modules.values():
        path = copied.file.relative_to(_FOLDER)
        code[path.as_posix()] = _write_module(copied, path)
        for folder in path.parents[:-1]:
            about = ast.get_docstring(ast.parse((_FOLDER / folder / "__init__.py").read_bytes()))
            code.setdefault(f"{folder.as_posix()}/__init__.py", f'"""{about}"""\n')
    return code


def trim(source: bytes | str) -> ast.Module:
    """Parse code, without types and without the branches that a package never takes."""
    tree: ast.Module = _Trimmer().visit(ast.parse(source))
    return tree


class _Trimmer(ast.NodeTransformer):
    """Leaves out what a package does without; methods have the names that `ast` calls."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        for number, statement in enumerate(node.body):
            if isinstance(statement, ast.If) and _is_always_taken(statement):
                node.body[number:] = statement.body
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):  # a field, which any type makes one
                statement.annotation = ast.Name("object")
            else:
                self.visit(statement)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else None


def _is_always_taken(statement: ast.If) -> bool:
    """Tell whether a branch returns wherever a model only predicts: what follows is never reached."""
    return ast.unparse(statement.test) in _ALWAYS and isinstance(statement.body[-1], ast.Return)


def _read_module(name: str) -> _Module:
    """Read a module of bertkit, of which nothing is kept yet."""
    file = _module_file(name)
    assert file is not None, name
    tree = trim(file.read_bytes())
    module = _Module(name, file, ast.get_docstring(tree, clean=False) or "")
    for statement in tree.body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                module.imports |= _read_imports(statement)
            case ast.FunctionDef(name=defined) | ast.ClassDef(name=defined):
                module.definitions[defined] = statement
            case ast.Assign(targets=[ast.Name(id=defined)]):
                module.definitions[defined] = statement
            # `A, B = 1, 2` is two definitions, of which a package may need one.
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=True):
                    single = ast.copy_location(ast.Assign([target], value), statement)
                    module.definitions[ast.unparse(target)] = single
    return module


def _read_imports(statement: ast.Import | ast.ImportFrom) -> dict[str, _Import]:
    """Return the names that a statement imports, and where each comes from."""
    if isinstance(statement, ast.Import):
        return {alias.asname or alias.name: _Import(alias.name, None) for alias in statement.names}
    return {alias.asname or alias.name: _Import(str(statement.module), alias.name) for alias in statement.names}


def _module_file(name: str) -> Path | None:
    path = _FOLDER.joinpath(*name.split(".")[1:])
    return next(filter(Path.is_file, (path / "__init__.py", path.with_suffix(".py"))), None)


def _keep_definition(modules: dict[str, _Module], name: str, definition: str) -> None:
    """Have a definition of a module copied, with all that it refers to."""
    if name not in modules:
        modules[name] = _read_module(name)
    module = modules[name]
    if definition in module.kept:
        return
    module.kept.add(definition)
    if definition in module.imports:
        return _follow_import(modules, module.imports[definition], ())
    nodes = list(ast.walk(module.definitions[definition]))
    for statement in nodes:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for imported in _read_imports(statement).values():
                _follow_import(modules, imported, ())
    for used, read in _find_names(nodes).items():
        if used in module.definitions:
            _keep_definition(modules, name, used)
        # a module of which nothing is read is a variable of the same name
        elif used in module.imports and (read or not module.imports[used].is_module):
            module.kept.add(used)
            _follow_import(modules, module.imports[used], read)


def _find_names(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """Return the names that code refers to, and the attributes of each that it reads."""
    names: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                names[name].add(attribute)
            case ast.Name(id=name):
                names[name] |= set()
    return names


def _follow_import(modules: dict[str, _Module], imported: _Import, attributes: Iterable[str]) -> None:
    """Have what is imported copied; of a module, the attributes that are read.

    Raises:
        ModelError: it is of a package that packages do not have.
    """
    package = imported.module.split(".")[0]
    if imported.is_module:
        for attribute in attributes:
            _keep_definition(modules, f"{imported.module}.{imported.name}", attribute)
    elif imported.is_ours:
        _keep_definition(modules, imported.module, str(imported.name))
    elif package not in AVAILABLE and package not in sys.stdlib_module_names:
        what = f"predictions of this task family need the package {package}, which packages do not have"
        raise ModelError(what, "use `bertkit export` and `bertkit predict`")


def _write_module(module: _Module, path: Path) -> str:
    """Return the text of the copy of a module, in which modules of bertkit are imported by their place beside it."""
    body: list[ast.stmt] = []
    for name, imported in sorted(module.imports.items()):
        if name in module.kept:
            alias = ast.alias(imported.name or imported.module)
            alias.asname = name if name != alias.name else None
            body.append(ast.ImportFrom(imported.module, [alias], 0) if imported.name else ast.Import([alias]))
    body += [statement for name, statement in module.definitions.items() if name in module.kept]
    tree = ast.Module(body, [])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == _ROOT:
            node.level = len(path.parts)
            node.module = node.module.removeprefix(_ROOT).removeprefix(".") or None
    head = f"# Copied from {_ROOT} {bertkit.__version__}: what predictions use of {_ROOT}/{path.as_posix()}.\n"
    return f'{head}"""{module.about}"""\n\n{ast.unparse(tree)}\n'
