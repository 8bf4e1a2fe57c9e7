"""CDI documents for tests: edits, a JSON Schema of the format, and hypothesis strategies."""

from typing import Any

from hypothesis import strategies as st

from dra_driver.cdi.spec import VOID, DeviceEdits, DeviceNode, Edits, Env, Mount

UID = "0e8a1f2c-3b4d-4a5e-9f60-718293a4b5c6"


def node(minor: int = 0, **changes: Any) -> DeviceNode:
    """Node of GPU ``minor``."""
    facts: dict[str, Any] = {
        "path": f"/dev/nvidia{minor}",
        "host_path": f"/dev/nvidia{minor}",
        "major": 195,
        "minor": minor,
    }
    return DeviceNode(**facts | changes)


def gpu_edits(minor: int = 0, **changes: Any) -> DeviceEdits:
    """Edits of gpu-<minor>."""
    return DeviceEdits(name=f"gpu-{minor}", edits=Edits(device_nodes=(node(minor, **changes),)))


def mount(name: str = "libcuda.so.1", **changes: Any) -> Mount:
    """A library's mount."""
    facts: dict[str, Any] = {
        "host_path": f"/usr/lib64/{name}",
        "container_path": f"/usr/lib64/{name}",
        "options": ("ro", "nosuid", "nodev", "rbind", "rprivate"),
    }
    return Mount(**facts | changes)


def common_edits(**changes: Any) -> Edits:
    """Small but whole common edits."""
    facts: dict[str, Any] = {
        "device_nodes": (node(255, path="/dev/nvidiactl", host_path="/dev/nvidiactl"),),
        "mounts": (mount(),),
        "env": (Env("NVIDIA_CTK_LIBCUDA_DIR", "/usr/lib64"), VOID),
    }
    return Edits(**facts | changes)


def cdi_document() -> dict[str, Any]:
    """A document that keeps all rules and uses all that CDI 0.5.0 has."""
    return {
        "cdiVersion": "0.5.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "devices": [
            {
                "name": f"{UID}-gpu-0",
                "containerEdits": {"deviceNodes": [node().document()], "env": ["A=b"]},
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [mount().document()],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["nvidia-cdi-hook", "update-ldcache"],
                    "env": ["NVIDIA_CTK_DEBUG=false"],
                }
            ],
        },
    }


_COUNT = {"type": "integer", "minimum": 0}
_PATH = {"type": "string", "pattern": "^/"}
_ENV = {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}}


def _closed(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _listed(entry: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": entry}


_EDITS = _closed(
    (),
    env=_ENV,
    deviceNodes=_listed(
        _closed(
            ("path",),
            path=_PATH,
            hostPath=_PATH,
            type={"enum": ["", "b", "c", "u", "p"]},
            major=_COUNT,
            minor=_COUNT,
            fileMode=_COUNT,
            permissions={"type": "string", "pattern": "^([rwm]*|none)$"},
            uid=_COUNT,
            gid=_COUNT,
        )
    ),
    mounts=_listed(
        _closed(
            ("hostPath", "containerPath"),
            hostPath=_PATH,
            containerPath=_PATH,
            options=_listed({"type": "string"}),
            type={"type": "string"},
        )
    ),
    hooks=_listed(
        _closed(
            ("hookName", "path"),
            hookName={
                "enum": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
            },
            path=_PATH,
            args=_listed({"type": "string"}),
            env=_ENV,
            timeout=_COUNT,
        )
    ),
    additionalGids=_listed(_COUNT),
    intelRdt={"type": "object"},
    netDevices={"type": "array"},
)
SCHEMA: dict[str, Any] = _closed(
    ("cdiVersion", "kind", "devices"),
    cdiVersion={"enum": ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]},
    kind={
        "type": "string",
        "pattern": "^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$",
    },
    annotations={"type": "object"},
    devices={
        "type": "array",
        "minItems": 1,
        "items": _closed(
            ("name", "containerEdits"),
            name={"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
            annotations={"type": "object"},
            containerEdits={**_EDITS, "minProperties": 1},
        ),
    },
    containerEdits=_EDITS,
)
"""The CDI format of 1.1.0 as a JSON Schema, apart from ``dra_driver.cdi.rules`` so that each checks the other."""

claim_uids = st.uuids().map(str)
_segments = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12).filter(
    lambda text: "/" not in text
)
paths = st.lists(_segments, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
nodes = st.builds(
    DeviceNode,
    path=paths,
    host_path=paths,
    major=st.integers(1, 511),
    minor=st.integers(0, 1 << 19),
    file_mode=st.sampled_from([0o666, 0o660, 0o444, 0o600]),
    gid=st.sampled_from([0, 44, 999]),
)
mounts = st.builds(
    Mount, host_path=paths, container_path=paths, options=st.sampled_from([("ro", "rbind"), ("nosuid", "noexec")])
)
device_lists = st.lists(st.integers(0, 15), min_size=1, max_size=8).flatmap(
    lambda minors: st.tuples(
        *(
            st.builds(lambda n, m=minor: DeviceEdits(name=f"gpu-{m}", edits=Edits(device_nodes=(n,))), nodes)
            for minor in sorted(set(minors))
        )
    )
)
commons = st.builds(
    Edits,
    device_nodes=st.lists(nodes, min_size=1, max_size=4).map(tuple),
    mounts=st.lists(mounts, min_size=1, max_size=6).map(tuple),
    env=st.just((Env("NVIDIA_CTK_LIBCUDA_DIR", "/usr/lib64"), VOID)),
)
