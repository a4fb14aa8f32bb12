"""The code of a package: those definitions of bertkit that its predictions use, copied out of bertkit's own modules.

So there is no second implementation to be kept equal to the first. A function that is needed brings along what it
refers to, in this module and in others. What nobody refers to is left out, and with it nearly every import.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import bertkit
from bertkit.errors import ModelError
from bertkit.workflows.package.definitions import (
    FOLDER,
    ROOT,
    SourceImport,
    SourceModule,
    is_module,
    read_imports,
    read_module,
)
from bertkit.workflows.package.references import References, find_references, takes_always

AVAILABLE = frozenset({"numpy", "tokenizers", "onnxruntime", "openvino"})
"""Packages that the code of a package may import, beside the standard library."""

_Edit = tuple[int, int, str]


def copy_sources(roots: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the code that some definitions need: path of a module in the package -> its text.

    Args:
        roots: module of bertkit -> names of the definitions that are needed.

    Raises:
        ModelError: they need a package that packages do not have.
    """
    copier = _Copier()
    for module, names in roots.items():
        for name in names:
            copier.keep(module, name)
    return copier.write()


class _Copier:
    """Follows references from definition to definition; a class, for they go in circles and share what was found."""

    def __init__(self) -> None:
        self.modules: dict[str, SourceModule] = {}

    def module(self, name: str) -> SourceModule:
        """Return a module, read once."""
        if name not in self.modules:
            self.modules[name] = read_module(name)
        return self.modules[name]

    def keep(self, module: str, name: str) -> None:
        """Have a definition copied, with all that it refers to."""
        owner = self.module(module)
        if name in owner.kept:
            return
        owner.kept.add(name)
        if name in owner.imports:
            return self._follow(owner.imports[name], ())
        found = find_references(owner.definitions[name])
        for used in found.names:
            self._use(owner, used, found)
        for used in found.in_annotations:
            if self._is_alias(owner, used):
                self.keep(module, used)
        for statement in found.imports:
            for imported in read_imports(statement).values():
                self._follow(imported, ())

    def _use(self, owner: SourceModule, name: str, found: References) -> None:
        if name in owner.definitions:
            self.keep(owner.name, name)
        elif name in owner.imports:
            attributes = found.attributes.get(name, ())
            imported = owner.imports[name]
            if is_module(imported) and not attributes:
                return  # a variable of the same name
            owner.kept.add(name)
            self._follow(imported, attributes)

    def _follow(self, imported: SourceImport, attributes: Iterable[str]) -> None:
        if imported.module.split(".")[0] != ROOT:
            _refuse_outside(imported.module)
        elif is_module(imported):
            for attribute in attributes:
                self.keep(f"{imported.module}.{imported.name}", attribute)
        else:
            self.keep(imported.module, str(imported.name))

    def _is_alias(self, owner: SourceModule, name: str) -> bool:
        """Tell whether a name in an annotation is that of a plain type, defined by an assignment."""
        imported = owner.imports.get(name)
        if imported is not None and imported.module.startswith(ROOT) and not is_module(imported):
            return self._is_alias(self.module(imported.module), str(imported.name))
        return isinstance(owner.definitions.get(name), ast.Assign)

    def write(self) -> dict[str, str]:
        """Return the text of each module of which something is kept, and of the packages that they are in."""
        kept = {one.path: _Writer(one).write() for one in list(self.modules.values()) if one.kept}
        for path in [Path(path) for path in kept]:
            for folder in path.parents[:-1]:
                opening = ast.get_docstring(ast.parse((FOLDER / folder / "__init__.py").read_text(encoding="utf-8")))
                kept.setdefault((folder / "__init__.py").as_posix(), f'"""{opening}"""\n')
        return kept


