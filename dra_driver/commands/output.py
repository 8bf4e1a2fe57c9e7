"""How commands print: JSON, YAML and tables on standard output. Libraries are loaded when they are used."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

COLUMNS_WITHOUT_TERMINAL = 200


def write(text: str) -> None:
    """Print a text, ended by one newline."""
    sys.stdout.write(f"{text.rstrip()}\n")


def plural(count: int, noun: str) -> str:
    """``1 problem``, ``2 problems``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def write_json(value: Any) -> None:
    """Print a value as indented JSON."""
    write(json.dumps(value, indent=2))


def write_yaml(value: Any) -> None:
    """Print a value as block YAML, keys in the order they have."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes a value out each time, where YAML would put an alias: kubectl's users do not expect ``*id001``."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    write(yaml.dump(value, Dumper=Dumper, sort_keys=False, width=120))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings; None shows as ``-``. A pipe gets wide lines, so that nothing is folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else COLUMNS_WITHOUT_TERMINAL)
    console.print(table)
