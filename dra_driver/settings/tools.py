"""Which programs of NVIDIA's container toolkit this process may use, from settings and from where it runs."""

import os
from pathlib import Path

from dra_driver.cdi.tools import EditsSource, HookMode, Tools
from dra_driver.settings.values import Settings


def tools(settings: Settings) -> Tools:
    """What this machine has of NVIDIA's toolkit says nothing about a simulated node: there only what is asked for."""
    edits, hooks = settings.cdi_edits, settings.cdi_hooks
    if settings.simulated_node:
        edits = EditsSource.BUILTIN if edits is EditsSource.AUTO else edits
        # NVIDIA's edits need hooks: who asks for the one asks for the other.
        if hooks is HookMode.AUTO and edits is not EditsSource.NVIDIA_CTK:
            hooks = HookMode.NONE
    return Tools(
        shared=settings.plugin_directory,
        edits=edits,
        hooks=hooks,
        hook_path=settings.cdi_hook_path,
        ctk_path=settings.ctk_path,
        own=tuple(Path(directory) for directory in os.get_exec_path() if directory.startswith("/")),
    )
