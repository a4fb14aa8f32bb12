"""The page to try models with, also in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from urllib.parse import urlencode

import pytest

from tests.workflows.test_serve import serving

CHROMIUM = shutil.which("chromium")


def test_the_page_is_whole_in_itself(client):
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page.body.decode())


@pytest.mark.slow
@pytest.mark.enable_socket
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.parametrize("prefix", ["", "/bert"])
def test_a_browser_shows_what_models_answer(tmp_path, trained, prefix):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    with serving(tmp_path, trained, "--root-path", "/bert") as server:
        text = "a lovely <b>film</b> & song"
        address = f"{server.url}{prefix}/?{urlencode({'model': 'run', 'text': text})}"
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        page = subprocess.run(
            [CHROMIUM, *options, profile, address], capture_output=True, text=True, timeout=120
        ).stdout
    assert re.search(r'<div class="bar chosen"><span>good</span><progress max="1" value="0\.9', page), page
    assert "<b>film</b>" not in page  # text is shown as text
