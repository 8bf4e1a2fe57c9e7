"""Programs in containers that containerd and runc make find the driver's libraries, with NVIDIA's hooks and without."""

import pytest

from hack.cluster.cluster import Cluster
from hack.image import layers, oci, platforms
from hack.image.oci import Image
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, named, pod
from tests.e2e.waiting import until
from tests.e2e.world import World
from tests.unit.cdi import compiled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

IMAGE = "localhost/loader:v1"
LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with nothing but a C library and a program that loads libraries; its own library path is set."""
    scratch = tmp_path_factory.mktemp("loader")
    layers.write(compiled.image(scratch / "root"), scratch / "layer.tar.gz")
    made = Image(
        name=IMAGE,
        architecture=platforms.native().name,
        layers=[layers.read(scratch / "layer.tar.gz", "loader")],
        entrypoint=(compiled.PROBE,),
        environment={"LD_LIBRARY_PATH": "/opt/image/lib"},
    )
    oci.write(made, scratch / "loader.tar")
    cluster.import_images(scratch / "loader.tar")
    return IMAGE


def _loading(image: str) -> Json:
    made = pod("loader", gpu=named("gpu"))
    (container,) = made["spec"]["containers"]
    container |= {"image": image, "args": list(LIBRARIES)}
    made["spec"]["restartPolicy"] = "Never"
    return made


def _output(world: World) -> str:
    """What the program said, once it has said something about each library."""

    def text() -> str:
        said = str(world.cluster.api.raw("GET", f"{world.path('Pod', 'loader')}/log").decode("utf-8"))
        return said if said.count("\n") >= len(LIBRARIES) else ""

    return until(text, lambda: f"the program's output\n{world.describe()}")


@pytest.mark.parametrize(
    ("hooks", "directory"),
    [
        pytest.param("nvidia-cdi-hook", "/usr/lib64", id="hooks"),
        pytest.param("none", f"/usr/lib/{platforms.native().triplet}", id="hook-free"),
    ],
)
def test_bare_image_loads_the_driver(
    cluster: Cluster, session_driver: HostDriver, namespace: World, image: str, hooks: str, directory: str
) -> None:
    program = f"--nvidia-cdi-hook-path={cluster.programs / 'nvidia-cdi-hook'}"
    session_driver.ensure(flags=(f"--cdi-hooks={hooks}", program))
    namespace.apply(claim("gpu"), _loading(image))

    found = dict(line.split(" ", 1) for line in _output(namespace).splitlines())

    # The simulated node's libraries hold nothing but their names, so the loader says what is missing, and where.
    assert {name: text.partition(":")[0] for name, text in found.items()} == {
        "libcuda.so.1": f"{directory}/libcuda.so.1",
        "libcuda.so": f"{directory}/libcuda.so.1",
        "libnvidia-ml.so.1": f"{directory}/libnvidia-ml.so.1",
    }
