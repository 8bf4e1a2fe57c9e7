"""The check of NVIDIA's container toolkit: which of its programs the driver uses, and what it does without.

They are looked for as the driver does, by the same search. What the host has elsewhere goes into the remedy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.hook_program import NEEDED, subcommands
from dra_driver.cdi.host_programs import HostProgram, Toolbox
from dra_driver.cdi.tool_search import (
    HOST_DIRECTORIES,
    Places,
    generator_places,
    hook_places,
    why_hooks_would_fail,
)
from dra_driver.cdi.tools import GENERATOR, HOOK, EditsSource, HookMode, Tools
from dra_driver.doctor.findings import Finding, ok, problem, warning
from dra_driver.doctor.gpus import Probes, dotted, version_in
from dra_driver.doctor.host import Host
from dra_driver.hostfs import DriverRoots

_HOOK_FREE: Final = "so containers are set up without hooks: libraries are mounted where loaders look"
_ITSELF: Final = "so the driver finds its files itself"
_STARTS: Final = (b"\x7fELF", b"#!")

Version = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Used:
    """path: as specs or messages name it. copied_from: what lies there only once the driver has copied it."""

    path: Path
    version: Version = None
    copied_from: Path | None = None

    def __str__(self) -> str:
        version = dotted(self.version) if self.version else "of unknown version"
        copied = f", copied from {self.copied_from}" if self.copied_from else ""
        return f"{version} ({self.path}{copied})"


def check_toolkit(
    host: Host, roots: DriverRoots, tools: Tools, probes: Probes | None
) -> tuple[Finding, HostProgram | str]:
    """What containers are set up with; and the hook program that does it, or why none can be asked for its hooks.

    Of several programs the one that the driver tries first is named. Only ``--version`` is asked.
    """
    if tools.hooks is HookMode.NONE:
        return ok("toolkit", f"--cdi-hooks=none, {_HOOK_FREE}", **_facts(None, None)), "--cdi-hooks=none"
    toolbox = Toolbox(roots, tools.shared)
    if why := why_hooks_would_fail(toolbox):
        return _without_hooks(why, "nothing, unless images need hooks", tools), why
    places = hook_places(toolbox, tools)
    if tools.hook_path is not None:
        return _with_given(host, tools.hook_path, toolbox, tools, probes)
    reasons: dict[Path, str] = {}  # by file, to which several paths may lead
    for program in places.programs:
        why = _why_no_hooks_of(program, program in places.own, probes)
        if not why:
            return _with_hooks(_hook(host, places, program, tools, probes), toolbox, tools, probes), program
        reasons.setdefault(program.seen, why)
    if reasons:
        why = "; ".join(reasons.values())
        return _without_hooks(why, "install NVIDIA's container toolkit anew", tools), why
    why = f"there is no {HOOK} in {places.searched}"
    return _without_hooks(why, _remedy(host), tools), why


def _with_given(
    host: Host, path: Path, toolbox: Toolbox, tools: Tools, probes: Probes | None
) -> tuple[Finding, HostProgram | str]:
    if not host.sees(path):
        text = f"{path} cannot be seen from here: the driver takes it to have all hooks, as --nvidia-cdi-hook-path says"
        found = warning("toolkit", text, "run on the node, or with --root", **_facts(_Used(path), None))
        return found, f"{path} cannot be asked for its hooks"
    seen = host.seen(path)
    if seen is None or not seen.is_file():
        text = f"--nvidia-cdi-hook-path: there is no {path} on this host"
        return problem("toolkit", text, "correct the path, or leave the setting out", **_facts(None, None)), text
    program = HostProgram(seen, path)
    if why := _why_no_hooks_of(program, False, probes):
        text = f"--nvidia-cdi-hook-path: {why}"
        return problem("toolkit", text, "correct the path, or leave the setting out", **_facts(None, None)), text
    return _with_hooks(_Used(path, _version(program, probes)), toolbox, tools, probes), program


def _with_hooks(hook: _Used, toolbox: Toolbox, tools: Tools, probes: Probes | None) -> Finding:
    """Files are looked for with nvidia-ctk only where hooks can finish what it says."""
    if tools.edits is EditsSource.BUILTIN:
        return ok("toolkit", f"{HOOK} {hook}; --cdi-edits=builtin, {_ITSELF}", **_facts(hook, None))
    places = generator_places(toolbox, tools)
    reasons: dict[Path, str] = {}
    for program in places.programs:
        if why := _why_not_run(program):
            reasons.setdefault(program.seen, why)
            continue
        generator = _Used(program.host_path, _version(program, probes))
        return ok("toolkit", f"{HOOK} {hook}; {GENERATOR} {generator}", **_facts(hook, generator))
    why = "; ".join(reasons.values()) or f"there is no {tools.ctk_path or f'{GENERATOR} in {places.searched}'}"
    if tools.edits is EditsSource.NVIDIA_CTK:
        text = f"--cdi-edits={GENERATOR}: {why}"
        remedy = "install NVIDIA's container toolkit, set --nvidia-ctk-path, or set --cdi-edits=builtin"
        return problem("toolkit", text, remedy, **_facts(hook, None))
    if tools.ctk_path is not None:
        text = f"{HOOK} {hook}; --nvidia-ctk-path: {why}, {_ITSELF}"
        return warning("toolkit", text, "correct the path, or leave the setting out", **_facts(hook, None))
    if reasons:
        text = f"{HOOK} {hook}; {why}, {_ITSELF}"
        return warning("toolkit", text, "install NVIDIA's container toolkit anew", **_facts(hook, None))
    return ok("toolkit", f"{HOOK} {hook}; {GENERATOR} is not there, {_ITSELF}", **_facts(hook, None))


def _without_hooks(why: str, remedy: str, tools: Tools) -> Finding:
    facts = _facts(None, None)
    if tools.hooks is HookMode.NVIDIA_CDI_HOOK:
        return problem("toolkit", f"--cdi-hooks={HOOK}: {why}", f"{remedy}; or set --cdi-hooks=none", **facts)
    if tools.edits is EditsSource.NVIDIA_CTK:
        text = f"--cdi-edits={GENERATOR}: its edits need {HOOK} in containers, and {why}"
        return problem("toolkit", text, f"{remedy}; or set --cdi-edits=builtin", **facts)
    return warning("toolkit", f"{why}, {_HOOK_FREE}", remedy, **facts)


def _remedy(host: Host) -> str:
    """A driver whose root is not the host's ``/`` does not look into the host's directories; this may see them."""
    found = next((path for path in (place / HOOK for place in HOST_DIRECTORIES) if host.is_file(path)), None)
    if found is not None:
        return f"set --nvidia-cdi-hook-path={found}, in the chart nvidiaCDIHookPath"
    if not host.sees(HOST_DIRECTORIES[0]):
        return "if the host has one, which cannot be seen from here, name it with --nvidia-cdi-hook-path"
    return "nothing, unless images need hooks: then install NVIDIA's container toolkit"


def _hook(host: Host, places: Places, program: HostProgram, tools: Tools, probes: Probes | None) -> _Used:
    """Ours is called by the host where the driver copies it to."""
    version = _version(program, probes)
    if program not in places.own:
        return _Used(program.host_path, version)
    return _Used(tools.hook_copy, version, None if program.seen == host.seen(tools.hook_copy) else program.seen)


def _why_no_hooks_of(program: HostProgram, own: bool, probes: Probes | None) -> str:
    """Why the driver would not call this nvidia-cdi-hook, as far as it may be asked; '' if nothing is known."""
    # Our own is copied, and the copy made executable.
    if why := _why_not_run(program, own):
        return why
    if probes is None or _why_not_run(program):
        return ""
    text = probes.help_text(program)
    listed = subcommands(text)
    missing = [name for name in NEEDED if name not in listed]
    if not missing:
        return ""
    return f"{program.host_path} " + (f"has no hook {' and '.join(missing)}" if text else "cannot be run with --help")


def _why_not_run(program: HostProgram, copied: bool = False) -> str:
    """What of the file itself keeps a program from running; '' if nothing does, or it may not be read."""
    try:
        executable = copied or program.seen.stat().st_mode & 0o111
        with program.seen.open("rb") as file:
            start = file.read(max(map(len, _STARTS)))
    except OSError:
        return ""
    if not executable:
        return f"{program.host_path} is not executable"
    return "" if start.startswith(_STARTS) else f"{program.host_path} is no program: neither an ELF file nor a script"


def _version(program: HostProgram, probes: Probes | None) -> Version:
    return version_in(probes.version_text(program.seen)) if probes is not None else None


def _facts(hook: _Used | None, generator: _Used | None) -> dict[str, Any]:
    return {
        "hook": hook and str(hook.path),
        "hookVersion": hook and hook.version and dotted(hook.version),
        "generator": generator and str(generator.path),
        "generatorVersion": generator and generator.version and dotted(generator.version),
    }
