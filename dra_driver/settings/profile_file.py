"""Reads a sharing profile: YAML, decoded strictly, since a key that is skipped is a GPU shared in another way."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dra_driver.model.errors import SettingError
from dra_driver.sharing.profile import Match, Profile, Rule
from dra_driver.sharing.shares import ConsumableShares

_MAX_BYTES: Final = 64 << 10
"""Some thousand rules. A larger file would keep who looks after the GPUs from looking for seconds."""
_SHOWN: Final = 80

_RULE_KEYS: Final = ("match", "shares", "maxPerClaim")
_MATCH_KEYS: Final = ("minor", "uuid", "productName", "migProfile", "nodeLabels")
_INTEGER: Final = "tag:yaml.org,2002:int"
_STRING: Final = "tag:yaml.org,2002:str"
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


class ProfileFile:
    """A profile in a file that may be changed at any time, such as a mounted ConfigMap."""

    def __init__(self, path: Path, max_clients: int) -> None:
        self._path = path
        self._max_clients = max_clients
        self._content: bytes | None = None
        self._found: Profile | SettingError = SettingError(f"--sharing-profile {path} was not read yet")

    def read(self) -> Profile:
        """The profile as it is in the file now. Raises SettingError: file, rule, field, value, what is allowed."""
        try:
            content = self._read()
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SettingError(f"--sharing-profile {self._path} cannot be read: {why}") from error
        # The content tells of a change where times and inodes may not: a ConfigMap is swapped by a link.
        if content != self._content:
            self._content = content
            self._found = self._decode(content)
        if isinstance(self._found, SettingError):
            raise self._found
        return self._found

    @property
    def text(self) -> str:
        """What the last profile that ``read`` returned was written as."""
        return "" if self._content is None else self._content.decode("utf-8-sig")

    def _read(self) -> bytes:
        # Without O_NONBLOCK a FIFO would be waited for, and with it all that looks after the GPUs.
        with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a regular file")
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        return content

    def _decode(self, content: bytes) -> Profile | SettingError:
        try:
            return parse_profile(content.decode("utf-8-sig"), self._max_clients)
        except UnicodeDecodeError as error:
            return SettingError(f"--sharing-profile {self._path}: not UTF-8 text (byte {error.start})")
        except ValueError as error:
            return SettingError(f"--sharing-profile {self._path}: {error}")


def parse_profile(text: str, max_clients: int) -> Profile:
    """The profile of a YAML text. Raises ValueError that names line, rule, field, value and what is allowed."""
    import yaml  # only where there is a profile

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
    if root is None:
        raise ValueError("is empty, must have rules: [...]")
    fields = _mapping(root, "", ("rules",))
    if "rules" not in fields:
        raise _error(root, "rules", "is missing, must be a list of rules")
    entries = fields["rules"]
    if entries.id != "sequence":
        raise _wrong(entries, "rules", "a list of rules")
    return Profile(tuple(_rule(index, node, max_clients) for index, node in enumerate(entries.value)))


def _rule(index: int, node: Any, max_clients: int) -> Rule:
    at = f"rules[{index}]"
    fields = _mapping(node, at, _RULE_KEYS)
    for required in ("match", "shares"):
        if required not in fields:
            raise _error(node, f"{at}.{required}", "is missing")
    shares = _shares(f"{at}.shares", fields["shares"], max_clients)
    most = fields.get("maxPerClaim")
    if most is not None:
        shares = _limited(f"{at}.maxPerClaim", most, shares)
    return Rule(index=index, line=_line(node), match=_match(f"{at}.match", fields["match"]), shares=shares)


def _shares(at: str, node: Any, max_clients: int) -> ConsumableShares:
    # What YAML takes for a number must be a decimal one: 010 is eight to some readers.
    odd = node.id != "scalar" or (node.tag == _INTEGER and _integer(node) is None)
    try:
        shares = ConsumableShares.parse("" if odd else node.value)
    except ValueError as error:
        raise _error(node, at, f"is {_shown(node)}, {error}") from None
    if shares.count > max_clients:
        raise _error(node, at, f"is {shares}, at most {max_clients} are allowed (--max-clients-per-gpu={max_clients})")
    return shares


def _limited(at: str, node: Any, shares: ConsumableShares) -> ConsumableShares:
    if not shares.count:
        raise _error(node, at, f"is given with shares: {shares}, allowed only with a number of shares")
    most = _integer(node)
    if most is None or not 1 <= most <= shares.count:
        raise _wrong(node, at, f"a number from 1 to {shares.count}, the shares of the device")
    return ConsumableShares(shares.mode, shares.count, most)


def _match(at: str, node: Any) -> Match:
    fields = _mapping(node, at, _MATCH_KEYS)
    if not fields:
        raise _error(
            node, at, f"is empty, must have one of {', '.join(_MATCH_KEYS)}; --consumable-shares is for all others"
        )
    minor = fields.get("minor")
    number = None if minor is None else _integer(minor)
    if minor is not None and (number is None or number < 0):
        raise _wrong(minor, f"{at}.minor", "the N of /dev/nvidiaN, a number from 0")
    texts = {key: _text(f"{at}.{key}", fields[key]) for key in ("uuid", "productName", "migProfile") if key in fields}
    return Match(
        minor=number,
        uuid=texts.get("uuid"),
        product_name=texts.get("productName"),
        mig_profile=texts.get("migProfile"),
        node_labels=tuple(_labels(f"{at}.nodeLabels", fields["nodeLabels"])) if "nodeLabels" in fields else (),
    )


def _labels(at: str, node: Any) -> Iterator[tuple[str, str]]:
    labels = _mapping(node, at, None)
    if not labels:
        raise _error(node, at, "is empty, must have labels as key: value")
    for key, value in labels.items():
        if value.id != "scalar" or value.tag != _STRING:
            raise _wrong(value, f"{at}.{_plain(key)}", 'a text, in quotes if it looks like a number or like "true"')
        yield key, value.value


def _mapping(node: Any, at: str, known: tuple[str, ...] | None) -> dict[str, Any]:
    """Key -> node. known: the keys that are allowed, None for any."""
    if node.id != "mapping":
        raise _wrong(node, at or "the document", "an object")
    prefix = f"{at}." if at else ""
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = key.value if key.id == "scalar" else _shown(key)
        if known is not None and name not in known:
            raise _error(key, f"{prefix}{_plain(name)}", f"is not known, must be one of {', '.join(known)}")
        if name in found:
            raise _error(key, f"{prefix}{_plain(name)}", "is there twice")
        found[name] = value
    return found


def _text(at: str, node: Any) -> str:
    if node.id != "scalar" or node.tag != _STRING or not node.value:
        raise _wrong(node, at, "a text that is not empty")
    return str(node.value)


def _integer(node: Any) -> int | None:
    """A plain decimal number; YAML has octal and sexagesimal ones too, which nobody means here."""
    number = node.id == "scalar" and node.tag == _INTEGER and _DECIMAL.fullmatch(node.value)
    return int(node.value) if number else None


def _wrong(node: Any, at: str, wanted: str) -> ValueError:
    return _error(node, at, f"is {_shown(node)}, must be {wanted}")


def _error(node: Any, at: str, what: str) -> ValueError:
    return ValueError(f"line {_line(node)}: {at} {what}")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _plain(key: str) -> str:
    """A key fit for a message of one line."""
    return key if key.isprintable() and len(key) <= _SHOWN else repr(key)[:_SHOWN]


def _shown(node: Any) -> str:
    if node.id != "scalar":
        return "an object" if node.id == "mapping" else "a list"
    return repr(node.value)[:_SHOWN] if node.value else "empty"
