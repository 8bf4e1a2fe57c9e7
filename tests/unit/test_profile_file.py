"""Reading a sharing profile: what it says, what is refused, and when it is read again."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.errors import SettingError
from dra_driver.settings.profile_file import ProfileFile, parse_profile
from dra_driver.sharing.profile import Match, Profile, Rule
from dra_driver.sharing.shares import ConsumableShares, SharesMode

FLEET = """\
# GPU 0 is for training.
rules:
- match: {minor: 0}
  shares: disabled
- match: {productName: Tesla T4, nodeLabels: {pool: dev, example.com/shared: "true"}}
  shares: 4
  maxPerClaim: 1
- match: {migProfile: 1g.10gb, uuid: GPU-1}
  shares: memory
"""


def rule(match: str = "{minor: 0}", shares: str = "4", more: str = "") -> str:
    return f"rules:\n- match: {match}\n  shares: {shares}\n  {more}\n"


def error_of(text: str, most: int = 48) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_profile(text, most)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rules_say_which_devices_are_shared_how() -> None:
    labels = (("pool", "dev"), ("example.com/shared", "true"))
    assert parse_profile(FLEET, 48) == Profile(
        (
            Rule(index=0, line=3, match=Match(minor=0), shares=ConsumableShares()),
            Rule(
                index=1,
                line=5,
                match=Match(product_name="Tesla T4", node_labels=labels),
                shares=ConsumableShares(SharesMode.COUNT, 4, 1),
            ),
            Rule(
                index=2,
                line=8,
                match=Match(mig_profile="1g.10gb", uuid="GPU-1"),
                shares=ConsumableShares(SharesMode.MEMORY),
            ),
        )
    )


def test_profile_may_have_no_rules() -> None:
    assert parse_profile("rules: []", 48) == Profile()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty, must have rules: [...]"),
        ("# only words\n", "is empty, must have rules: [...]"),
        ("[]", "line 1: the document is a list, must be an object"),
        ("{}", "line 1: rules is missing"),
        ("rules:\n", "line 1: rules is empty, must be a list of rules"),
        ("rules: 3", "line 1: rules is '3', must be a list of rules"),
        ("rules: []\nrulez: []", "line 2: rulez is not known, must be one of rules"),
        ("rules: []\nrules: []", "line 2: rules is there twice"),
        ("rules: [3]", "line 1: rules[0] is '3', must be an object"),
        ("rules:\n- shares: 3", "line 2: rules[0].match is missing"),
        ("rules:\n- match: {minor: 0}", "line 2: rules[0].shares is missing"),
        (rule(more="maxPerClam: 1"), "line 4: rules[0].maxPerClam is not known, must be one of match, shares, "),
        (rule(match="{}"), "line 2: rules[0].match is empty, must have one of minor, uuid, productName, "),
        (rule(match="[minor]"), "line 2: rules[0].match is a list, must be an object"),
        (rule(match="{index: 0}"), "line 2: rules[0].match.index is not known, must be one of minor, uuid, "),
        (rule(match="{minor: 0, minor: 1}"), "line 2: rules[0].match.minor is there twice"),
        (rule(match="{minor: first}"), "rules[0].match.minor is 'first', must be the N of /dev/nvidiaN"),
        (rule(match="{minor: -1}"), "rules[0].match.minor is '-1', must be"),
        (rule(match="{minor: 0x1}"), "rules[0].match.minor is '0x1', must be"),
        (rule(match='{minor: "0"}'), "rules[0].match.minor is '0', must be"),
        (rule(match="{uuid: 5}"), "rules[0].match.uuid is '5', must be a text"),
        (rule(match='{productName: ""}'), "rules[0].match.productName is empty, must be a text"),
        (rule(match="{migProfile: [1g.5gb]}"), "rules[0].match.migProfile is a list, must be a text"),
        (rule(match="{nodeLabels: {}}"), "rules[0].match.nodeLabels is empty, must have labels"),
        (
            rule(match="{nodeLabels: {shared: true}}"),
            "rules[0].match.nodeLabels.shared is 'true', must be a text, in q",
        ),
        (rule(shares="0"), "line 3: rules[0].shares is '0', must be 'disabled', 'memory', 'unlimited', or a positive"),
        (rule(shares="-4"), "rules[0].shares is '-4', must be"),
        (rule(shares="2.5"), "rules[0].shares is '2.5', must be"),
        (rule(shares="off"), "rules[0].shares is 'off', must be"),
        (rule(shares="[4]"), "rules[0].shares is a list, must be"),
        (rule(shares=""), "rules[0].shares is empty, must be"),
        (rule(shares="010"), "rules[0].shares is '010', must be"),
        (rule(match="{minor: 010}"), "rules[0].match.minor is '010', must be"),
        (rule(match='{"mi\\nnor\\e[0m": 0}'), "rules[0].match.'mi\\nnor\\x1b[0m' is not known"),
        (rule(match='{nodeLabels: {"a\\nb": 1}}'), "rules[0].match.nodeLabels.'a\\nb' is '1', must be a text"),
        (rule(match='{nodeLabels: {"a\\0": b, "a\\0": c}}'), "rules[0].match.nodeLabels.'a\\x00' is there twice"),
        (rule(shares="49"), "rules[0].shares is 49, at most 48 are allowed (--max-clients-per-gpu=48)"),
        (rule(more="maxPerClaim: 5"), "line 4: rules[0].maxPerClaim is '5', must be a number from 1 to 4"),
        (rule(more="maxPerClaim: 0"), "rules[0].maxPerClaim is '0', must be"),
        (rule(more="maxPerClaim: all"), "rules[0].maxPerClaim is 'all', must be"),
        (
            rule(shares="memory", more="maxPerClaim: 1"),
            "rules[0].maxPerClaim is given with shares: memory, allowed only",
        ),
        ("rules: [", "not YAML: "),
        ("rules: !!python/object:os.system []\nmore: *anchor", "not YAML: "),
        ("rules: []\n---\nrules: []", "not YAML: expected a single document"),
        ("[" * 5000, "not YAML: "),
    ],
)
def test_wrong_profile_is_refused_by_line_rule_field_value_and_what_is_allowed(text: str, said: str) -> None:
    assert said in error_of(text)


def test_long_keys_make_no_long_message() -> None:
    assert len(error_of(rule(match=f"{{? {'x' * 900} : 0}}"))) < 300


@given(st.text())
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_profile(text, 48), Profile)


def test_file_is_named_by_path_and_flag(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(rule(shares="some"))
    with pytest.raises(SettingError, match=rf"--sharing-profile {path}: line 3: rules\[0\].shares is 'some'"):
        ProfileFile(path, 48).read()


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"#" * (65 << 10)], ids=["missing", "no text", "too large"])
def test_file_that_cannot_be_read_is_a_setting_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "profile.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match="--sharing-profile"):
        ProfileFile(path, 48).read()


def test_directory_in_place_of_the_file_is_a_setting_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Is a directory"):
        ProfileFile(tmp_path, 48).read()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _socket, _loop, _device])
def test_what_is_no_file_is_a_setting_error_and_never_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "p"
    make(path)
    with pytest.raises(SettingError, match="cannot be read"):
        ProfileFile(path, 48).read()


def test_profile_follows_the_link_of_a_configmap_that_is_swapped(tmp_path: Path) -> None:
    for version, shares in (("v1", "4"), ("v2", "6")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "profile.yaml").write_text(rule(shares=shares))
    data, path = tmp_path / "..data", tmp_path / "profile.yaml"
    data.symlink_to("v1")
    path.symlink_to("..data/profile.yaml")
    file = ProfileFile(path, 48)
    first = file.read()
    assert (first.rules[0].shares.count, file.read()) == (4, first)
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(data)
    assert file.read().rules[0].shares.count == 6


def test_wrong_file_stays_wrong_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(rule())
    file = ProfileFile(path, 48)
    good = file.read()
    path.write_text("rules: 3")
    for _ in range(2):
        with pytest.raises(SettingError):
            file.read()
    path.write_text(rule())
    assert file.read() == good
