"""Log lines on standard error, for people or as one JSON object a line."""

import json
import logging
import sys
import time

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _Utc(logging.Formatter):
    """Times in UTC with milliseconds, as the kubelet's log has them."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class _JsonLines(_Utc):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(verbosity: int, as_json: bool) -> None:
    """Send the log to standard error. verbosity: as klog's ``-v``; from 5 on, debug lines are written too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Utc(_TEXT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity >= 5 else logging.INFO)
    # Debug lines of these would show request bodies and tokens.
    for library in ("urllib3", "kubernetes", "asyncio"):
        logging.getLogger(library).setLevel(logging.INFO)
