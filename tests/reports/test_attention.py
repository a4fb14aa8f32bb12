"""The page of one text: whole, safe, small enough, and alive in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest

from bertkit.analysis.attention import (
    PATTERNS,
    AttendedText,
    AttendedToken,
    MeasuredHead,
    MeasuredHeads,
    RelationScore,
    roll_out,
)
from bertkit.reports.attention import pack, write_attention, write_heads

HOSTILE = '</script><script>document.title = "run"</script><img src=x onerror=alert(1)>'
TOKENS = [("[CLS]", None), ("the", 0), (HOSTILE, 0), ("[SEP]", None), ("\u0436\u2028&amp;", 1), ("[SEP]", None)]
CHROMIUM = shutil.which("chromium")


def make_text():
    layers, heads, count = 2, 3, 6
    random = np.random.default_rng(0)
    scores = random.gumbel(size=(layers, heads, count, count))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    tokens = [AttendedToken(text, text, segment) for text, segment in (TOKENS * count)[:count]]
    return AttendedText(f"runs/{HOSTILE}", tokens, weights)


def write_page(folder, text, first_head=(0, 0)):
    write_attention(folder / "page.html", text, first_head)
    return folder / "page.html"


def read_data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def unpack(text):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)


def test_the_page_is_whole_and_safe(tmp_path):
    page = write_page(tmp_path, make_text()).read_text()
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1 and f"script-src 'sha256-{digest}'" in page
    assert "<img" not in page and page.isascii()
    assert "http://" not in page and "https://" not in page
    assert [(token["text"], token["segment"]) for token in read_data(page)["tokens"]] == TOKENS
    assert "does not explain an answer" in page and "<code>bertkit explain</code>" in page


def test_the_page_holds_the_weights(tmp_path):
    text = make_text()
    data = read_data(write_page(tmp_path, text, first_head=(1, 2)).read_text())
    assert (data["layer"], data["head"]) == (1, 2)
    weights = (unpack(data["weights"]) / 255.0) ** 2
    # half a step of the square root, on either side
    assert np.abs(weights - text.weights.flatten()).max() <= np.sqrt(text.weights.max()) / 255
    rolled = (unpack(data["rollout"]) / 255.0) ** 2
    assert np.allclose(rolled, roll_out(text.weights).flatten(), atol=1 / 255)


def test_weights_are_rounded_square_roots():
    assert unpack(pack(np.array([0.0, 0.25, 1.0, 1.0000001]))).tolist() == [0, 128, 255, 255]


ACT = """
setTimeout(async () => {
  const done = [], read = (id) => document.getElementById(id).textContent;
  const wait = () => new Promise((go) => setTimeout(go, 50));
  const tokens = (side) => [...document.querySelectorAll(`#${side} .token`)];
  const set = (id, value) => {
    const field = document.getElementById(id);
    field[field.type === "checkbox" ? "checked" : "value"] = value;
    field.dispatchEvent(new Event("input"));
  };
  done.push(document.documentElement.dataset.ready, read("head-title"), read("count"));
  tokens("from")[1].dispatchEvent(new MouseEvent("mouseenter")); done.push(read("summary"), read("count"), read("top"));
  tokens("from")[1].dispatchEvent(new MouseEvent("mouseleave")); done.push(read("summary"));
  tokens("to")[2].click(); done.push(read("summary").length);
  set("least", 0); done.push(read("count"));
  set("special", false); done.push(read("count"));
  set("texts", "10"); done.push(read("count"));
  set("least", 100); done.push(read("count"));
  tokens("to")[2].click(); set("least", 0); set("texts", ""); set("special", true);
  tokens("from")[0].focus();
  tokens("from")[0].dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true}));
  done.push(document.activeElement === tokens("from")[1], read("summary"));
  document.activeElement.blur();
  document.querySelector('#grid [data-layer="1"][data-head="2"]').click(); await wait();
  done.push(read("head-title"));
  document.querySelector('#grid [data-layer="1"][data-head="2"]').dispatchEvent(
    new KeyboardEvent("keydown", {key: "ArrowLeft", bubbles: true}));
  done.push(read("head-title"), document.activeElement.dataset.head);
  set("source", "rollout"); tokens("from")[1].click(); done.push(read("head-title"), read("top"));
  done.push(document.title === "run", document.querySelectorAll("img").length,
            document.documentElement.scrollWidth <= window.innerWidth);
  document.body.replaceChildren(JSON.stringify(done));
}, 1500);
"""


def browse(page, act, folder, *options):
    """Return what a script leaves in the body of a page: the page's policy runs only its own script, so it joins it."""
    text = page.read_text().replace("start();\n</script>", f"start();\n{act}</script>")
    page.write_text(re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", text))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", *options]
    command = [CHROMIUM, *flags, "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return json.loads(re.search(r"<body>(.*)</body>", ended.stdout, re.DOTALL)[1].replace("&lt;", "<").replace(
        "&gt;", ">").replace("&amp;", "&"))  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_what_is_pointed_at_and_filtered(tmp_path):
    text = make_text()
    found = iter(browse(write_page(tmp_path, text), ACT, tmp_path, "--window-size=400,900"))
    weights, names = text.weights[0, 0], [name for name, _ in TOKENS]
    assert [next(found), next(found)] == ["true", "Layer 0, head 0"]
    assert next(found) == f"{(weights >= 0.09).sum()} of 36 weights are at least 0.090"
    shown = [to for to in (-weights[1]).argsort() if weights[1, to] >= 0.09]
    assert next(found) == "the attends to"
    assert next(found) == f"{len(shown)} of 6 weights are at least 0.090"
    listed = next(found)
    assert [names[to] for to in shown] == sorted((names[to] for to in shown), key=listed.index)
    for to in shown:
        assert re.search(re.escape(names[to]) + r"(0\.\d{3})", listed)
    first = float(re.match(re.escape(names[shown[0]]) + r"(0\.\d{3})", listed)[1])
    assert first == pytest.approx(weights[1].max(), abs=0.005)
    assert next(found) == "Point at a token, or choose one"
    assert next(found) == len(f"{HOSTILE} is attended to by")
    assert next(found) == "6 of 6 weights are at least 0.000"
    assert next(found) == "3 of 3 weights are at least 0.000"  # without special tokens
    assert next(found) == "1 of 1 weights are at least 0.000"  # from the second text to the first
    assert next(found) == "0 of 1 weights are at least 1.000"
    assert [next(found), next(found)] == [True, "the attends to"]  # by the arrow keys
    assert next(found) == "Layer 1, head 2"
    assert [next(found), next(found)] == ["Layer 1, head 1", "1"]
    assert next(found) == "Layer 1, rollout up to it"
    rolled = roll_out(text.weights)[1, 1]
    assert next(found).startswith(names[int(rolled.argmax())])
    assert list(found) == [False, 0, True]  # nothing of a text has run, and the page is no wider than a telephone


def test_the_page_of_heads_is_whole_and_safe(tmp_path):
    shares = {name: number / 10 for number, name in enumerate(PATTERNS)}
    heads = [MeasuredHead(n // 2, n % 2, "mixed", shares, 1.5, 0.75) for n in range(4)]
    relation = RelationScore(
        *(HOSTILE, 40, 1, 0, "dependent to head", 0.8, (0.7, 0.9), -2, 0.3, (0.2, 0.4), 0.5, (0.4, 0.6))
    )
    found = MeasuredHeads(HOSTILE, HOSTILE, 2, 2, 9, 1, 128, 77, shares, heads, [relation])
    write_heads(tmp_path / "page.html", found, PATTERNS)
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and "<img" not in page and page.isascii()
    assert "http://" not in page and "https://" not in page
    assert page.count("&lt;img") == 4  # title, heading, file, relation
    assert "does not explain an answer" in page and "<code>bertkit explain</code>" in page
    assert page.count('<table class="matrix compact">') == len(PATTERNS) + 1
    assert '<td style="--share:70">.70</td>' in page and '<td style="--share:75">1.50</td>' in page
    assert '<tr class="best"><th scope=row' in page and "1 skipped" in page
