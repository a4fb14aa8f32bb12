"""The page of docs/export.md in a headless Chromium: it shows what `predict` says.

It needs `chromium`, and in BERTKIT_NODE_MODULES the folder into which npm has installed @huggingface/transformers.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs/export.md"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MODULES = Path(os.environ.get("BERTKIT_NODE_MODULES", "node_modules")).resolve()


WATCH = """
<script>
  const watched = setInterval(() => {
    const shown = document.getElementById('answer').textContent;
    if (/[0-9]/.test(shown)) { clearInterval(watched); fetch('/shown?' + encodeURIComponent(shown)); }
  }, 100);
</script>
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    shown = queue.Queue()

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/shown?"):
            self.shown.put(urllib.parse.unquote(self.path.partition("?")[2]))
        super().do_GET()


@pytest.mark.slow
@pytest.mark.enable_socket
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.skipif(
    not (MODULES / "@huggingface/transformers").is_dir(), reason="BERTKIT_NODE_MODULES names no modules"
)
def test_the_page_shows_what_predict_says(trained, run):
    ended = run("export", trained, "-o", "exported/sst2")
    assert ended.code == 0, ended.err
    page = re.search(r'```html title="index.html"\n(.*?)\n```', PAGE.read_text(), re.DOTALL)[1]
    Path("index.html").write_text(page + WATCH)
    Path("node_modules").symlink_to(MODULES)
    text = re.search(r'id="text" value="([^"]*)"', page)[1]
    expected = json.loads(run("predict", "exported/sst2", "--text", text).out)["probabilities"]
    handler = functools.partial(Handler, directory=Path.cwd())
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={Path.cwd() / 'browser'}"]
        command = [CHROMIUM, *options, "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as browser:
            try:
                shown = Handler.shown.get(timeout=240)
            finally:
                os.killpg(browser.pid, signal.SIGKILL)
        server.shutdown()
    found = {label: float(score) for label, score in re.findall(r"(\w+) ([0-9.]+)", shown)}
    assert found == pytest.approx(expected, abs=1e-4), shown
