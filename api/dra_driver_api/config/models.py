"""The opaque configs of ``resource.nvidia.com/v1beta1`` that a claim on a GPU or a MIG device may carry.

A default is a value here: absent, ``null`` and empty blocks give the same object, so configs that mean the
same are equal and hash alike. Whether a strategy is switched on is not for these types to know, nor is JSON.
"""

from enum import Enum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from dra_driver_api.config.errors import shorten, shown
from dra_driver_api.quantity import Quantity

STRATEGIES: Final = ("TimeSlicing", "MPS")


def shape_error(message: str, key: str = "") -> PydanticCustomError:
    """A value of the wrong kind; ``key`` is an entry of the map at hand."""
    return PydanticCustomError("config_shape", "{message}", {"message": message, "key": key})


def rule_error(message: str, key: str = "") -> PydanticCustomError:
    """A value of the right kind that is not allowed; ``key`` is a field of the object at hand."""
    return PydanticCustomError("config_rule", "{message}", {"message": message, "key": key})


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
    )


class Interval(Enum):
    """How long a process keeps the GPU before the next one has its turn."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def level(self) -> int:
        """The number that the driver's tool takes: 0 Default, 1 Short, 2 Medium, 3 Long."""
        return _LEVELS[self]


_LEVELS: Final = {interval: level for level, interval in enumerate(Interval)}
_INTERVALS: Final = {interval.value: interval for interval in Interval}


def _interval(value: Any) -> Interval:
    if isinstance(value, Interval):
        return value
    if value is None:
        return Interval.DEFAULT
    known = ", ".join(_INTERVALS)
    if not isinstance(value, str):
        raise shape_error(f"want one of {known}, found {shown(value)}")
    found = _INTERVALS.get(value)
    if found is None:
        raise rule_error(f"unknown time-slice interval: {shorten(value)}, supported time-slice intervals: {known}")
    return found


def _quantity(value: Any) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise shape_error(f"want a Kubernetes quantity such as 512Mi or 10Gi, found {shown(value)}")
    try:
        return Quantity.parse(value if isinstance(value, str) else repr(value))
    except ValueError:
        raise shape_error(f"want a Kubernetes quantity such as 512Mi or 10Gi, found {shown(value)}") from None


def _limits(value: Any) -> tuple[tuple[str, Quantity], ...]:
    if value is None:
        return ()
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, dict):
        raise shape_error(f"want an object of UUID or index to quantity, found {shown(value)}")
    limits = []
    for key, limit in sorted(value.items()):
        try:
            limits.append((key, _quantity(limit)))
        except PydanticCustomError as error:
            raise shape_error((error.context or {})["message"], key) from None
    return tuple(limits)


def _percentage(value: int | None) -> int | None:
    if value is not None and value < 0:
        raise rule_error(f"active thread percentage must not be negative, found {shown(value)}")
    if value is not None and value > 100:
        raise rule_error(f"active thread percentage must not be greater than 100, found {shown(value)}")
    return value


def _or(default: Any) -> BeforeValidator:
    """``null`` means the default, as an absent key does."""
    return BeforeValidator(lambda value: default if value is None else value)


class TimeSlicingConfig(_Model):
    """Settings of the TimeSlicing strategy."""

    interval: Annotated[Interval, PlainValidator(_interval)] = Interval.DEFAULT


class _MpsFields(_Model):
    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: Annotated[Quantity, PlainValidator(_quantity)] | None = None
    default_per_device_pinned_memory_limit: Annotated[tuple[tuple[str, Quantity], ...], PlainValidator(_limits)] = ()
    multi_user: Annotated[bool, _or(False)] = False


class MpsConfig(_MpsFields):
    """Settings of the MPS control daemon.

    default_active_thread_percentage: 0 to 100, None leaves it to the daemon.
    default_pinned_device_memory_limit: for each device; see ``pinned_memory_limits`` for what becomes of it.
    default_per_device_pinned_memory_limit: (UUID or decimal index, limit) pairs sorted by key.
    multi_user: one daemon for processes of several users; needs compute capability 7.0.
    """

    default_active_thread_percentage: Annotated[int | None, AfterValidator(_percentage)] = None


class TimeSlicing(_Model):
    """Processes take turns on a full GPU."""

    strategy: Literal["TimeSlicing"] = "TimeSlicing"
    time_slicing_config: Annotated[TimeSlicingConfig, _or(TimeSlicingConfig())] = TimeSlicingConfig()


class MigTimeSlicing(_Model):
    """Processes take turns on a MIG device; the driver has no setting for it.

    ``mpsConfig`` must be well formed and is then forgotten: manifests that carry it are in use.
    """

    strategy: Literal["TimeSlicing"] = "TimeSlicing"
    mps_config: Annotated[_MpsFields | None, AfterValidator(lambda _: None)] = Field(
        default=None, exclude=True, repr=False
    )


class Mps(_Model):
    """Processes run side by side through an MPS control daemon."""

    strategy: Literal["MPS"] = "MPS"
    mps_config: Annotated[MpsConfig, _or(MpsConfig())] = MpsConfig()


def _strategy(value: dict[str, Any]) -> str:
    """The strategy of a raw ``sharing`` object, one of STRATEGIES."""
    known = ", ".join(STRATEGIES)
    strategy = value.get("strategy")
    if strategy is None:
        near = "".join(f' (found "{key}")' for key in value if key.lower() == "strategy" != key)
        raise rule_error(f"no GPU sharing strategy{near}, supported GPU sharing strategies: {known}", "strategy")
    if not isinstance(strategy, str):
        raise shape_error(f"want one of {known}, found {shown(strategy)}", "strategy")
    if strategy not in STRATEGIES:
        raise rule_error(
            f"unknown GPU sharing strategy: {shorten(strategy)}, supported GPU sharing strategies: {known}",
            "strategy",
        )
    return strategy


def _gpu_sharing(value: Any) -> Any:
    """Refuse the block of the other strategy; a ``null`` there is as good as none."""
    if not isinstance(value, dict):
        return value
    strategy = _strategy(value)
    other = "mpsConfig" if strategy == "TimeSlicing" else "timeSlicingConfig"
    if value.get(other) is not None:
        raise rule_error(f"cannot use {other[0].upper()}{other[1:]} with the '{strategy}' strategy", other)
    return {key: block for key, block in value.items() if key != other}


def _mig_sharing(value: Any) -> Any:
    if isinstance(value, dict):
        _strategy(value)
    return value


GpuSharing = Annotated[TimeSlicing | Mps, Field(discriminator="strategy"), BeforeValidator(_gpu_sharing)]
MigSharing = Annotated[MigTimeSlicing | Mps, Field(discriminator="strategy"), BeforeValidator(_mig_sharing)]


class GpuConfig(_Model):
    """Parameters of a full GPU. ``sharing`` None: nothing on the card is changed for the claim."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = "resource.nvidia.com/v1beta1"
    kind: Literal["GpuConfig"] = "GpuConfig"
    sharing: GpuSharing | None = None


class MigDeviceConfig(_Model):
    """Parameters of a MIG device. ``sharing`` None and TimeSlicing change nothing on the card."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = "resource.nvidia.com/v1beta1"
    kind: Literal["MigDeviceConfig"] = "MigDeviceConfig"
    sharing: MigSharing | None = None
