"""``python -m hack.pictures [--check]``: draw what our commands print now, or say which pictures show other things."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.pictures import draw, shots

FOLDER: Final = Path(__file__).parents[2] / "docs/img"


def main(argv: Sequence[str] | None = None) -> int:
    """1 where a picture is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m hack.pictures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(shots.SHOTS)}; default: all")
    options = parser.parse_args(argv)
    wrong = []
    for name in options.name or shots.SHOTS:
        path = FOLDER / f"{name}.svg"
        text = draw.svg(shots.taken(shots.SHOTS[name]))
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        wrong.append(name)
        if options.check:
            sys.stderr.write(f"{path} is not what the command prints now: run python -m hack.pictures\n")
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
