"""``python -m hack.docs [--check]``: write the reference pages, or say which are not as the code is."""

import argparse
import sys
from pathlib import Path

from hack.docs.reference import pages

FOLDER = Path(__file__).parents[2] / "docs/reference"


def main() -> int:
    """1 where a page is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m hack.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    wrong = [name for name, text in pages().items() if not _is(FOLDER / name, text)]
    for name in wrong:
        if check:
            sys.stderr.write(f"docs/reference/{name} is not as the code is: run python -m hack.docs\n")
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(pages()[name], encoding="utf-8")
    return 1 if check and wrong else 0


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
