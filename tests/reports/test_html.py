"""The report: its sections, what fills them, and pages that hold whatever the data holds."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bertkit.reports.examples import Example
from bertkit.reports.html import ReportData, write_report

CHROMIUM = shutil.which("chromium")
VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}
BARE = ReportData(
    name="cola",
    command="bertkit finetune cola",
    model="tiny",
    split="validation",
    rows=4,
    best_metric="accuracy",
    scores={"accuracy": 0.75},
)


class Balance(HTMLParser):
    """Fails on a tag that is closed out of order or never; keeps the ids of sections and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if tag == "section" and name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def rows(page: str) -> list[list[str]]:
    """Return the text of the cells of all rows of all tables."""
    cells = [
        re.findall(r"<(?:th|td)\b[^>]*>(.*?)</(?:th|td)>", row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    ]
    return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in row] for row in cells]


def report(folder: Path, facts: ReportData) -> tuple[str, Balance]:
    """Write the report and check what must hold of any: balanced, self-contained, small, its pictures XML."""
    path = write_report(folder, facts)
    assert path == folder / "report.html"
    page = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 2_000_000
    assert not re.search(r"<script(?!>)|<link|<iframe|<img|@import|url\(|\bsrc\s*=|\bhref\s*=|https?://", page)
    for picture in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(picture)
    return page, Balance(page)


def classified(labels: list[str], rows: int, columns: int = 1) -> list[Example]:
    rng = np.random.default_rng(len(labels))
    examples = []
    for row in range(rows):
        probabilities = rng.dirichlet(np.full(len(labels), 0.4))
        predicted = labels[int(probabilities.argmax())]
        gold = predicted if rng.random() < 0.8 else labels[int(rng.integers(len(labels)))]
        text = [(f"column_{number}", f"row {row} text {number}") for number in range(columns)]
        by_label = dict(zip(labels, probabilities.tolist(), strict=True))
        examples.append(Example(f"{row}", text, gold, predicted, by_label))
    return examples


def test_bare_facts_make_a_short_report(tmp_path: Path) -> None:
    _, parsed = report(tmp_path, BARE)
    assert parsed.ids == ["headline", "scores", "how-to-reproduce-this-run"]
    assert "0.7500" in parsed.text and "bertkit finetune cola" in parsed.text


def test_two_classes_fill_every_section(tmp_path: Path) -> None:
    facts = replace(
        BARE,
        about="Is it grammatical?",
        intervals={"accuracy": (0.61, 0.89), "f1": None},
        interval_methods={"accuracy": "Wilson"},
        no_interval={"f1": "resamples score the same"},
        baselines={"most frequent label": {"accuracy": 0.5}},
        published=[
            {"model": "bert-base", "split": "test", "source": "Devlin et al. 2019", "accuracy": 0.521},
            {"model": "bert-large", "split": "validation", "accuracy": [0.71, 0.73]},
        ],
        history=[
            {"step": 10, "epoch": 0.5, "loss": 0.7, "learning_rate": 1e-5, "grad_norm": 2.0},
            {"step": 20, "epoch": 1.0, "loss": float("nan"), "learning_rate": 0.0, "grad_norm": None},
            {"step": 20, "eval_accuracy": 0.75, "eval_loss": 0.6},
            {"step": 20, "train_runtime": 3.0},
        ],
        best_step=20,
        examples=classified(["bad", "good"], 200),
        decisions=("row", np.linspace(0.5, 1, 200), np.arange(200) % 3 > 0),
        labels=["bad", "good"],
        warnings=["The demo corpus: these scores cannot be compared with others."],
        other_splits={"test": {"accuracy": 0.7, "f1": 0.6}},
        provenance={"torch": "2.9.0", "data": "sha256:abc"},
        seed=42,
        seconds=204.0,
        device="cpu",
    )
    page, parsed = report(tmp_path, facts)
    assert parsed.ids == [
        *("headline", "scores", "published-scores", "training", "confusion-matrix", "labels", "behavior"),
        *("predictions", "how-to-reproduce-this-run"),
    ]
    for word in (
        "The demo corpus: these scores cannot be compared with others.",
        "0.6100 – 0.8900",
        "95% intervals over the evaluated rows: Wilson for accuracy; none for f1 (resamples score the same).",
        "0.7100 – 0.7300",
        "Devlin et al. 2019",
        "3 min 24 s",
        "expected calibration error",
        "Risk and coverage",
        "The model is from step 20, which scored best.",
        " wrong, the most confident errors first.",
        "sha256:abc",
    ):
        assert word in parsed.text
    assert page.count("<figcaption>") == 6
    assert parsed.text.index("The demo corpus") < parsed.text.index("Scores")


