"""The page to try models with, whole in itself: it loads nothing from elsewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from starlette.responses import HTMLResponse

from bertkit.reports.templates import hash_script

_FILE = Path(__file__).with_name("page.html")


@cache
def read_page() -> tuple[str, dict[str, str]]:
    """Read the page, and build the headers by which a browser runs nothing but its own script and style."""
    text = _FILE.read_text(encoding="utf-8")
    script, style = (
        hash_script(re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[0]) for tag in ("script", "style")
    )
    # Scripts are named by their hash, so that a text on the page can never become one.
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'"
    )
    return text, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


def page_response() -> HTMLResponse:
    """Build the answer that holds the page."""
    text, headers = read_page()
    return HTMLResponse(text, headers=headers)
