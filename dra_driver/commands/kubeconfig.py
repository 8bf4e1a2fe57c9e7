"""Which kubeconfig commands for people use."""

from pathlib import Path


def usual(path: str | None) -> str | None:
    """The given one, else the user's own where there is one; in a pod there is none."""
    if path:
        return path
    own = Path.home() / ".kube" / "config"
    return str(own) if own.is_file() else None
