"""Which programs of NVIDIA's container toolkit may be used, and how. Values only."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

HOOK: Final = "nvidia-cdi-hook"
GENERATOR: Final = "nvidia-ctk"


class EditsSource(Enum):
    """Who looks for the driver's files: AUTO is NVIDIA_CTK where that program is, else BUILTIN."""

    AUTO = "auto"
    NVIDIA_CTK = "nvidia-ctk"
    BUILTIN = "builtin"


class HookMode(Enum):
    """Whether containers are finished by hooks: AUTO is NVIDIA_CDI_HOOK where that program is, else NONE."""

    AUTO = "auto"
    NVIDIA_CDI_HOOK = "nvidia-cdi-hook"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """hook_path: the hook program on the host, as a person gave it. ctk_path: nvidia-ctk, as this process sees it.

    shared: the plugin's directory, which has the same path here and on the host. own: directories of programs in this
    driver's image, or wherever it runs.
    """

    shared: Path
    edits: EditsSource = EditsSource.AUTO
    hooks: HookMode = HookMode.AUTO
    hook_path: Path | None = None
    ctk_path: Path | None = None
    own: tuple[Path, ...] = (Path("/usr/bin"),)

    @property
    def hook_copy(self) -> Path:
        """Where the host finds the hook program that lies in one of our own directories."""
        return self.shared / HOOK


HOOK_FREE: Final = Tools(shared=Path("/nonexistent"), edits=EditsSource.BUILTIN, hooks=HookMode.NONE)
"""No program of the toolkit is looked for."""
