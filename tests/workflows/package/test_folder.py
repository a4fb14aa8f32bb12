"""What is in the folder of a package beside its code."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.tasks import text_classification
from bertkit.workflows.package.folder import (
    PackageFacts,
    check_name,
    copy_code,
    license_text,
    requirements_of,
    write_supporting_files,
)

FACTS = PackageFacts(
    "made", "runs/a", "text_classification", "onnx", "int8", ("numpy>=2.0,<3",), {"text": 'It\'s "so".'}
)


@pytest.mark.parametrize("name", ["1a", "a-b", "class", "é", "", "numpy", "json", "bertkit"])
def test_a_name_that_no_module_may_have_is_refused(name):
    with pytest.raises(UsageError, match="--name "):
        check_name(name)
    check_name("sst2_model")


def test_requirements_are_ranges_up_to_the_next_major_release():
    for backend, package in (("onnx", "onnxruntime"), ("openvino", "openvino")):
        found = requirements_of(backend)
        assert [re.split("[>=]", line)[0] for line in found] == [package, "tokenizers", "numpy"]
        assert all(re.fullmatch(r"[a-z]+>=[0-9.]+,<[0-9]+", line) for line in found), found


def test_a_family_of_ones_own_is_refused():
    with pytest.raises(ModelError, match=r"the task family text_classification is a module of your own"):
        copy_code(FACTS, SimpleNamespace(__name__="mine"))


@pytest.mark.parametrize(
    ("wheel", "version"),
    [("1.2", "made 1.2, bertkit 0.1.0"), pytest.param(None, "made, bertkit 0.1.0", marks=pytest.mark.slow)],
)
def test_the_program_knows_its_version(wheel, version):
    facts = replace(FACTS, wheel=wheel, version="0.1.0")
    assert f'main(Model, "made", "{version}")' in copy_code(facts, text_classification)["__main__.py"]


def test_the_readme_says_how_it_is_used(tmp_path):
    write_supporting_files(tmp_path, FACTS)
    text = (tmp_path / "README.md").read_text()
    assert "not known; ask whoever trained it" in text and "| graph | onnx/model_quantized.onnx, int8 |" in text
    assert "model.predict([{'text': 'It\\'s \"so\".'}])" in text and "model.embed" not in text
    assert "python -m made 'It'\"'\"'s \"so\".'\n" in text and '{"text": "It\'s \\"so\\"."}' in text
    assert (tmp_path / "requirements.txt").read_text() == "numpy>=2.0,<3\n"
    assert "Apache License" in license_text() and (tmp_path / "LICENSE").read_text() == license_text()
