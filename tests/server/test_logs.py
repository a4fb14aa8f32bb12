"""The log as JSON lines."""

from __future__ import annotations

import json
import logging
import sys

from bertkit.progress import stage, use_progress
from bertkit.server.logs import JsonLines, LoggedProgress


def record(**extra):
    made = logging.LogRecord("bertkit", logging.INFO, "file", 1, "loading %s", ("a",), None)
    made.__dict__.update(extra)
    return json.loads(JsonLines().format(made))


def test_an_event_is_one_object():
    assert record().items() >= {"level": "info", "message": "loading a"}.items()
    assert record(fields={"path": "/embed", "status": 200})["status"] == 200
    try:
        raise ValueError("why")
    except ValueError:
        assert "ValueError: why" in record(exc_info=sys.exc_info())["traceback"]


def test_stages_are_events(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertkit"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("bertkit"), "handlers", [])
    with caplog.at_level(logging.INFO, "bertkit"), use_progress(LoggedProgress()), stage("loading a"):
        pass
    assert caplog.messages == ["loading a ..."]
