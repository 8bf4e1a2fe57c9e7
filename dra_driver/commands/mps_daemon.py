"""``dra-driver mps-daemon``: runs one MPS control daemon. Started by the driver or in its pod; loads little."""

import argparse
import logging
import os
from pathlib import Path
from typing import Final

from dra_driver.model.errors import SettingError

_UMASK: Final = 0o022

_DESCRIPTION = """\
Run NVIDIA's MPS control daemon of one claim and make its settings. This is run by the driver,
not by people: the folder is one that the driver has made, and says what to run."""

_EPILOG = """\
It ends with the daemon, after SIGTERM, or when the driver stops the daemon; clients are waited for 4 s.
Exit codes: 0 told to end, 1 failed (the folder's file 'failure' says why), 2 wrong usage."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the folder and where the driver's files are."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder of the daemon")
    parser.add_argument(
        "--driver-root",
        metavar="DIR",
        type=Path,
        default=Path("/"),
        help="where NVIDIA's driver is, as this process sees it; default: /",
    )
    parser.add_argument(
        "--is-ready", action="store_true", help="run nothing: exit with 0 if the daemon serves, else with 1"
    )
    parser.add_argument(
        "--patience",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="how long the daemon may take for its first answer; default: 30",
    )


def run(options: argparse.Namespace) -> int:
    """Run it until it is told to end. Raises SettingError, and MpsError when it fails."""
    from dra_driver.model.errors import MpsError
    from dra_driver.mps.description import checked_id
    from dra_driver.mps.folders import Folder
    from dra_driver.mps.supervisor import Supervisor
    from dra_driver.mps.tool import MpsTool
    from dra_driver.signals import stop_on_signals

    folder: Path = options.folder
    try:
        checked_id(folder.name)
    except MpsError as error:
        raise SettingError(f"{folder} is not the folder of an MPS daemon: {error}") from error
    if not folder.is_absolute():
        raise SettingError(f"the folder {folder} is not an absolute path")
    if options.is_ready:
        return 0 if Folder(folder).serves() else 1
    # Whatever the driver's is: servers run as users of clients, and what is for root alone is made by this.
    os.umask(_UMASK)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = stop_on_signals()
    Supervisor(Folder(folder), MpsTool(options.driver_root.absolute()), stop, options.patience).run()
    return 0
