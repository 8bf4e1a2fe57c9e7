"""Names and constants that other programs rely on: Kubernetes API types, the kubelet, CDI and NVIDIA's driver."""

from typing import Final

# Driver and pools.
DRIVER_NAME: Final = "gpu.nvidia.com"

# Opaque configuration.
CONFIG_GROUP: Final = "resource.nvidia.com"
CONFIG_API_VERSION: Final = "resource.nvidia.com/v1beta1"

# Resource API.
RESOURCE_API_GROUP: Final = "resource.k8s.io"
RESOURCE_API_VERSION: Final = "resource.k8s.io/v1"
STANDARD_ATTRIBUTE_DOMAIN: Final = "resource.kubernetes.io"

# Device types, the values of attribute ``type``.
TYPE_GPU: Final = "gpu"
TYPE_MIG: Final = "mig"
TYPE_VFIO: Final = "vfio"

# CDI.
CDI_VENDOR: Final = "k8s.gpu.nvidia.com"
CDI_CLASS: Final = "claim"
CDI_KIND: Final = f"{CDI_VENDOR}/{CDI_CLASS}"

# Kubelet plugin registration.
PLUGIN_TYPE_DRA: Final = "DRAPlugin"
DRA_SERVICE_V1: Final = "v1.DRAPlugin"
DRA_HEALTH_SERVICE: Final = "v1alpha1.DRAResourceHealth"
REGISTRATION_SOCKET: Final = f"{DRIVER_NAME}-reg.sock"
DRA_SOCKET: Final = "dra.sock"

# Events.
EVENT_COMPONENT: Final = "dra-driver-gpu"


def socket_names(pod_uid: str = "") -> tuple[str, str]:
    """File names of the registration and the DRA socket; with a pod UID they differ from pod to pod."""
    if not pod_uid:
        return REGISTRATION_SOCKET, DRA_SOCKET
    return f"{DRIVER_NAME}-{pod_uid}-reg.sock", f"dra-{pod_uid}.sock"


def cdi_device_name(claim_uid: str, device: str) -> str:
    """Name of a device inside a claim's CDI spec."""
    return f"{claim_uid}-{device}"


def cdi_device_id(claim_uid: str, device: str) -> str:
    """Fully qualified CDI device id, as the kubelet hands it to the container runtime."""
    return f"{CDI_KIND}={cdi_device_name(claim_uid, device)}"


def cdi_spec_file(claim_uid: str) -> str:
    """File name of a claim's transient CDI spec."""
    return f"{CDI_VENDOR}-{CDI_CLASS}_{claim_uid}.yaml"
