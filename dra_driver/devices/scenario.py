"""Scenario files: what a simulated node has, how it fails and how its nvidia-smi behaves. Reading and checking only.

Keys are those of ``dra-driver inventory -o json``. The scenarios shipped by name are the files in ``scenarios/``.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from dra_driver.devices import vocabulary
from dra_driver.devices.scenario_errors import explain
from dra_driver.model.errors import SettingError

SHIPPED: Final = Path(__file__).parent / "scenarios"

_T = TypeVar("_T")
_Yaml: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _as_list(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else [value]


def _known(words: tuple[str, ...]) -> AfterValidator:
    def check(word: str) -> str:
        if word not in words:
            raise ValueError(f"allowed: {', '.join(words)}")
        return word

    return AfterValidator(check)


Each = Annotated[list[_T], BeforeValidator(_as_list)]
"""A value for all cards of a group, or a list with one value a card."""

Brand = Annotated[str, _known((*vocabulary.BRANDS.values(), vocabulary.UNKNOWN))]
Architecture = Annotated[str, _known((*vocabulary.ARCHITECTURES.values(), vocabulary.UNKNOWN))]
PciBusId = Annotated[str, AfterValidator(vocabulary.pci_bus_id)]
Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]
MajorMinor = Annotated[str, Field(pattern=r"^\d+\.\d$")]
GpuUuid = Annotated[str, Field(pattern=r"^GPU-[0-9A-Za-z-]+$")]
ComputeModeName = Literal["Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel)


class Driver(_Part):
    """Versions of the NVIDIA driver; ``cuda`` as ``major.minor``. memory_limits: whether it knows those of cgroups."""

    version: Version
    cuda: MajorMinor | None = None
    nvml: Version | None = None
    memory_limits: bool = False


class MigProfile(_Part):
    """A GPU instance profile as ``nvidia-smi mig -lgip`` shows it; ``size`` in memory slices."""

    id: Count
    size: Positive = 1
    memory_mib: Positive = Field(alias="memoryMiB")
    multiprocessors: Count
    copy_engines: Count = 0
    decoders: Count = 0
    encoders: Count = 0
    jpeg_engines: Count = 0
    ofa_engines: Count = 0


class MigLayout(_Part):
    """MIG devices of one profile on each card of a group, by the memory slice they begin at."""

    profile: str
    starts: list[Count] = Field(min_length=1)


class _Layout(_Part):
    mig: list[MigLayout]


class Cards(_Part):
    """``count`` GPUs that are alike. What is not given is derived from their position on the node.

    A card with a ``mig`` layout is in MIG mode unless ``migEnabled`` is false: then the layout is what it has as soon
    as MIG mode is turned on.
    """

    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    product_name: str
    brand: Brand = "Nvidia"
    architecture: Architecture
    cuda_compute_capability: MajorMinor
    memory_bytes: Positive | None = None
    addressing_mode: Literal["None", "HMM", "ATS"] | None = None
    compute_mode: ComputeModeName = "Default"
    persistence: bool | None = True
    uuid: Each[GpuUuid] | None = None
    minor: Each[Count] | None = None
    pci_bus_id: Each[PciBusId] | None = None
    numa_node: Each[Count] | None = None
    pcie_root: Each[str] | None = None
    mig_enabled: bool | None = None
    mig_profiles: dict[str, MigProfile] = Field(default_factory=dict)
    mig: list[MigLayout] = Field(default_factory=list)


class Change(_Part):
    """Something that happens to the GPU at position ``gpu`` while the driver runs, before scan ``afterScans`` + 1.

    ``gone``: true takes it off the bus, false puts it back.
    """

    after_scans: Positive
    gpu: Count
    gone: bool | None = None
    uuid: GpuUuid | None = None
    minor: Count | None = None
    mig_enabled: bool | None = None
    mig: list[MigLayout] | None = None


class NvmlFailures(_Part):
    """NVML as a whole: scans that find it not loadable, then scans that find no GPU."""

    not_loadable_scans: Count = 0
    zero_gpu_scans: Count = 0


class CallFailure(_Part):
    """An NVML call that fails, on one GPU (by position) or on all; only the ``first`` calls of each GPU if given."""

    call: Literal[
        "uuid",
        "minor",
        "pciBusId",
        "productName",
        "brand",
        "architecture",
        "cudaComputeCapability",
        "memory",
        "addressingMode",
        "migMode",
        "persistence",
        "computeMode",
        "setComputeMode",
        "memoryLimits",
        "processes",
    ]
    error: Literal["gpu-lost", "not-supported", "function-missing", "driver-not-loaded", "unknown"]
    gpu: Count | None = None
    first: Positive | None = None


class Failures(_Part):
    """Failures of NVML to inject."""

    nvml: NvmlFailures = NvmlFailures()
    calls: list[CallFailure] = Field(default_factory=list)


class ToolBehaviour(_Part):
    """How nvidia-smi misbehaves, for one GPU (by position) or all, in its n-th ``calls`` for that GPU or in each.

    The first behaviour that fits is carried out, after the delay and instead of the work.
    """

    command: Literal["set-timeslice", "list"] = "set-timeslice"
    gpu: Count | None = None
    calls: list[Positive] | None = None
    exit_code: Annotated[int, Field(ge=0, le=255)] = 1
    stdout: str = ""
    stderr: str = ""
    print_megabytes: Count = 0
    signal: Literal["SEGV", "KILL", "TERM", "ABRT", "BUS"] | None = None
    hang: bool = False


class Tool(_Part):
    """The stand-in nvidia-smi."""

    delay_ms: Count = 0
    missing: bool = False
    executable: bool = True
    behaviours: list[ToolBehaviour] = Field(default_factory=list)


class Mps(_Part):
    """The stand-in nvidia-cuda-mps-control: how its daemons misbehave, all of them. 0 means never.

    refuses: commands that change nothing. ignoresQuit: it goes on serving, and only signals end it.
    """

    missing: bool = False
    delay_ms: Count = 0
    dies_at_start: bool = False
    dies_after_ms: Count = 0
    never_answers: bool = False
    refuses: list[Literal["set_default_active_thread_percentage", "set_default_device_pinned_mem_limit"]] = Field(
        default_factory=list
    )
    ignores_quit: bool = False


class Scenario(_Part):
    """A whole scenario file."""

    driver: Driver
    gpus: list[Cards]
    changes: list[Change] = Field(default_factory=list)
    failures: Failures = Failures()
    tool: Tool = Tool()
    mps: Mps = Mps()


def shipped() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def load(name_or_path: str | Path) -> tuple[str, Scenario]:
    """Name (the file's stem) and content of a shipped scenario or of a file.

    Raises SettingError in one line: the file, the key, the value found and what is allowed.
    """
    path = SHIPPED / f"{name_or_path}.yaml"
    if str(name_or_path) not in shipped():
        path = Path(name_or_path)
        if not path.is_file():
            raise SettingError(
                f"simulated node {str(name_or_path)!r} is neither a scenario of this name "
                f"({', '.join(shipped())}) nor a file"
            )
    return path.stem, parse(_read(path), str(path))


def parse(text: str, where: str) -> Scenario:
    """A scenario from its YAML text. Raises SettingError naming ``where``."""
    try:
        raw = yaml.load(text, Loader=_Yaml)  # noqa: S506 - one of the two safe loaders
    except yaml.YAMLError as error:
        raise SettingError(f"scenario {where}: not YAML: {' '.join(str(error).split())}") from error
    try:
        return Scenario.model_validate(raw)
    except ValidationError as error:
        raise SettingError(f"scenario {where}: {explain(error, Scenario)}") from error


def parse_layout(text: str, where: str) -> tuple[MigLayout, ...]:
    """The MIG devices of one card from the YAML text of a ``mig`` entry. Raises SettingError naming ``where``."""
    try:
        raw = yaml.load(text, Loader=_Yaml)  # noqa: S506 - one of the two safe loaders
        return tuple(_Layout.model_validate({"mig": raw}).mig)
    except yaml.YAMLError as error:
        raise SettingError(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise SettingError(f"{where}: {explain(error, _Layout)}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SettingError(f"scenario {path}: cannot be read: {error}") from error
