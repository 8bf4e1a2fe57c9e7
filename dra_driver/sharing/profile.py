"""Which device is shared how: a profile's rules, the default for the rest, the ceiling of clients. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from dra_driver.model.devices import Device, Gpu, MigDevice
from dra_driver.model.texts import listed
from dra_driver.sharing.shares import WHOLE, ConsumableShares

Labels = Mapping[str, str]

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a rule asks of a device; all that is given must hold.

    minor, product_name: of the card, so that its MIG devices match too. uuid: of the device, or of its card.
    mig_profile: as published, such as ``1g.18gb``. node_labels: of this node.
    """

    minor: int | None = None
    uuid: str | None = None
    product_name: str | None = None
    mig_profile: str | None = None
    node_labels: tuple[tuple[str, str], ...] = ()

    def holds(self, device: Device, labels: Labels) -> bool:
        """Whether a device of a node with these labels is meant."""
        card = device.physical
        return (
            self.minor in (None, card.minor)
            and self.uuid in (None, device.uuid, card.uuid)
            and self.product_name in (None, card.product_name)
            and (self.mig_profile is None or (isinstance(device, MigDevice) and device.profile == self.mig_profile))
            and all(labels.get(key) == value for key, value in self.node_labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. index: its place in the file, from 0; line: where it begins there, from 1."""

    index: int
    line: int
    match: Match
    shares: ConsumableShares

    def __str__(self) -> str:
        return f"rules[{self.index}] (line {self.line})"


@dataclass(frozen=True, slots=True)
class Profile:
    """A sharing profile. Order does not matter: no two rules may mean the same device."""

    rules: tuple[Rule, ...] = ()

    @property
    def asks_labels(self) -> bool:
        """Whether the node's labels have to be known."""
        return any(rule.match.node_labels for rule in self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How the devices of a node are shared.

    shares: device name -> how it is shared, for each device without a problem. problems: device name -> why the
    profile does not say how it is shared. idle: rules that mean no device of this node.
    """

    shares: Mapping[str, ConsumableShares] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds beside the profile. default: for devices that no rule means; max_clients: on one physical GPU."""

    default: ConsumableShares = WHOLE
    max_clients: int = 48


def share_out(devices: Collection[Device], profile: Profile, labels: Labels, terms: Terms) -> Sharing:
    """Find the rule of each device, and hold each physical GPU against the ceiling."""
    shares: dict[str, ConsumableShares] = {}
    problems: dict[str, str] = {}
    used: set[int] = set()
    for device in devices:
        rules = [rule for rule in profile.rules if rule.match.holds(device, labels)]
        used.update(rule.index for rule in rules)
        if len(rules) > 1:
            problems[device.name] = _ambiguous(device, rules)
        else:
            shares[device.name] = rules[0].shares if rules else terms.default
    for name, problem in _over_ceiling(devices, shares, terms.max_clients):
        problems[name] = problem
        del shares[name]
    idle = tuple(rule for rule in profile.rules if rule.index not in used)
    return Sharing(shares=shares, problems=problems, idle=idle)


def idle_words(rules: Sequence[Rule | str]) -> str:
    """That these rules mean nothing here, in one line: the profile of a fleet has many such."""
    return f"{listed([str(rule) for rule in rules], _SHOWN)} mean{'s' * (len(rules) == 1)} no device of this node"


def _ambiguous(device: Device, rules: list[Rule]) -> str:
    named = listed([str(rule) for rule in rules], _SHOWN)
    return f"device {device.name} ({device.uuid}) is meant by {named}: narrow their match, one rule may mean a device"


def _over_ceiling(
    devices: Iterable[Device], shares: Mapping[str, ConsumableShares], most: int
) -> list[tuple[str, str]]:
    found = []
    known = sorted((device for device in devices if device.name in shares), key=lambda device: device.physical.uuid)
    for uuid, group in groupby(known, key=lambda device: device.physical.uuid):
        on_card = list(group)
        clients = sum(_clients(shares[device.name]) for device in on_card)
        if clients > most and any(shares[device.name].count for device in on_card):
            text = (
                f"{_sum(on_card, shares)} = {clients} clients on {uuid} ({on_card[0].physical.name}), at most {most} "
                "are allowed: lower the number of shares, or raise --max-clients-per-gpu"
            )
            found += [(device.name, text) for device in on_card]
    return found


def _clients(shares: ConsumableShares) -> int:
    """Clients that a device can have as far as the scheduler counts them; memory and unlimited are counted later."""
    return shares.count if shares.count else 0 if shares.shared else 1


def _sum(on_card: list[Device], shares: Mapping[str, ConsumableShares]) -> str:
    """The arithmetic in words, such as ``3 MIG devices x 10 shares + 4 MIG devices x 5 shares``."""
    counts = [_clients(shares[device.name]) for device in on_card]
    kind = "GPU" if isinstance(on_card[0], Gpu) else "MIG device"
    terms = []
    for count in sorted(set(counts) - {0}, reverse=True):
        number = counts.count(count)
        each = "share" if count == 1 else "shares"
        terms.append(f"{number} {kind}{'' if number == 1 else 's'} x {count} {each}")
    return " + ".join(terms)
