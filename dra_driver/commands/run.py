"""``dra-driver run``: the kubelet plugin. Reads the settings and hands over to ``dra_driver.app``."""

import argparse
import os

from dra_driver import settings

_DESCRIPTION = """\
Serve the kubelet of this node: publish its GPUs as ResourceSlices, prepare claims for
gpu.nvidia.com and write the CDI specs that hand GPUs to containers.

Every setting can be given as a flag or as an environment variable; the flag wins. Flags and
variables of NVIDIA's DRA driver mean the same here."""

_EPILOG = """\
examples:
  dra-driver run --node-name "$NODE_NAME" --cdi-root /var/run/cdi \\
      --feature-gates TimeSlicingSettings=true --http-endpoint :8080
  dra-driver run --node-name dev --simulated-node h200x8 --kubeconfig ~/.kube/config

Exit codes: 0 stopped by a signal, 1 failed, 2 a setting is wrong."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add all settings."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.usage = "%(prog)s --node-name NAME [flags]"
    settings.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the driver until it is told to stop. Raises SettingError before anything is started."""
    read = settings.load(options)
    # Nobody extends our pydantic models; looking for plugins reads the metadata of every installed distribution.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from dra_driver import app  # the whole driver; a wrong setting or --help must not wait for it

    return app.run(read)
