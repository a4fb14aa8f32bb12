"""The docs hold what they promise: links lead somewhere, reference pages are complete, the example module works."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import bertkit
from bertkit import errors
from bertkit.metrics.registry import CLASSIFICATION_METRICS, REGRESSION_METRICS
from bertkit.modeling.sizes import find_size, read_sizes
from bertkit.pretraining.objectives import objective_names
from bertkit.recipe import (
    CorpusConfig,
    DataConfig,
    DistillationConfig,
    PretrainingConfig,
    PretrainRecipe,
    Recipe,
    TrainingConfig,
    load_recipe,
    recipe_names,
)
from bertkit.recipe.sections import ConfigSection
from bertkit.tasks import Task, task_names

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = [title.replace("`", "").strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_every_link_leads_to_a_file_and_a_heading():
    links = [
        (page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    for page, link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), (page, link)
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), (page, link)


Page = tuple[str, tuple[str, ...]]
"""A page and the headings that it stands under."""


def pages_of_the_index() -> Iterator[Page]:
    headings: list[str] = []
    for line in read("index.md").splitlines():
        if heading := re.match(r"##(#*) (.*)", line):
            headings[len(heading[1]) :] = [heading[2]]
        elif page := re.match(r"\* \[.*?\]\(([\w./-]+)\)", line):
            yield page[1], tuple(headings)


def pages_of_the_site(entries: list[str | dict], headings: tuple[str, ...] = ()) -> Iterator[Page]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry, headings
        else:
            ((title, below),) = entry.items()
            yield from [(below, headings)] if isinstance(below, str) else pages_of_the_site(below, (*headings, title))


def test_the_index_lists_every_page_once():
    docs = ROOT / "docs"
    pages = [page.relative_to(docs).as_posix() for page in docs.rglob("*") if page.suffix in (".md", ".ipynb")]
    assert sorted([*(page for page, _ in pages_of_the_index()), "index.md"]) == sorted(pages)


def test_the_site_has_the_pages_and_the_order_of_the_index():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert list(pages_of_the_site(site["nav"])) == [("index.md", ()), *pages_of_the_index()]


def test_the_python_reference_has_every_public_name():
    assert sorted(re.findall(r"^::: bertkit\.(\w+)$", read("api.md"), re.MULTILINE)) == sorted(bertkit.__all__)


def test_the_skill_for_agents_has_five_commands_and_every_exit_code():
    _, header, text = read("skills/bertkit/SKILL.md").split("---\n", 2)
    about = yaml.safe_load(header)
    assert about.keys() == {"name", "description"} and about["name"] == "bertkit" and len(about["description"]) < 1024
    assert len(re.findall(r"^bertkit .* --json$", text, re.MULTILINE)) == 5
    codes = {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in cell.split(",")}
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    stopped = {129, 130, 143}  # 128 + SIGHUP, SIGINT, SIGTERM
    assert codes == {0, *stopped, *(error.exit_code for error in classes if hasattr(error, "exit_code"))}
    printed = bertkit.BertkitError("").as_dict().keys()
    assert {"code", "message", "file", "row", "column", "hint"} <= printed


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("zensical"), reason="needs the extra `docs`: `make site` installs it")
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for folder in ("docs", "bertkit"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    site = tmp_path / "site"
    for page in (ROOT / "docs").glob("*.md"):
        text = (site / page.name).with_suffix(".html").read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link rel="stylesheet" href="([^"]+)"', text)
        assert [name for names in loaded for name in names if name and not (site / name).is_file()] == [], page
    assert all((site / page.name).is_file() for page in (ROOT / "docs").glob("*.ipynb"))
    reference = (site / "api.html").read_text(encoding="utf-8")
    assert [name for name in bertkit.__all__ if f'id="bertkit.{name}"' not in reference] == []
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    assert any(item["location"].startswith("training.html#") and "focal" in item["text"] for item in index["items"])


def keys(section: type[ConfigSection]) -> set[str]:
    """The keys of a section and of its subsections, each by its own name."""
    names = set(section.model_fields)
    for field in section.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            names |= keys(field.annotation)
    return names


def test_the_reference_has_every_key_and_every_task_family():
    page = read("recipes.md")
    first_cells = " ".join(re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE))
    documented = set(re.findall(r"`([^`]+)`", first_cells))
    assert keys(Recipe) | keys(PretrainRecipe) <= documented
    assert set(task_names()) <= documented


def test_the_demo_table_has_every_recipe_and_its_metric():
    lines = re.findall(r"^\| `(\S+)` \| (\S+) \|", read("demo.md"), re.MULTILINE)
    assert lines == [(name, load_recipe(name).best_metric) for name in recipe_names()], "run `make demo-table`"


def test_the_reference_has_every_metric():
    page = read("recipes.md")
    assert [name for name in (*CLASSIFICATION_METRICS, *REGRESSION_METRICS) if f"`{name}`" not in page] == []


def test_every_key_of_a_recipe_that_a_page_names_exists():
    families = [importlib.import_module(f"bertkit.tasks.{name}") for name in task_names()]
    families += [importlib.import_module(f"bertkit.pretraining.objectives.{name}") for name in objective_names()]
    known = {
        "training": {*TrainingConfig.model_fields, *PretrainingConfig.model_fields},
        "data": {*DataConfig.model_fields, *CorpusConfig.model_fields},
        "distillation": {*DistillationConfig.model_fields},
        "options": {name for family in families for name in getattr(family, "OPTIONS", {})},
    }
    named = {
        (page.name, f"{section}.{key}")
        for page in PAGES
        for section, key in re.findall(r"\b(training|data|distillation|options)\.([a-z_]+)\b", page.read_text("utf-8"))
        if key not in known[section]
    }
    no_keys = (".md", ".py", ".html", "data.model_copy", "data.read_csv")  # files, and functions of Python
    assert {name for name in named if not name[1].endswith(no_keys)} == set()


def test_the_architecture_lists_the_layers_that_are_enforced():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [
        contract["layers"] for contract in project["tool"]["importlinter"]["contracts"] if "layers" in contract
    ]
    assert "\n".join(layers).replace("bertkit.", "") in read("architecture.md")


def test_pretraining_lists_every_objective():
    assert all(f"| `{name}` |" in read("pretraining.md") for name in objective_names())


def test_encoders_lists_every_size():
    page = read("encoders.md")
    for name in read_sizes():
        size = find_size(name)
        assert f"| `{name}` | `{size.model_type}` | {size.layers} | {size.hidden:,} | {size.heads} |" in page
        assert f"| {size.parameters:,} |" in page


def test_the_example_of_a_task_family_is_complete():
    code = re.search(
        r'^```python title="mypackage/stars.py"\n(""".*?)^```$', read("own-task.md"), re.DOTALL | re.MULTILINE
    )[1]
    assert set(re.findall(r"from (bertkit[\w.]*)", code)) == {"bertkit.tasks"}
    module = types.ModuleType("stars")
    exec(compile(code, "own-task.md", "exec"), vars(module))
    parts = [*Task.__annotations__, *(name for name in vars(Task) if not name.startswith("_"))]
    assert [part for part in parts if not hasattr(module, part)] == []


def test_the_files_that_start_several_machines_can_be_read(tmp_path):
    text = (ROOT / "docs" / "several-machines.md").read_text(encoding="utf-8")
    files = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE))
    assert files.keys() == {"train.sbatch", "predict.sbatch", "jobset.yaml", "sky.yaml"}
    for name in ("train.sbatch", "predict.sbatch"):
        assert subprocess.run(["bash", "-n"], input=files[name], text=True, check=False).returncode == 0
        assert files[name].startswith("#!/bin/bash\n#SBATCH ")
    job, sky = (yaml.safe_load(files[name]) for name in ("jobset.yaml", "sky.yaml"))
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = pod["template"]["spec"]["containers"]
    assert (job["kind"], pod["parallelism"], container["command"]) == ("JobSet", 2, ["torchrun"])
    assert {volume["name"] for volume in container["volumeMounts"]} == {"shared"}
    assert sky["num_nodes"] == 2 and subprocess.run(["bash", "-n"], input=sky["run"], text=True).returncode == 0
    for command in (files["train.sbatch"], " ".join(container["args"]), sky["run"]):
        assert "-m bertkit finetune cola --output /shared/runs/cola" in command
