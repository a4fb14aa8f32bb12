"""Draw docs/images/attention.png: the page of `bertkit attention show` with one token chosen, as Chromium shows it.

`python tools/make_attention_picture.py MODEL LAYER HEAD`, where MODEL is a small encoder such as MiniLM.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bertkit.workflows.attention import show

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "attention.png"
TEXT = "The old man gave his daughter a book that she had always wanted."
TOKEN = 13  # wanted
SIZE = "1000,1390"
CHOOSE = f'setTimeout(() => document.querySelectorAll("#from .token")[{TOKEN}].click(), 500);'


def main() -> None:
    """Draw the picture.

    Raises:
        CalledProcessError: Chromium failed.
    """
    chromium = shutil.which("chromium") or "chromium-browser"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        show(TEXT, sys.argv[1], at=(int(sys.argv[2]), int(sys.argv[3])), output=page)
        # the page's policy runs only its own script, which the token is chosen in
        text = page.read_text(encoding="utf-8").replace("start();\n</script>", f"start();\n{CHOOSE}</script>")
        text = text.replace(f"<h1>{sys.argv[1]}</h1>", f"<h1>{Path(sys.argv[1]).name}</h1>")
        page.write_text(re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", text), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
        flags += [f"--user-data-dir={folder}/profile", f"--window-size={SIZE}", f"--screenshot={PICTURE}"]
        subprocess.run([chromium, *flags, page.as_uri()], check=True, capture_output=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
