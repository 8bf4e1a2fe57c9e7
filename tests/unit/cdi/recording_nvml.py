"""A libnvidia-ml that writes down the memory limits that NVIDIA's hook program sets, or refuses. Needs a C compiler."""

from pathlib import Path
from typing import Final

from tests.unit.cdi.compiled import write_library

_SOURCE: Final = """
#include <stdio.h>
#include <string.h>
struct limits { const char *cgroup; unsigned long long soft, hard; };
static char gpu[96];
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "the stand-in does not want to"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    strncpy(gpu, uuid, sizeof gpu - 1);
    *handle = gpu;
    return 0;
}
int nvmlDeviceSetMemoryLimits_v1(void *handle, struct limits *limits) {
    FILE *file = fopen("%s", "r");
    if (file) return fclose(file), 3;
    file = fopen("%s", "a");
    fprintf(file, "%%s %%s %%llu %%llu\\n", (char *)handle, limits->cgroup, limits->soft, limits->hard);
    fclose(file);
    return 0;
}
"""


def write(library: Path, refusing: Path, told: Path) -> None:
    """Make it. It answers NVML_ERROR_NOT_SUPPORTED once there is the file ``refusing``, else adds to ``told``."""
    write_library(library, _SOURCE % (refusing, told), "libnvidia-ml.so.1")
