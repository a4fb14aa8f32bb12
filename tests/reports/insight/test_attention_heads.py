"""The page of measured heads."""

from __future__ import annotations

import base64
import hashlib
import re

import numpy as np
import pytest

from bertkit.insight.attention.heads import MeasuredHead, MeasuredHeads
from bertkit.insight.attention.patterns import PATTERNS
from bertkit.insight.attention.relations import RelationScore
from bertkit.reports.insight.attention_heads import write_heads
from tests.reports.insight.test_attention import CHROMIUM, HOSTILE, browse, read_data, unpack


def make_page(folder):
    shares = {name: number / 10 for number, name in enumerate(PATTERNS)}
    heads = [MeasuredHead(n // 2, n % 2, "mixed", shares, 1.5, 0.75, (0, 1), 0.1) for n in range(4)]
    distances = np.abs(np.arange(4)[:, None] - np.arange(4)) / 4
    relation = RelationScore(
        *(HOSTILE, 40, 1, 0, "dependent to head", 0.8, (0.7, 0.9), -2, 0.3, (0.2, 0.4), 0.5, (0.4, 0.6))
    )
    found = MeasuredHeads(HOSTILE, HOSTILE, 2, 2, 9, 1, 128, 77, shares, heads, distances.tolist(), 50, [relation])
    write_heads(folder / "page.html", found, PATTERNS)
    return folder / "page.html"


def test_the_page_is_whole_and_safe(tmp_path):
    page = make_page(tmp_path).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "<img" not in page and page.isascii() and "http://" not in page and "https://" not in page
    assert page.count("&lt;img") == 4  # title, heading, file, relation
    assert "is no explanation of an answer" in page and "<code>bertkit explain</code>" in page
    assert page.count('<table class="matrix">') == len(PATTERNS) + 1
    assert '<td style="--share:70">.70</td>' in page and '<td style="--share:75">1.50</td>' in page
    assert '<tr class="wins"><th scope="row">' in page and "<td>1.0</td>" in page and "1 left out" in page
    data = read_data(page)
    assert (unpack(data["distances"]) / 255 * data["most"]).reshape(4, 4)[0] == pytest.approx([0, 0.25, 0.5, 0.75])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_tells_the_pair_that_is_pointed_at(tmp_path):
    act = """
    setTimeout(() => {
      const done = [], canvas = $("distances"), box = canvas.getBoundingClientRect();
      const at = (share) => ({clientX: box.left + share[0] * box.width, clientY: box.top + share[1] * box.height});
      canvas.dispatchEvent(new MouseEvent("mousemove", at([0.9, 0.1]))); done.push($("pair").textContent);
      canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown"})); done.push($("pair").textContent);
      done.push(document.documentElement.scrollWidth <= window.innerWidth);
      document.body.replaceChildren(JSON.stringify(done));
    }, 1500);
    """
    found = browse(make_page(tmp_path), act, tmp_path, "--window-size=500,900")
    assert found == ["heads 0.0 and 1.1: 0.750 bits", "heads 0.1 and 1.1: 0.500 bits", True]