def test_the_risk_of_taggers_is_that_of_entities(tmp_path):
    entities = np.linspace(0.5, 1, 40), np.arange(40) % 4 > 0
    _, parsed = report(tmp_path, replace(BARE, decisions=("entity", *entities)))
    assert "Risk and coverage of entities" in parsed.text and "most confident entities are answered" in parsed.text
    assert "Reliability" not in parsed.text
    _, parsed = report(tmp_path, replace(BARE, decisions=("label", *entities)))
    assert "(15 bins, one decision per label)" in parsed.text and "Risk" not in parsed.text


COMPARED = [
    {"model": "teacher <b>", "parameters": "1,024", "accuracy": 0.9, "95% interval": (0.8, 1.0)},
    {"model": "student s", "parameters": "512", "accuracy": 0.7, "95% interval": (0.6, 0.8)},
    {"model": "baseline", "parameters": None, "accuracy": 0.5, "95% interval": None},
]


def test_a_distillation_shows_teachers_student_and_baseline(tmp_path: Path) -> None:
    page, parsed = report(tmp_path, replace(BARE, compared_models=COMPARED))
    assert "teacher-and-student" in parsed.ids
    assert ["teacher <b>", "1,024", "0.9000", "0.8000 – 1.0000"] in rows(page)
    assert ["baseline", "", "0.5000", ""] in rows(page)
    assert "teacher-and-student" not in report(tmp_path, BARE)[1].ids


def test_confusion_counts_and_shares(tmp_path: Path) -> None:
    pairs = [("a", "a")] * 3 + [("a", "b")] + [("b", "b")] * 2
    examples = [Example(str(number), [("text", "x")], *pair) for number, pair in enumerate(pairs)]
    page, parsed = report(tmp_path, replace(BARE, examples=examples, labels=["a", "b"]))
    assert 'title="a predicted as b: 1 of 4">1<small>25%</small>' in page
    assert 'title="b predicted as b: 2 of 2">2<small>100%</small>' in page
    assert "All rows; 1 wrong, the most confident errors first." in parsed.text
    assert "behavior" not in parsed.ids  # the rows have no probabilities


