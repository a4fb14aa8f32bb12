"""Copied code: it is complete, needs nothing else, and leaves out what nobody refers to."""

from __future__ import annotations

import ast
import sys

import pytest

from bertkit.errors import ModelError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.workflows.package.folder import PackageFacts, copy_code
from bertkit.workflows.package.sources import AVAILABLE, copy_sources, trim

FAMILIES = ("squad2", "similarity", "ner")
OTHERS = ("classify", "regress", "choose", "similarity-pairs", "few-shot", "rerank", "wsd", "late-interaction")


def code_of(recipe: str, **changes) -> dict[str, str]:
    loaded = load_recipe(recipe, {"model": "demo", "data.source": "demo"})
    facts = PackageFacts("made", "made", loaded.task, "onnx", "fp32", (), {}, **changes)
    return copy_code(facts, load_task(loaded))


def defined_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {one.asname or one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


@pytest.mark.parametrize("recipe", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_every_name_is_defined_or_imported_from_what_packages_have(recipe):
    code = code_of(recipe, embeds=recipe == "similarity")
    for path, text in code.items():
        tree = ast.parse(text)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert used <= defined_names(tree) | set(dir(__builtins__)) | set(__builtins__) | {"__file__", "__package__"}, (
            path
        )
        for node in ast.walk(tree):
            modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules.append(str(node.module))
            assert {module.partition(".")[0] for module in modules} <= AVAILABLE | set(sys.stdlib_module_names), path
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.split("/")[: -node.level] if node.level else []
                target = "/".join([*folder, *(node.module or "").split(".")]).strip("/")
                files = {f"{target}.py", f"{target}/__init__.py".lstrip("/")}
                submodules = {f"{target}/{one.name}.py".lstrip("/") for one in node.names}
                assert files & code.keys() or submodules <= code.keys(), (path, target)


@pytest.mark.parametrize(("recipe", "package"), [("sparse", "scipy"), ("nli-labels", "transformers")], ids=str)
def test_what_needs_another_package_is_refused(recipe, package):
    family = {"sparse": "sparse", "nli-labels": "zero_shot"}[recipe]
    with pytest.raises(
        ModelError, match=f"need the package {package}, which packages do not have - use `bertkit export`"
    ):
        copy_sources({f"bertkit.tasks.{family}": ("read", "encode", "decode")})


def test_a_copy_has_what_is_needed():
    code = copy_sources({"bertkit.tokens.features": ("padding_collator",)})
    features = code["tokens/features.py"]
    assert "def padding_collator(" in features and "def pad_features(" in features
    assert "def encode_texts(" not in features and "import torch" not in features
    assert features.splitlines()[0].endswith("what predictions use of bertkit/tokens/features.py.")
    assert "    return dict(arrays)" in features and "from_numpy" not in features  # the branch that is always taken
    assert code["tokens/__init__.py"].startswith('"""')


def test_types_are_left_out():
    code = ast.unparse(trim("def f(a: Model, *, b: int = SIZE) -> Answer:\n    c: Other = g(a)\n    return c.d"))
    assert code == "def f(a, *, b=SIZE):\n    c = g(a)\n    return c.d"
    assert ast.unparse(trim("class A:\n    b: Model\n    c: int = 1")) == "class A:\n    b: object\n    c: object = 1"


def test_what_follows_a_branch_that_is_always_taken_is_left_out():
    source = "def f(setup):\n    first()\n    if setup.arrays:\n        return second()\n    import torch\n    third()"
    assert ast.unparse(trim(source)) == "def f(setup):\n    first()\n    return second()"


@pytest.mark.parametrize("condition", ["setup.labels", "not setup.arrays", "other.arrays"])
def test_other_branches_stay(condition):
    source = f"def f(setup):\n    if {condition}:\n        return second()\n    from x import y\n    return y()"
    assert ast.unparse(trim(source)) == source


def test_one_of_several_names_comes_alone():
    code = copy_sources({"bertkit.tasks.few_shot": ("decode",)})
    assert "\ndecode = text_classification.decode\n" in code["tasks/few_shot.py"]
    assert "compare" not in code["tasks/few_shot.py"]
