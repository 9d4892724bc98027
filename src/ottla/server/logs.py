"""Destination and format of log lines.

Zone: real. A line has Kafka's form, which people and their tools can read already, or is one JSON object.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, TextIO

LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
"""Kafka's names."""

_TO_PYTHON: Final = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}
_TO_KAFKA: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}


class KafkaFormatter(logging.Formatter):
    """`[2026-11-20 10:00:00,123] INFO text (logger)`, in local time; `INFO [who] text` where processes share a
    stream."""

    def __init__(self, who: str = "") -> None:
        super().__init__()
        self._who = f"[{who}] " if who else ""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows on lines of its own."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        level = _TO_KAFKA.get(record.levelname, record.levelname)
        line = f"[{stamp},{int(record.msecs):03d}] {level} {self._who}{record.getMessage()} ({record.name})"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message; `who` and `exception` if there is one."""

    def __init__(self, who: str = "") -> None:
        super().__init__()
        self._who = {"who": who} if who else {}

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": _TO_KAFKA.get(record.levelname, record.levelname),
            "logger": record.name,
            **self._who,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logging(level: str = "INFO", style: str = "text", stream: TextIO | None = None, who: str = "") -> None:
    """Send all log lines of Ottla to `stream` (default: standard error). style: "text" or "json".

    `who`: the name of this process, where several share a stream.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(who) if style == "json" else KafkaFormatter(who))
    logger = logging.getLogger("ottla")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(_TO_PYTHON.get(level.upper(), level.upper()))
