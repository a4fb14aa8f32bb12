"""What is beside the weights: modules of sentence-transformers, and what was pruned."""

from __future__ import annotations

import json
import shutil

from bertkit.compression.choose_units import Kept
from bertkit.compression.pruned_folder import PRUNED_FILE, PrunedFacts, publish
from bertkit.compression.target_shape import Shape


def test_modules_are_copied_and_what_is_left_is_noted(tiny_model, tmp_path):
    source, folder = shutil.copytree(tiny_model, tmp_path / "source"), tmp_path / "new"
    modules = [{"idx": n, "name": str(n), "path": p, "type": f"x.{t}"} for n, p, t in [(0, "", "A"), (1, "1_P", "P")]]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "sentence_bert_config.json").write_text("{}")
    (source / "1_P").mkdir()
    (source / "1_P" / "config.json").write_text('{"pooling_mode": "mean"}')
    folder.mkdir()
    publish(PrunedFacts("model", source, folder, Kept([0]), Shape((0,)), [0, 1, 7], 0.0), folder, None)
    for name in ("modules.json", "sentence_bert_config.json", "1_P/config.json"):
        assert (folder / name).read_text() == (source / name).read_text()
    facts = json.loads((folder / PRUNED_FILE).read_text())
    assert (facts["layers"], facts["tokens"], facts["neurons"]) == ([0], [0, 1, 7], None)
    assert not (folder / "run.json").exists()
