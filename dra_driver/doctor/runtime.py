"""Checks of what turns a claim's CDI spec into a container: its directory, container runtime, cgroups."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_driver.doctor import containerd
from dra_driver.doctor.findings import Finding, ok, problem, warning
from dra_driver.doctor.gpus import Probes, version_in
from dra_driver.doctor.host import Host
from dra_driver_api import names

_CRIO: Final = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
_TOOLKIT_CONFIG: Final = "/etc/nvidia-container-runtime/config.toml"
_CLOSES_ENVIRONMENT: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"


def check_runtime(host: Host, cdi_root: Path, probes: Probes | None) -> Iterator[Finding]:
    """Whether the container runtime reads the directory that this driver writes CDI specs to."""
    program = next((path for path in map(Path, containerd.PROGRAMS) if host.is_file(path)), None)
    release = _version(host, program, probes)
    if not host.sees(Path(containerd.FILES[-1])):
        yield warning(
            "containerd",
            "its configuration is not seen from this container",
            "run on the node, or with --root where the host's / is mounted",
        )
        return
    try:
        config = containerd.read(host, release)
    except containerd.BadConfig as error:
        yield warning("containerd", str(error), error.remedy)
        return
    if config is None:
        yield _without_config(host, program, release, cdi_root)
        return
    yield _judged(config, release, cdi_root)
    yield from _default_runtime(host, config)


def _without_config(host: Host, program: Path | None, release: tuple[int, ...] | None, cdi_root: Path) -> Finding:
    if any(host.seen(Path(path)) is not None for path in _CRIO):
        return ok(
            "containerd", f"none; CRI-O reads CDI specs from {', '.join(containerd.DEFAULT_DIRECTORIES)} by default"
        )
    if program is None:
        return warning("containerd", "not found", "see that the container runtime has CDI switched on")
    on = None if release is None else release[0] >= containerd.CDI_BY_DEFAULT
    return _judged(containerd.Containerd((), on, containerd.DEFAULT_DIRECTORIES, ""), release, cdi_root)


def _judged(config: containerd.Containerd, release: tuple[int, ...] | None, cdi_root: Path) -> Finding:
    who = f"containerd {'.'.join(map(str, release))}" if release else "containerd"
    section = (
        '[plugins."io.containerd.cri.v1.runtime"] (version 3) or [plugins."io.containerd.grpc.v1.cri"] (version 2)'
    )
    main = config.files[0] if config.files else Path(containerd.FILES[-1])
    facts = {
        "files": [str(path) for path in config.files],
        "version": None if release is None else ".".join(map(str, release)),
        "enableCdi": config.enable_cdi,
        "cdiSpecDirs": list(config.directories),
        "defaultRuntime": config.default_runtime or None,
        "cdiRoot": str(cdi_root),
    }
    read = ", ".join(config.directories)
    if config.enable_cdi is False:
        return problem(
            "containerd",
            f"{who} does not read CDI specs ({main})",
            f"set enable_cdi = true in {section} and restart containerd",
            **facts,
        )
    if _plain(cdi_root) not in {_plain(Path(directory)) for directory in config.directories}:
        return problem(
            "containerd",
            f"{who} reads CDI specs from {read}, this driver writes them to {cdi_root}",
            f"set --cdi-root={config.directories[-1]}, in the chart cdiRoot; or add it to cdi_spec_dirs in {section}",
            **facts,
        )
    if config.enable_cdi is None:
        return warning(
            "containerd",
            f"whether CDI is on is not said in {main}: it is by default since containerd 2, and off before",
            f"see containerd --version; before 2.0 set enable_cdi = true in {section}",
            **facts,
        )
    return ok("containerd", f"{who} reads CDI specs from {read}; this driver writes them to {cdi_root}", **facts)


def _default_runtime(host: Host, config: containerd.Containerd) -> Iterator[Finding]:
    """NVIDIA's runtime as the default gives GPUs to images whose environment asks for them, claim or no claim."""
    if not config.default_runtime.startswith("nvidia"):
        return
    switches = [line.partition("=") for line in (host.read(Path(_TOOLKIT_CONFIG)) or "").splitlines()]
    if any(key.strip() == _CLOSES_ENVIRONMENT and value.strip() == "false" for key, _, value in switches):
        return
    yield warning(
        "default-runtime",
        f"containerd's default runtime is {config.default_runtime}: a pod without a claim whose image says "
        "NVIDIA_VISIBLE_DEVICES=all sees every GPU",
        f"set {_CLOSES_ENVIRONMENT} = false in {_TOOLKIT_CONFIG}, or another default runtime",
    )


def _plain(path: Path) -> Path:
    """``/var/run`` is ``/run`` on every host of today."""
    return Path("/run", path.relative_to("/var/run")) if path.is_relative_to("/var/run") else path


def _version(host: Host, program: Path | None, probes: Probes | None) -> tuple[int, ...] | None:
    seen = host.seen(program) if program is not None else None
    return version_in(probes.version_text(seen)) if probes is not None and seen is not None else None


def cgroup_version(host: Host) -> int | None:
    """1 or 2, None when it cannot be told."""
    if host.is_file(Path("/sys/fs/cgroup/cgroup.controllers")):
        return 2
    return 1 if host.is_directory(Path("/sys/fs/cgroup/memory")) else None


def check_cgroups(host: Host) -> Iterator[Finding]:
    """The version of cgroups: memory limits for pods that share a GPU need the second."""
    match cgroup_version(host):
        case 2:
            yield ok("cgroup", "version 2", version=2)
        case 1:
            yield warning(
                "cgroup",
                "version 1: memory limits for pods that share a GPU cannot be set",
                "boot the node with the unified hierarchy (systemd.unified_cgroup_hierarchy=1)",
                version=1,
            )
        case _:
            yield warning(
                "cgroup", "its version cannot be told from here", "see /sys/fs/cgroup on the node", version=None
            )


def check_cdi_root(host: Host, cdi_root: Path) -> Iterator[Finding]:
    """The directory of CDI specs itself."""
    release = host.read(Path("/etc/os-release")) or ""
    specs = [name for name in host.names(cdi_root) if name.startswith(names.CDI_VENDOR)]
    if "\nID=bottlerocket" in f"\n{release}" and cdi_root.is_relative_to("/etc"):
        yield warning(
            "cdi-root",
            f"{cdi_root} lives in Bottlerocket's /etc, which is made anew at each boot and not meant to be written",
            "set --cdi-root=/var/run/cdi",
        )
    elif not host.sees(cdi_root):
        yield warning("cdi-root", f"{cdi_root} is not seen from here", "run on the node")
    elif host.seen(cdi_root) is None:
        yield ok("cdi-root", f"{cdi_root} is not there; the driver makes it when it starts", specs=0)
    elif not host.is_directory(cdi_root):
        yield problem("cdi-root", f"{cdi_root} is no directory", "move it away, or set another --cdi-root")
    else:
        yield ok("cdi-root", f"{cdi_root}, with {len(specs)} specs of this driver", specs=len(specs))
