"""The page with a map: what is in it, how large it is, and what it does in a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from bertkit.reports import map as page_module
from bertkit.reports.map import MapLayer, MapPage, MapPoint, draw_layers, get_color, split_text, write_map

HOSTILE = '</script><script>document.title = "run"</script><img src=x onerror=alert(1)>'
NAMES = ["fruit & co", HOSTILE]


def make_map(count=12):
    """Make points on a circle, and at a second layer the same ones mirrored; every fourth has no label."""
    turns = np.arange(count) / count * 2 * np.pi
    circle = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    points = [
        MapPoint(f"r{n}", f"😀 an apple {n}. {HOSTILE}", None if n % 4 == 3 else NAMES[n % 2], (5, 10))
        for n in range(count)
    ]
    layers = [MapLayer("layer 0", 3 * circle[:, ::-1], "9% of variance"), MapLayer("layer 1", circle, HOSTILE)]
    return points, layers


def write(folder, points, layers, **page):
    shown = write_map(folder / "map.html", points, layers, MapPage(f"title {HOSTILE}", **page))
    return shown, (folder / "map.html").read_text()


def part(text, name):
    content = re.search(rf'id="{name}">([^<]*)</script>', text)[1]
    return json.loads(content) if name == "facts" else base64.b64decode(content)


def test_points_texts_and_labels_are_on_the_page(tmp_path):
    points, layers = make_map()
    table = [{"layer": HOSTILE, "silhouette": "0.5"}]
    shown, text = write(tmp_path, points, layers, notes=[HOSTILE], table=table)
    assert shown == (12, 200, 0)
    facts = part(text, "facts")
    assert [(label["name"], label["count"]) for label in facts["labels"]] == [(NAMES[0], 6), (HOSTILE, 3), ("none", 3)]
    assert np.frombuffer(part(text, "labels"), dtype="<u2").tolist() == [0, 1, 0, 2] * 3
    numbers = np.frombuffer(part(text, "points"), dtype="<u2").reshape(2, 12, 2) / 65535
    # each layer has the same scale, where the mean squared distance from the center is 1
    for layer, places in zip(layers, (numbers * 2 - 1) * facts["extent"], strict=True):
        expected = layer.points / np.sqrt((layer.points**2).sum(axis=1).mean())
        np.testing.assert_allclose(places, expected, atol=facts["extent"] / 65535)
    texts = json.loads(zlib.decompress(part(text, "texts")))
    assert ["".join(parts) for parts in texts["texts"]] == [point.text for point in points] and texts["ids"][3] == "r3"
    assert texts["texts"][0][:2] == ["😀 an ", "apple"]
    assert "<img" not in text and text.count("<script") == 5
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in text
    assert not re.search(r"<[^>]*\s(?:src|href)=|@import|url\(", text)


def test_many_points_are_thinned_and_many_labels_grouped(tmp_path, monkeypatch):
    points, layers = make_map()
    monkeypatch.setattr(page_module, "MAX_POINTS", 4)
    monkeypatch.setattr(page_module, "MAX_LABELS", 1)
    shown, text = write(tmp_path, [point._replace(label=str(n % 3)) for n, point in enumerate(points)], layers)
    assert shown.points == 4
    assert "4 of 12 points are on this page; map.parquet has all points." in text
    facts = part(text, "facts")
    assert [(label["name"], label["count"]) for label in facts["labels"]] == [("1", 2), ("2 other labels", 2)]
    assert json.loads(zlib.decompress(part(text, "texts")))["ids"] == ["r0", "r4", "r7", "r11"]


def test_shortened_texts_are_counted(tmp_path):
    points = [MapPoint(n, "long " * 40 + "!" * n) for n in range(3)]
    shown, text = write(tmp_path, points, [MapLayer("", np.eye(3)[:, :2], "")])
    assert shown == (3, 200, 2)
    assert "2 texts are shortened to 200 characters on this page, and complete in map.parquet." in text


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (None, ["0123456…"]),
        ((0, 1), ["", "0", "123456…"]),
        ((10, 12), ["…789", "01", "23…"]),
        ((18, 20), ["…34567", "89", ""]),
        ((2, 18), ["…", "2345678", "…"]),
    ],
)
def test_a_word_stays_in_the_middle_of_a_shortened_text(span, expected):
    text = "01234567890123456789"
    assert split_text(text, span, 7) == expected
    assert "".join(split_text(text, span, 20)) == text


def test_a_picture_has_a_panel_per_layer_and_is_xml():
    points, layers = make_map()
    tree = ElementTree.fromstring(draw_layers(points, layers * 3, name=HOSTILE))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["layer 0", "9% of variance", "layer 1", HOSTILE] * 3 + [NAMES[0], HOSTILE, "none"]
    paths = list(tree.iter("{http://www.w3.org/2000/svg}path"))
    assert [path.get("d").count("M") for path in paths] == [6, 3, 3] * 6
    assert tree.get("viewBox") == "0 0 880 600"


def test_near_numbers_have_different_colors():
    assert len({get_color(number) for number in range(30)}) == 30


ACT = """
ready.then(async () => {
  const found = {}, box = () => over.getBoundingClientRect();
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const send = (name, [x, y]) =>
    over.dispatchEvent(new PointerEvent(name, { clientX: x + box().left, clientY: y + box().top, pointerId: 1 }));
  const type = (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event("input")); };
  const lines = () => [...document.querySelectorAll("#texts-list small")];
  const listed = () => lines().map((line) => line.textContent.split("row ")[1]);
  const press = (key) => over.dispatchEvent(new KeyboardEvent("keydown", { key }));
  await wait(100);
  const places = () => [...xs].map((x, i) => [x, ys[i]]);
  found.last = places();
  send("pointermove", toScreen(4));
  found.hover = [byId("hover").querySelector("bdi").textContent, byId("hover").querySelector("mark").textContent];
  send("pointermove", [width / 2, height / 2]);
  found.nothing = byId("hover").hidden;
  type("layer", 0);
  await wait(1500);
  found.first = places();
  found.about = byId("about").textContent;
  send("pointermove", toScreen(4));
  found.moved = byId("hover").querySelector("small").textContent;
  type("search", "APPLE 7");
  found.search = listed();
  byId("clear").click();
  byId("lasso").click();
  const corners = [[0, 0], [width, 0], [width, height / 2 - 20], [0, height / 2 - 20]];
  send("pointerdown", corners[0]);
  corners.slice(1).forEach((corner) => send("pointermove", corner));
  send("pointerup", corners[3]);
  found.lasso = listed();
  found.counts = byId("counts").textContent;
  byId("legend").querySelectorAll(":scope > button")[0].click();
  found.shown = listed();
  press("Escape");
  const scale = view.scale;
  press("+");
  over.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, cancelable: true }));
  found.zoom = view.scale / scale;
  send("pointerdown", [50, 50]);
  found.x = view.x; send("pointermove", [60, 50]); send("pointerup", [60, 50]);
  found.panned = (found.x - view.x) * view.scale;
  press("0");
  found.fit = view.scale / scale;
  found.pixels = dots.getContext("2d").getImageData(0, 0, dots.width, dots.height).data.some((value) => value);
  found.svg = drawing();
  found.png = paint().toDataURL().slice(0, 22);
  found.title = document.title;
  found.wide = document.documentElement.scrollWidth;
  parent.postMessage(JSON.stringify(found), "*");
});
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_hovers_slides_searches_and_lassoes(width, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    points, layers = make_map()
    _, text = write(tmp_path, points, layers)
    # the page's policy runs only its own script, so the test adds its steps to that, and lets them run
    text = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", text)
    end = text.rindex("</script>")
    (tmp_path / "map.html").write_text(text[:end] + ACT + text[end:])
    # in a page around it, since a window of Chromium is at least 500 pixels wide
    show = "onmessage = (event) => document.body.replaceChildren(event.data)"
    around = tmp_path / "around.html"
    around.write_text(f'<script>{show}</script><iframe src="map.html" width="{width}" height="900"></iframe>')
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    command = [chromium, *options, "--virtual-time-budget=20000", f"--user-data-dir={tmp_path}/profile"]
    ended = subprocess.run([*command, around.as_uri()], capture_output=True, text=True, timeout=240)
    found = json.loads(html.unescape(re.search(r"<body>(.*)</body>", ended.stdout, re.DOTALL)[1]))
    assert found["hover"] == [points[4].text, "apple"] and found["nothing"]
    np.testing.assert_allclose(found["last"], layers[1].points, atol=1e-4)
    np.testing.assert_allclose(found["first"], layers[0].points / 3, atol=1e-4)
    assert found["about"] == "layer 0: 9% of variance" and found["moved"] == "fruit & co · row r4"
    assert found["search"] == ["r7"]
    upper = [point.id for point, place in zip(points, layers[0].points, strict=True) if place[1] > 1]
    assert found["lasso"] == upper
    assert found["counts"].startswith(" fruit & co: ") and HOSTILE in found["counts"]
    assert found["shown"] == [one for one in upper if int(one[1:]) % 2]
    assert found["zoom"] == pytest.approx(1.4 * np.exp(0.16)) and found["fit"] == pytest.approx(1)
    assert found["panned"] == pytest.approx(10)
    assert found["pixels"] and found["png"] == "data:image/png;base64,"
    circles = ElementTree.fromstring(found["svg"]).iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(circles)) == 6  # the label that was hidden stays so
    assert found["title"] == f"title {HOSTILE} · bertkit map"
    assert found["wide"] <= width
