"""Compares ``dra-driver inventory -o json`` with ``nvidia-smi -q`` field by field; both only read the cards.

Run it on a node with GPUs as ``python -m tests.hardware.compare_smi``. Prints a table and exits with 1 if anything
differs, with 2 if one of the two gave nothing to compare.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hack.hardware.smi import SmiReport
from hack.hardware.smi import parse as parse_smi

TIMEOUT_S = 120
ABSENT = "-"
MIB = 1024**2

_BRANDS = {
    "nvidiavirtualapplications": "nvidiavapps",
    "nvidiavirtualpc": "nvidiavpc",
    "nvidiavirtualcomputeserver": "nvidiavcs",
    "nvidiartxvirtualworkstation": "nvidiavws",
}
_COMPUTE_MODES = {"0": "default", "1": "exclusivethread", "2": "prohibited", "3": "exclusiveprocess"}
_NOTHING = ("", "n/a", "[n/a]")


class Row(NamedTuple):
    """One fact of one card, or of the driver, as each side gives it, made alike."""

    where: str
    fact: str
    smi: str
    ours: str

    @property
    def equal(self) -> bool:
        """Whether both say the same."""
        return self.smi == self.ours


def compare(smi: SmiReport, ours: Mapping[str, Any]) -> list[Row]:
    """One row a fact, cards paired by UUID; a card that one side lacks is a row of its own."""
    driver = ours.get("driver", {})
    rows = [
        Row("driver", "version", _plain(smi.head.get("Driver Version")), _plain(driver.get("driverVersion"))),
        Row("driver", "CUDA version", _plain(_smi_cuda(smi.head)), _cuda(driver.get("cudaDriverVersion"))),
    ]
    theirs = {card.get("GPU UUID", card[""]): card for card in smi.cards}
    mine = {gpu.get("uuid", "?"): gpu for gpu in ours.get("gpus", [])}
    for uuid in theirs.keys() | mine.keys():
        if uuid in theirs and uuid in mine:
            rows.extend(_card_rows(theirs[uuid], mine[uuid]))
        else:
            rows.append(Row(uuid, "card", *("yes" if uuid in side else ABSENT for side in (theirs, mine))))
    return sorted(rows, key=lambda row: (row.where != "driver", row.where))


def _card_rows(smi: Mapping[str, str], gpu: Mapping[str, Any]) -> Iterator[Row]:
    uuid = str(gpu["uuid"])

    def row(fact: str, theirs: str, mine: str) -> Row:
        return Row(uuid, fact, theirs, mine)

    yield row("uuid", smi.get("GPU UUID", ABSENT), uuid)
    yield row("minor", _plain(smi.get("Minor Number")), _plain(gpu.get("minor")))
    yield row("bus id", _bus_id(smi.get("PCI/Bus Id", smi[""])), _bus_id(gpu.get("pciBusId")))
    yield row("product", _plain(smi.get("Product Name")), _plain(gpu.get("productName")))
    yield row("brand", _brand(smi.get("Product Brand")), _brand(gpu.get("brand")))
    yield row("architecture", _word(smi.get("Product Architecture")), _word(gpu.get("architecture")))
    yield row("memory MiB", _mib(smi.get("FB Memory Usage/Total")), _mib_of(gpu.get("memoryBytes")))
    yield row("compute mode", _mode(smi.get("Compute Mode")), _mode(gpu.get("computeMode")))
    yield row("persistence", _switch(smi.get("Persistence Mode")), _switch(gpu.get("persistence")))
    yield row("addressing", _word(smi.get("Addressing Mode")), _word(gpu.get("addressingMode")))
    yield row("MIG", _mig(smi.get("MIG Mode/Current")), _mig(gpu.get("migEnabled")))


def _plain(value: object) -> str:
    return ABSENT if value is None or str(value).strip().lower() in _NOTHING else str(value).strip()


def _word(value: object) -> str:
    return _plain(value).lower().replace(" ", "").replace("_", "").replace("-", "") or ABSENT


def _smi_cuda(head: Mapping[str, str]) -> str | None:
    """Newer drivers write ``CUDA UMD Version`` in its place."""
    return head.get("CUDA Version", head.get("CUDA UMD Version"))


def _cuda(value: object) -> str:
    """NVML's 13000 and a text ``13.0`` alike."""
    if isinstance(value, int):
        return f"{value // 1000}.{value % 1000 // 10}"
    return _plain(value)


def _bus_id(value: object) -> str:
    parts = _plain(value).lower().split(":")
    return f"{int(parts[0], 16):04x}:{':'.join(parts[1:])}" if len(parts) == 3 else ABSENT


def _brand(value: object) -> str:
    word = _word(value)
    return _BRANDS.get(word, word)


def _mode(value: object) -> str:
    word = _word(value.get("name") if isinstance(value, Mapping) else value)
    return _COMPUTE_MODES.get(word, word)


def _switch(value: object) -> str:
    word = str(value).lower()
    return {"enabled": "on", "true": "on", "disabled": "off", "false": "off"}.get(word, ABSENT)


def _mig(value: object) -> str:
    """A card without MIG (``N/A``) is one whose MIG mode is off."""
    return "on" if _switch(value) == "on" else "off"


def _mib(value: str | None) -> str:
    return _plain(value).removesuffix(" MiB")


def _mib_of(value: object) -> str:
    return str(value // MIB) if isinstance(value, int) else ABSENT


def table(rows: Sequence[Row]) -> str:
    """Lines of equal columns, the differing ones marked."""
    lines = [("", "where", "fact", "nvidia-smi", "dra-driver")]
    lines += [("" if row.equal else "DIFFERS", row.where, row.fact, row.smi, row.ours) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _output(command: str) -> str:
    return subprocess.check_output(shlex.split(command), text=True, timeout=TIMEOUT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all facts agree, 1 when one differs, 2 when there is nothing to compare."""
    parser = argparse.ArgumentParser(description="Compare the driver's inventory with nvidia-smi's.")
    parser.add_argument("--smi", default="nvidia-smi -q", help="command (default: %(default)s)")
    parser.add_argument("--smi-file", type=Path, help="output of the command, kept in a file")
    parser.add_argument(
        "--inventory",
        default=f"{shlex.quote(sys.executable)} -m dra_driver inventory -o json",
        help="command (default: %(default)s)",
    )
    parser.add_argument("--inventory-file", type=Path, help="output of the command, kept in a file")
    chosen = parser.parse_args(arguments)
    try:
        smi = parse_smi(chosen.smi_file.read_text() if chosen.smi_file else _output(chosen.smi))
        ours = json.loads(chosen.inventory_file.read_text() if chosen.inventory_file else _output(chosen.inventory))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"nothing to compare: {error}", file=sys.stderr)  # noqa: T201
        return 2
    if not smi.cards and not ours.get("gpus"):
        print("nothing to compare: no GPU on either side", file=sys.stderr)  # noqa: T201
        return 2
    rows = compare(smi, ours)
    print(table(rows))  # noqa: T201
    return 0 if all(row.equal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
