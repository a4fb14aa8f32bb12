"""The page of ranked encoders."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

from bertkit.insight.ranking.cost import EncoderCost
from bertkit.reports.insight.rank import draw_frontier, write_ranking
from bertkit.workflows.rank import RankedEncoder, Ranking


def make_ranking(alike=True):
    """Three encoders, of which the second is beaten in score and speed."""
    encoders = []
    for place, (name, score, speed) in enumerate(
        [("org/<b>large</b>", 0.9, 100.0), ("middle", 0.8, 90.0), ("small", 0.5, 900.0)]
    ):
        cost = EncoderCost(20_000_000, speed, speed / 20, None if place else 80_000_000, 512, "MIT", "en, <i>de</i>")
        scores = {"h_score": score, "logme": score - 1, "knn": score, "linear_probe": score}
        encoders.append(
            RankedEncoder(
                name,
                scores,
                (score - 0.1, score + 0.1),
                0.45,
                "mean",
                cost,
                place != 1,
                place < 1 + alike,
                alike and place < 2,
                1.0,
            )
        )
    return Ranking(
        "cola", "text_classification", "text", "train", 2000, 2, "h_score", "mean", encoders, "fp32", 1, 9.0, ["a note"]
    )


SCRIPT = (Path(__file__).parents[3] / "bertkit/reports/insight/tables.js").read_text(encoding="utf-8")


def test_the_page_is_whole_and_safe(tmp_path):
    write_ranking(tmp_path / "page.html", make_ranking())
    page = (tmp_path / "page.html").read_text()
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert re.findall(r"<script>(.*?)</script>", page, re.DOTALL) == [SCRIPT]
    assert "<b>large" not in page and "<i>de" not in page and "http://" not in page.replace("http://www.w3.org", "")
    assert "80 MB" in page and "n/a" in page and "a note" in page
    assert page.count('<tr class="found">') == 2


def test_the_line_joins_those_that_no_other_beats():
    drawn = ET.fromstring(str(draw_frontier(make_ranking())))
    labels = [one.text for one in drawn.iter("text")]
    assert {"<b>large<", "middle", "small"} - {label[:8] if label else "" for label in labels} == {"<b>large<"}
    points = next(one for one in drawn.iter("polyline")).attrib["points"].split()
    assert len(points) == 2
    dots = {one[0].text.partition(":")[0]: one.attrib for one in drawn.iter("circle")}
    ends = [f"{dots[name]['cx']},{dots[name]['cy']}" for name in ("org/<b>large</b>", "small")]
    assert points == ends
