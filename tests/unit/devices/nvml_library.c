/* A library with the few NVML functions that a card cannot do without, to be called through the real pynvml. */
#include <stdio.h>
#include <string.h>

#define UUID "GPU-c0ffee00-0000-0000-0000-000000000001"

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
};

static int started, mode;
static int card;

int nvmlInitWithFlags(unsigned int flags) { started = flags == 1; return started ? 0 : 2; }
int nvmlShutdown(void) { started = 0; return 0; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned int size) { snprintf(text, size, "580.159.04"); return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return started ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = &card; return index ? 6 : 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = &card; return strcmp(uuid, UUID) ? 6 : 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned int size) { (void)device; snprintf(text, size, UUID); return 0; }
int nvmlDeviceGetMinorNumber(void *device, unsigned int *minor) { (void)device; *minor = 3; return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned int size) { (void)device; snprintf(text, size, "NVIDIA H200"); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, void *info) { (void)device; (void)info; return 3; }
int nvmlDeviceGetComputeMode(void *device, int *value) { (void)device; *value = mode; return 0; }
int nvmlDeviceSetComputeMode(void *device, int value) { (void)device; mode = value; return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *info)
{
    (void)device;
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:00:06.0");
    return 0;
}
