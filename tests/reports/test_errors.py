"""The page of mistakes sorts by a script that its own policy allows, and shows texts as texts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bertkit.analysis.outcomes import RowAnswer
from bertkit.analysis.slices import ComparedSlice
from bertkit.reports.errors import write_mistakes
from bertkit.workflows.errors import Mistakes

HOSTILE = '</script><script>document.title = "run"</script><img src=x onerror=alert(1)>'
ANSWERS = [RowAnswer(str(n), f"{HOSTILE} {n}", "good", "bad", 1.0, n / 10, 9 - n) for n in (1, 3, 2)]
SLICE = ComparedSlice("label", HOSTILE, 30, 0.5, 0.1, 0.4, (0.2, 0.6), 0.001, 0.01, True, ["1"])
FOUND = {
    **{"recipe": "r", "task": "t", "split": "validation", "rows": 60, "units": 60, "what": "share of wrong rows"},
    **{"test": "Fisher's exact test", "slices": [SLICE], "notes": ["a note"]},
}


def make_page(folder):
    found = Mistakes(**FOUND, run="runs/a", rate=0.05, wrong=3, scores={"accuracy": 0.95}, mistakes=ANSWERS)
    write_mistakes(folder / "page.html", found)
    return folder / "page.html"


SCRIPT = (Path(__file__).parents[2] / "bertkit/reports/tables.js").read_text(encoding="utf-8")


def test_the_page_is_whole_and_safe(tmp_path):
    page = make_page(tmp_path).read_text()
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert re.findall(r"<script>(.*?)</script>", page, re.DOTALL) == [SCRIPT]
    assert "<img" not in page
    assert page.count("&lt;img") >= 5
    assert "http://" not in page and "https://" not in page
    assert page.isascii()


@pytest.mark.slow
def test_a_heading_sorts_and_a_search_hides(tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    page = make_page(tmp_path)
    act = """
      const table = document.getElementById("mistakes-table"), order = [];
      const rows = () => [...table.tBodies[0].rows].filter((r) => !r.hidden);
      const read = () => rows().map((r) => r.cells[0].textContent).join("");
      order.push(read());
      for (const n of [1, 1, 3]) { table.tHead.rows[0].cells[n].querySelector("button").click(); order.push(read()); }
      const box = document.querySelector("input[data-table=mistakes-table]");
      box.value = "onerror=alert(1)> 3"; box.dispatchEvent(new Event("input")); order.push(read());
      document.body.replaceChildren(JSON.stringify([order, document.title.startsWith("r: mistakes")]));
    """
    # the page's policy runs only its own script, so the test adds its steps to that, and lets them run
    text = page.read_text().replace("</script>", f"{act}</script>")
    page.write_text(re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", text))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    ended = subprocess.run([chromium, *options, page.as_uri()], capture_output=True, text=True, timeout=120)
    found = json.loads(re.search(r"<body>(.*)</body>", ended.stdout, re.DOTALL)[1])
    assert found == [["132", "321", "123", "123", "3"], True]
