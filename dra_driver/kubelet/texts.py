"""Texts that the kubelet hands on to people: one line, short enough for it."""

import re
from typing import Final

MAX_CHARS: Final = 999
"""Longest text; Kubernetes cuts an event's message and a device's health message at 1,024."""

NO_LINE: Final = re.compile(r"[\s\x00-\x1f\x7f]+")
"""What does not belong into one line."""


def one_line(text: str) -> str:
    """The text as one line of at most ``MAX_CHARS``, valid UTF-8."""
    # File names with undecodable bytes carry surrogates, which protobuf refuses.
    text = NO_LINE.sub(" ", text.encode("utf-8", "replace").decode()).strip()
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
