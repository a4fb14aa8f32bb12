"""The log as JSON lines, one object per event, for programs that collect logs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from bertkit.progress import Silent
from bertkit.storage.files import to_json


class JsonLines(logging.Formatter):
    """Writes a record as a JSON object on one line; no text of a request is in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        content = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(), "level": record.levelname.lower()}
        content |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return to_json(content)


class LoggedProgress(Silent):
    """Logs the beginning of each stage."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Log what begins."""
        logging.getLogger("bertkit").info(f"{what} ...")


def log_json_lines() -> None:
    """Write every event as a JSON line, and one for every request, whose level is that of its status."""
    logger = logging.getLogger("bertkit")
    logger.setLevel(logging.DEBUG)
    for handler in logger.handlers:
        handler.setFormatter(JsonLines())


def share_log() -> None:
    """Let what uvicorn has to say go where the log of bertkit goes; requests that are no HTTP are no news."""
    ours, theirs = logging.getLogger("bertkit"), logging.getLogger("uvicorn")
    theirs.handlers, theirs.propagate = ours.handlers, False
    theirs.setLevel(logging.ERROR)
