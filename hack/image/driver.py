"""The driver's image: base, dependencies, driver, and NVIDIA's hook program where one is given."""

from pathlib import Path
from typing import Final

import dra_driver
from dra_driver.cdi.tools import HOOK
from hack.image import base, hook_program, layers, wheels
from hack.image.layers import Layer
from hack.image.oci import Image
from hack.image.platforms import Machine, Release

NAME: Final = f"localhost/dra-driver-gpu:v{dra_driver.__version__}"
"""As the chart calls it."""

ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin"}


def image(
    name: str, release: Release, machine: Machine, *, fresh: bool = False, hook: Path | None = None
) -> tuple[Image, int]:
    """The image, and how many of its layers came from the cache. hook: nvidia-cdi-hook. Raises ImageError."""
    hook_layer, hook_cached = hook_program.layer(hook, machine) if hook else (None, False)
    base_path, key, base_cached = base.layer(release, machine, fresh=fresh)
    dependencies, dependencies_cached = wheels.dependencies(base_path, key, release, machine)
    driver, driver_cached = wheels.driver([base_path, dependencies], release, machine)
    stack: list[Layer] = [
        layers.read(base_path, f"Debian {release.suite} with Python {release.python}"),
        layers.read(dependencies, "Python packages that the driver needs"),
        layers.read(driver, f"dra-driver {dra_driver.__version__}"),
    ]
    if hook_layer:
        # Below what changes with each version of the driver.
        stack.insert(2, layers.read(hook_layer, HOOK))
    project = wheels.project()
    labels = {
        "org.opencontainers.image.title": project["name"],
        "org.opencontainers.image.description": project["description"],
        "org.opencontainers.image.version": dra_driver.__version__,
        "org.opencontainers.image.licenses": project["license"],
    }
    made = Image(
        name=name,
        architecture=machine.name,
        layers=stack,
        entrypoint=("dra-driver",),
        command=("run",),
        environment=ENVIRONMENT,
        labels=labels,
    )
    return made, base_cached + dependencies_cached + driver_cached + hook_cached
