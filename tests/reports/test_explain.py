"""The page with explained rows."""

from __future__ import annotations

import re

from bertkit.reports.explain import write_explanations


def word(text, value, segment=0):
    return {"word": text, "segment": segment, "integrated_gradients": value, "occlusion": 0.0}


def make_record(**changes):
    one = {"target": "good", "measure": "log-odds", "score": 1.0, "baseline_score": 0.5, "steps": 16, "gap": 0.001}
    one |= {"is_complete": True, "words": [word("<script>alert(1)</script>", 0.4), word("b", 0.1)]}
    return {"id": "<i>", "text": "...", "prediction": "good", "explanations": [one | changes]}


def test_hostile_words_are_shown_and_not_run(tmp_path):
    write_explanations(tmp_path / "why.html", [make_record()], model="<m>")
    page = (tmp_path / "why.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "Adds up within 0.10% after 16 steps" in page
    assert "row &lt;i&gt;" in page


def test_what_does_not_add_up_is_marked(tmp_path):
    write_explanations(tmp_path / "why.html", [make_record(is_complete=False, gap=0.2, steps=1)], model="m")
    page = (tmp_path / "why.html").read_text()
    assert "Does not add up: off by 20.00% after 1 step." in page
    assert "do not add up within 1%" in page


def test_words_are_painted_by_their_share_of_the_largest(tmp_path):
    words = [word("a", 1.0), word(".", -0.5), word("b", 0.0, segment=1)]
    write_explanations(tmp_path / "why.html", [make_record(words=words)], model="m")
    page = (tmp_path / "why.html").read_text()
    assert re.findall(r'(.)<span class="(\w+)" style="--share:(\d+)" title="([^"]+)">([^<]+)<', page)[:3] == [
        (">", "for", "100", "+1.0000", "a"),
        (">", "against", "50", "-0.5000", "."),
        (">", "for", "0", "+0.0000", "b"),
    ]