@pytest.mark.parametrize(
    ("folder", "named"),
    [
        ("runs/a b", "&#39;runs/a b&#39;"),
        (".", "."),
        ("{here}/runs/a", "runs/a"),
        ("{here}/../other", "../other"),
    ],
)
def test_the_command_on_the_page_names_the_run_from_where_it_was_trained(folder, named, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = Path(folder.format(here=here))
    path.mkdir(parents=True, exist_ok=True)
    page = write_report(path, replace(BARE, examples=wrong_rows(), labels=["a", "b"])).read_text()
    assert f"bertkit explain {named.format(here=here)} " in re.sub("</?span[^>]*>", "", page)


def wrong_rows() -> list[Example]:
    return [Example("0", [("text", "x")], "a", "b"), Example("1", [("text", "y")], "b", "b")]


QUEUES = ["Billing and Payments", "Customer Service", "Human Resources", "Technical Support", "Product Support"]
QUEUES += ["Returns and Exchanges", "Service Outages and Maintenance", "Sales and Pre-Sales"]

# A word is broken where the text of a cell without a space is higher than a line.
MEASURE = r"""
<script>
addEventListener("load", () => {
  const heightOf = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight);
  };
  const boxes = [...document.querySelectorAll(".scroll")];
  const cells = [...document.querySelectorAll("th, td")].filter((cell) => !cell.querySelector("wbr, small"));
  const sizes = [...document.querySelectorAll("svg text")].map((text) => {
    const svg = text.closest("svg");
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return parseFloat(getComputedStyle(text).fontSize) * scale;
  });
  parent.postMessage(JSON.stringify({
    wide: document.documentElement.scrollWidth,
    cut: boxes.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.getAttribute("aria-label")),
    hints: boxes.map((box) => getComputedStyle(box).backgroundImage.split("linear-gradient").length - 1),
    smallest: Math.min(...sizes),
    broken: cells
      .filter((cell) => /^\S+$/.test(cell.textContent.trim()) && heightOf(cell) > 1.5)
      .map((cell) => cell.textContent),
  }), "*");
});
</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_report_on_narrow_and_wide_screens(width, tmp_path):
    history = [{"step": step, "loss": 2e-4 / step, "eval_loss": 3e-4 / step} for step in (10, 20, 30)]
    page = write_report(
        tmp_path, replace(BARE, history=history, best_step=30, examples=classified(QUEUES, 200), labels=QUEUES)
    )
    text = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page.read_text())
    page.write_text(text.replace("</body>", MEASURE + "</body>"))
    found = measure(page, width, tmp_path)
    assert found["wide"] <= width
    assert found["cut"] == [] if width == 1280 else {"Confusion matrix", "Labels"} <= set(found["cut"])
    assert set(found["hints"]) == {4} and found["smallest"] >= 9 and found["broken"] == []


MARK = r'<mark class="(\w+)" title="([^"]*)">([^<]*)<small>'
TYPE = """
<script>
const box = document.querySelector("input[aria-label='Search: Predictions']");
box.value = "TEXT 1";
box.dispatchEvent(new Event("input"));
const shown = [...document.querySelectorAll("#predictions-table tbody tr")].filter((row) => row.offsetHeight);
onload = () => parent.postMessage(JSON.stringify(shown.map((row) => row.cells[0].textContent)), "*");
</script>
"""


def measure(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """Open a page in a frame, since a window of Chromium is at least 500 pixels wide, and return what it posts."""
    show = "onmessage = (event) => document.body.replaceChildren(event.data)"
    around = folder / "around.html"
    around.write_text(f'<script>{show}</script><iframe src="{page.name}" width="{width}" height="900"></iframe>')
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", f"--user-data-dir={folder}/profile"]
    ended = subprocess.run([*command, around.as_uri()], capture_output=True, text=True, timeout=240)
    return json.loads(html.unescape(re.search(r"<body>(.*)</body>", ended.stdout, re.DOTALL)[1]))


def test_mistakes_come_most_confident_first(tmp_path: Path) -> None:
    examples = [
        Example(str(row), [("text", f"text{row}")], "a", "b" if row else "a", {"a": 1 - wrong, "b": wrong})
        for row, wrong in enumerate([0.1, 0.6, 0.99, 0.8])
    ]
    page, parsed = report(tmp_path, replace(BARE, examples=examples, labels=["a", "b"]))
    assert re.findall(r"text(\d)", page) == list("2310")
    assert "wrong, confidence 0.990" in parsed.text


def test_entities_are_marked_in_their_sentence(tmp_path: Path) -> None:
    text = "Ada Lovelace wrote <b>" + " to" * 200 + " Bo"
    gold, predicted = [(0, 12, "PER"), (len(text) - 2, len(text), "PER")], [(0, 12, "PER"), (13, 18, "LOC")]
    one = Example("7", [("text", text)], "a", "b", correct=False, highlighted=(text, gold, predicted))
    page, parsed = report(tmp_path, replace(BARE, examples=[one], next_commands=["bertkit eval 'runs/x y'"]))
    assert re.findall(MARK, page) == [
        ("good", "PER, characters 0:12", "Ada Lovelace"),
        ("bad", f"PER, characters {len(text) - 2}:{len(text)}", "Bo"),
        ("good", "PER, characters 0:12", "Ada Lovelace"),
        ("bad", "LOC, characters 13:18", "wrote"),
    ]
    assert "&#8230;" in page and parsed.ids[-2:] == ["how-to-reproduce-this-run", "what-to-do-next"]
    assert parsed.text.count("Ada Lovelace") == 2
    assert "What to do next bertkit eval 'runs/x y'" in parsed.text


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_what_is_typed_hides_the_other_predictions(tmp_path: Path) -> None:
    examples = [Example(str(row), [("text", f"a text {row}")], "a", "ab"[row % 2]) for row in range(12)]
    page = write_report(tmp_path, replace(BARE, examples=examples, labels=["a", "b"]))
    text = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page.read_text())
    page.write_text(text.replace("</body>", TYPE + "</body>"))
    assert measure(page, 400, tmp_path) == ["1", "11", "10"]


def test_many_labels_share_a_line_of_the_confusion_matrix(tmp_path: Path) -> None:
    labels = [f"label_{number}" for number in range(25)]
    page, parsed = report(tmp_path, replace(BARE, examples=classified(labels, 400, 2), labels=labels))
    assert "5 others" in parsed.text and 'class="matrix wide"' in page
    assert all(f"{label}<" in page.replace("<wbr>", "") for label in labels)  # the table of labels holds them all


def test_numbers_have_scatter_plots_and_the_largest_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    examples = [
        Example(str(row), [("text", f"text{row}")], float(gold), float(gold + (3 if row == 5 else 0.1)))
        for row, gold in enumerate(rng.uniform(0, 5, 3000))
    ]
    page, parsed = report(
        tmp_path, replace(BARE, best_metric="spearmanr", scores={"spearmanr": 0.9}, examples=examples)
    )
    assert parsed.ids == ["headline", "scores", "behavior", "predictions", "how-to-reproduce-this-run"]
    assert "Predicted vs. gold (1,500 of 3,000 rows)" in parsed.text
    assert "3,000 wrong, the largest errors first" in parsed.text and "error 3" in parsed.text
    assert parsed.text.index("text5") < parsed.text.index("error 0.1")
    assert page.count('class="dot"') == 1500


def test_sets_of_labels_have_no_confusion_matrix(tmp_path: Path) -> None:
    probabilities = {"joy": 0.9, "anger": 0.2, "fear": 0.1}
    examples = [
        Example("0", [("text", "x")], ["joy", "fear"], ["joy"], probabilities),
        Example("1", [("text", "y")], [], ["joy"], probabilities),
        Example("2", [("text", "z")], ["joy"], ["joy"], probabilities),
    ]
    page, parsed = report(tmp_path, replace(BARE, examples=examples, labels=["joy", "anger", "fear"]))
    assert parsed.ids == ["headline", "scores", "labels", "predictions", "how-to-reproduce-this-run"]
    assert ["joy", "0.6667", "1.0000", "0.8000", "2"] in rows(page)
    assert ["anger", "n/a", "n/a", "n/a", "0"] in rows(page)
    assert ["1", "y", "none", "joy", "wrong, confidence 0.900"] in rows(page)


def test_answers_that_are_no_labels_fill_no_section(tmp_path: Path) -> None:
    tags = Example("0", [("tokens", "a b")], ["O", "O"], ["O", "PER"])
    span = Example("1", [("question", "who?")], "Ada", "Ada Lovelace")
    _, parsed = report(tmp_path, replace(BARE, examples=[tags, span], labels=["O", "PER"]))
    assert parsed.ids == ["headline", "scores", "predictions", "how-to-reproduce-this-run"]


def test_all_right_says_so(tmp_path: Path) -> None:
    examples = [Example("0", [("text", "x")], "a", "a")]
    _, parsed = report(tmp_path, replace(BARE, examples=examples, labels=["a", "b"]))
    assert "All rows; 0 wrong" in parsed.text and "bertkit explain" not in parsed.text


def test_text_of_the_data_is_escaped(tmp_path: Path) -> None:
    nasty = "<script>alert('x')</script> & \"q\" سلام 日本 \ud800"
    label = "<b>bad</b>"
    examples = [
        Example("<i>7</i>", [("<u>text</u>", nasty), ("pair", nasty)], label, "good", {"good": 0.9, label: 0.1}),
        Example("8", [("text", "x" * 5000)], "good", label, {"good": 0.2, label: 0.8}),
    ]
    facts = replace(
        BARE,
        name=nasty,
        about=nasty,
        command=nasty,
        labels=[label, "good"],
        examples=examples,
        warnings=[nasty],
        published=[{"model": nasty, "split": nasty, "source": nasty, "accuracy": 0.5}],
        provenance={nasty: nasty},
        other_splits={nasty: {nasty: 0.5}},
        history=[{"step": 1, "loss": 1.0}],
    )
    page, parsed = report(tmp_path, facts)
    assert not re.search(r"<(script>alert|b>bad|i>7|u>text)", page)
    assert "سلام 日本" in parsed.text and "x" * 299 + "…" in parsed.text and "x" * 301 not in page


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_score_that_is_no_number_is_not_available(tmp_path: Path, value: float) -> None:
    facts = replace(
        BARE,
        scores={"accuracy": value},
        intervals={"accuracy": (value, value)},
        baselines={"mean": {"accuracy": value}},
        published=[{"model": "m", "split": "test", "accuracy": value}],
        history=[{"step": 1, "loss": value}],
    )
    page, parsed = report(tmp_path, facts)
    assert '<div class="figure">n/a</div>' in page
    assert not re.search(r"\b(nan|inf|None)\b", parsed.text)
    assert "training" not in parsed.ids


def test_probabilities_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    examples = [Example("0", [("text", "x")], "a", "b", {"a": float("nan"), "b": float("nan")})]
    _, parsed = report(tmp_path, replace(BARE, examples=examples, labels=["a", "b"]))
    assert "behavior" not in parsed.ids and "All rows; 1 wrong" in parsed.text


def test_a_large_run_stays_small(tmp_path: Path) -> None:
    labels = [f"label_{number}" for number in range(1000)]
    history = [{"step": step, "loss": 1 / step, "learning_rate": 1e-5, "grad_norm": 1.0} for step in range(1, 20_000)]
    examples = [
        Example(str(row), [("text", "long " * 5000)], labels[row % 1000], labels[row % 999]) for row in range(5_000)
    ]
    _, parsed = report(tmp_path, replace(BARE, history=history, examples=examples, labels=labels))
    assert "These are the first 300 of 1000" in parsed.text
