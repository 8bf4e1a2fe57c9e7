"""A kernel's /proc and /sys in a temporary directory, as far as they speak of NVIDIA's devices."""

from pathlib import Path

MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "nvidia-uvm": 238, "nvidia-caps": 237}
GPU_INSTANCES = 15
COMPUTE_INSTANCES = 8


class KernelTree:
    """``proc`` and ``sys`` under ``base``. Nothing of NVIDIA's is loaded at first."""

    def __init__(self, base: Path) -> None:
        self.proc = base / "proc"
        self.sys = base / "sys"
        self.devices: dict[str, int] = {}

    def load(self, *modules: str, **majors: int) -> "KernelTree":
        """Register character devices, as loading a module does; ``majors`` for other numbers than usual."""
        self.devices |= {name: MAJORS[name] for name in modules}
        self.devices |= {name.replace("_", "-"): major for name, major in majors.items()}
        return self._write_devices()

    def unload(self, *modules: str) -> "KernelTree":
        """Take them away."""
        for name in modules:
            del self.devices[name]
        return self._write_devices()

    def version(self, version: str) -> "KernelTree":
        """The nvidia module of this version is loaded."""
        return self.write(self.sys / "module/nvidia/version", f"{version}\n")

    def parameters(self, **changes: int) -> "KernelTree":
        """Parameters of the nvidia module, its defaults with ``changes``."""
        facts = {"DeviceFileUID": 0, "DeviceFileGID": 0, "DeviceFileMode": 438, "ModifyDeviceFiles": 1} | changes
        lines = [f"{name}: {value}" for name, value in facts.items()]
        return self.write(self.proc / "driver/nvidia/params", "\n".join(["ResmanDebugLevel: 4294967295", *lines, ""]))

    def gpu(self, bus_id: str, minor: int) -> "KernelTree":
        """A GPU that the nvidia module has."""
        text = f"Model: \t\t NVIDIA H200\nBus Location: \t {bus_id}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        return self.write(self.proc / "driver/nvidia/gpus" / bus_id / "information", text)

    def on_bus(self, bus_id: str, vendor: str = "0x10de", kind: str = "0x030200") -> "KernelTree":
        """A PCI device, by default one of NVIDIA's without a screen."""
        folder = self.sys / "bus/pci/devices" / bus_id
        return self.write(folder / "vendor", f"{vendor}\n").write(folder / "class", f"{kind}\n")

    def drm(self, bus_id: str, **nodes: str) -> "KernelTree":
        """DRM nodes of a PCI device: name -> ``major:minor``."""
        for name, numbers in nodes.items():
            self.write(self.sys / "bus/pci/devices" / bus_id / "drm" / name / "dev", f"{numbers}\n")
        (self.sys / "bus/pci/devices" / bus_id / "drm/controlD64").mkdir(parents=True)
        return self

    def mig(self, gpu: int, instance: int, minor: int, compute: int | None = None, mode: str = "292") -> "KernelTree":
        """The access file of a GPU instance, or of a compute instance in it."""
        inside = "" if compute is None else f"/ci{compute}"
        path = self.proc / f"driver/nvidia/capabilities/gpu{gpu}/mig/gi{instance}{inside}/access"
        return self.write(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")

    def list_mig_minors(self, gpus: int = 1) -> "KernelTree":
        """The driver's list of minors for all instances that there may be, numbered as the driver numbers them."""
        names = ["config", "monitor"]
        for gpu in range(gpus):
            for instance in range(GPU_INSTANCES):
                names.append(f"gpu{gpu}/gi{instance}/access")
                names.extend(f"gpu{gpu}/gi{instance}/ci{compute}/access" for compute in range(COMPUTE_INSTANCES))
        lines = (f"{name} {minor}\n" for minor, name in enumerate(names, start=1))
        return self.write(self.proc / "driver/nvidia-caps/mig-minors", "".join(lines))

    def write(self, path: Path, text: str) -> "KernelTree":
        """Write any file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def _write_devices(self) -> "KernelTree":
        lines = [f"{major:3} {name}" for name, major in {"mem": 1, "tty": 4, **self.devices}.items()]
        return self.write(
            self.proc / "devices",
            "\n".join(["Character devices:", *lines, "", "Block devices:", "259 blkext", "195 nvidia-none", ""]),
        )