class _Writer:
    """Writes the copy of one module."""

    def __init__(self, module: SourceModule) -> None:
        self.module = module
        self.starts = [0]
        for line in module.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.used: set[str] = set()
        """Names of imports that the copied statements refer to."""

    def write(self) -> str:
        module = self.module
        documented = ast.get_docstring(module.tree, clean=False)
        parts = [self._write_definition(name, statement) for name, statement in self._kept_definitions()]
        imports = self._write_imports()
        head = f"# Copied from {ROOT} {bertkit.__version__}: what predictions use of {ROOT}/{module.path}.\n"
        head += f'"""{documented}"""\n\nfrom __future__ import annotations\n'
        return "\n".join([head, *imports, "", *parts]).rstrip() + "\n"

    def _kept_definitions(self) -> Iterator[tuple[str, ast.AST]]:
        for name, statement in self.module.definitions.items():
            if name in self.module.kept:
                yield name, statement

    def _write_definition(self, name: str, statement: ast.AST) -> str:
        found = find_references(statement)
        self.used |= found.names & self.module.imports.keys()
        if isinstance(statement, ast.expr):  # of one of several names
            return f"{name} = {self._text(statement, [])}\n"
        edits = [*self._edit_annotations(found), *self._edit_imports(found), *self._edit_branches(statement)]
        text = self._text(statement, edits)
        spacing = "\n" if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) else ""
        return f"{spacing}{self._above(statement)}{text}{self._below(statement)}\n{spacing}"

    def _edit_annotations(self, found: References) -> Iterator[_Edit]:
        """Have ``Any`` where an annotation names what is not copied."""
        for annotation in found.annotations:
            names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
            if all(map(self._is_known, names)):
                self.used |= names & self.module.imports.keys()
            else:
                self.used.add("Any")
                yield *self._range(annotation), "Any"

    def _is_known(self, name: str) -> bool:
        imported = self.module.imports.get(name)
        if imported is None:
            return name in self.module.kept or hasattr(builtins, name)
        outside = imported.module.split(".")[0]
        return name in self.module.kept or outside in AVAILABLE or outside in sys.stdlib_module_names

    def _edit_imports(self, found: References) -> Iterator[_Edit]:
        for statement in found.imports:
            if isinstance(statement, ast.ImportFrom) and str(statement.module).split(".")[0] == ROOT:
                names = [ast.unparse(name) for name in statement.names]
                yield *self._range(statement), self._import_line(str(statement.module), names)

    def _edit_branches(self, statement: ast.AST) -> Iterator[_Edit]:
        functions = (node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef))
        for node in functions:
            for one in node.body:
                if takes_always(one):
                    (start, end), (_, last) = self._range(one), self._range(node.body[-1])
                    yield start, self._range(one.body[0])[0], ""
                    yield end, last, ""

    def _write_imports(self) -> list[str]:
        """Return the import statements of the names that are used, first those from outside."""
        wanted = (self.used | (self.module.kept & self.module.imports.keys())) - self.module.definitions.keys()
        outside, inside = list[str](), list[str]()
        grouped: dict[str, list[str]] = {}
        known = {"Any": SourceImport("typing", "Any"), **self.module.imports}
        for name in sorted(wanted):
            imported = known[name]
            if imported.name is None:
                renamed = f" as {name}" if name != imported.module else ""
                outside.append(f"import {imported.module}{renamed}")
            elif not is_module(imported) or name in self.module.kept:
                renamed = f" as {name}" if name != imported.name else ""
                grouped.setdefault(imported.module, []).append(f"{imported.name}{renamed}")
        for module, names in sorted(grouped.items()):
            of_bertkit = module.split(".")[0] == ROOT
            (inside if of_bertkit else outside).append(
                self._import_line(module, names) if of_bertkit else f"from {module} import {', '.join(names)}"
            )
        standard = [line for line in outside if line.split()[1].split(".")[0] in sys.stdlib_module_names]
        others = [line for line in outside if line not in standard]
        return [*standard, *([""] if standard and others else []), *others, *([""] if inside else []), *inside]

    def _import_line(self, module: str, names: list[str]) -> str:
        below = module.removeprefix(ROOT).removeprefix(".")
        line = f"from {'.' * self.module.level}{below} import {', '.join(names)}"
        return line if len(line) <= 120 else line.replace("import ", "import (\n    ").replace(", ", ",\n    ") + ",\n)"

    def _above(self, statement: ast.AST) -> str:
        """Return the comment lines directly above a statement."""
        lines = self.module.source.splitlines(keepends=True)
        first = last = _first_line(statement) - 1
        while first and lines[first - 1].startswith(b"#"):
            first -= 1
        return b"".join(lines[first:last]).decode()

    def _below(self, statement: ast.AST) -> str:
        """Return the rest of the line, and the text that documents an assignment."""
        body = self.module.tree.body
        end = self._range(statement)[1]
        rest = self.module.source[end:].split(b"\n", 1)[0].decode()
        position = next((n for n, one in enumerate(body) if one is statement), len(body))
        following = body[position + 1] if position + 1 < len(body) else None
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(following, ast.Expr):
            return f"{rest}\n{self._text(following, [])}"
        return rest

    def _text(self, node: ast.AST, edits: Iterable[_Edit]) -> str:
        start, end = self._range(node)
        text = self.module.source[start:end]
        for first, last, new in sorted(edits, reverse=True):
            text = text[: first - start] + new.encode() + text[last - start :]
        return "\n".join(line.rstrip() for line in text.decode().splitlines())

    def _range(self, node: ast.AST) -> tuple[int, int]:
        """Return the first and the last + 1 byte of a node, decorators included."""
        assert isinstance(node, (ast.stmt, ast.expr)) and node.end_lineno and node.end_col_offset is not None
        start = self.starts[_first_line(node) - 1] + (0 if getattr(node, "decorator_list", ()) else node.col_offset)
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset


def _first_line(node: ast.AST) -> int:
    assert isinstance(node, (ast.stmt, ast.expr))
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(one.lineno for one in (node, *decorators))


def _refuse_outside(module: str) -> None:
    package = module.split(".")[0]
    if package not in AVAILABLE and package not in sys.stdlib_module_names:
        what = f"predictions of this task family need the package {package}, which packages do not have"
        raise ModelError(what, "use `bertkit export` and `bertkit predict`")
