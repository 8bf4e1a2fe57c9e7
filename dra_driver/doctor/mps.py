"""Check of NVIDIA's MPS programs, where claims may ask for MPS: by the driver's own search."""

from collections.abc import Iterator

from dra_driver.doctor.findings import Finding, ok, problem
from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import MpsError
from dra_driver.mps.tool import MpsTool

_REMEDY = (
    "install the package of the NVIDIA driver that has nvidia-cuda-mps-control and nvidia-cuda-mps-server, or leave "
    "the feature gate MPSSupport off on this node"
)


def check_mps(roots: DriverRoots) -> Iterator[Finding]:
    """Whether an MPS control daemon could be started with what is under the driver root."""
    try:
        programs = MpsTool(roots.container_driver_root).programs()
    except MpsError as error:
        yield problem("mps", f"claims with strategy MPS will fail: {error}", _REMEDY)
        return
    control = roots.on_host(programs.control)
    yield ok(
        "mps", f"{control} and its server are there", control=str(control), server=str(roots.on_host(programs.server))
    )
