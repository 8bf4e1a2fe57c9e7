"""The settings of the driver: the only place that reads flags, the environment and what the disk says of
roots.

``table`` declares every setting once; options, help, environment names and precedence follow from it. Nothing
here acts on a setting.
"""

from dra_driver.settings.reading import add_options, load
from dra_driver.settings.roots import roots
from dra_driver.settings.values import (
    DeviceNodesMode,
    DevicePluginConflict,
    Endpoint,
    GpuControlMode,
    LoggingFormat,
    MpsLauncher,
    Settings,
)

__all__ = [
    "DeviceNodesMode",
    "DevicePluginConflict",
    "Endpoint",
    "GpuControlMode",
    "LoggingFormat",
    "MpsLauncher",
    "Settings",
    "add_options",
    "load",
    "roots",
]
