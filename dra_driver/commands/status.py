"""``dra-driver status``: the claims prepared on this node, read from the state store. Changes nothing."""

import argparse
from datetime import UTC, datetime
from typing import Any

from dra_driver import settings
from dra_driver.commands.output import write, write_json, write_table
from dra_driver.model.plan import PreparedDevice
from dra_driver.model.records import ClaimRecord

_DESCRIPTION = """\
Show the claims that are prepared on this node, from the driver's own records. It reads only and
works beside a running driver. Run it on the node, or in the driver's Pod:
  kubectl exec -n NAMESPACE POD -- dra-driver status"""

_EPILOG = """\
examples:
  dra-driver status
  dra-driver status --kubelet-plugins-directory-path /var/lib/k0s/kubelet/plugins -o json

Exit codes: 0 shown (also when no claim is prepared), 1 there are no records here, 2 wrong usage."""

_SETTINGS = frozenset({"kubelet_plugins_directory", "state_directory"})
_COLUMNS = ("CLAIM", "UID", "STATE", "SINCE", "REQUEST", "DEVICE", "GPU", "SHARING")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add where the records are and how to print them."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    settings.add_options(parser, only=_SETTINGS)


def run(options: argparse.Namespace) -> int:
    """Print the records. Raises StateError, naming the path, when there are none to read."""
    read = settings.load(options, only=_SETTINGS)
    from dra_driver.claims.store import STATE_FILE, Store

    store = Store.open_read_only(read.state_directory / STATE_FILE)
    try:
        records = list(store.records())
    finally:
        store.close()
    if options.output == "json":
        write_json({"claims": [_as_json(record) for record in records]})
    elif records:
        write_table(_COLUMNS, (_row(record, device) for record in records for device in record.devices))
    else:
        write("No claim is prepared on this node.")
    return 0


def _row(record: ClaimRecord, device: PreparedDevice) -> tuple[object, ...]:
    return (
        f"{record.claim.namespace}/{record.claim.name}",
        record.claim.uid,
        record.state.value,
        _since(record),
        ",".join(device.requests),
        device.device,
        device.gpu_uuid,
        device.sharing or None,
    )


def _as_json(record: ClaimRecord) -> dict[str, Any]:
    daemons = {uuid: daemon.id for daemon in record.plan.daemons for uuid in daemon.devices}
    return {
        "namespace": record.claim.namespace,
        "name": record.claim.name,
        "uid": record.claim.uid,
        "state": record.state.value,
        "preparedAt": _since(record),
        "devices": [
            {
                "requests": list(device.requests),
                "pool": device.pool,
                "device": device.device,
                "uuid": device.uuid,
                "gpuUuid": device.gpu_uuid,
                "cdiDevices": list(device.cdi_ids),
                "adminAccess": device.admin_access,
                "shareId": device.share_id,
                "sharing": device.sharing,
                "timeSlice": device.time_slice,
                "mpsDaemon": daemons.get(device.uuid),
            }
            for device in record.devices
        ],
    }


def _since(record: ClaimRecord) -> str:
    return datetime.fromtimestamp(record.prepared_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
