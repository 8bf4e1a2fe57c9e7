"""How commands read manifests that people give them."""

import sys
from pathlib import Path
from typing import Final

STDIN: Final = "-"
MAX_BYTES = 32 * 1024 * 1024
"""The slices and claims of a large cluster."""


def shown(name: str) -> str:
    """A file as messages name it."""
    return "<stdin>" if name == STDIN else name


def read_text(name: str) -> str:
    """The text of a file. Raises OSError, and ValueError for what is no UTF-8 text of a bearable size."""
    if name == STDIN:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start})") from None


def reason(error: OSError | ValueError) -> str:
    """Why it could not be read, without its name."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
