from pathlib import Path

import pytest

from dra_driver.devices import scenario
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.errors import SettingError

CARDS = "{productName: X, architecture: Ampere, cudaComputeCapability: '8.0'}"
MANY = CARDS.replace("{", "{count: 1000, ")
MIG = (
    "{productName: X, architecture: Ampere, cudaComputeCapability: '8.0', "
    "migProfiles: {1g.5gb: {id: 19, memoryMiB: 4864, multiprocessors: 14}, "
    "3g.20gb: {id: 9, size: 4, memoryMiB: 19968, multiprocessors: 42}}, mig: %s}"
)


def node_of(gpus: str, rest: str = "") -> SimulatedNode:
    text = f"driver: {{version: 580.159.03}}\ngpus: [{gpus}]\n{rest}"
    return SimulatedNode("test", scenario.parse(text, "test.yaml"))


def test_all_scenarios_of_the_guide_are_shipped() -> None:
    assert scenario.shipped() == ("a100x8", "a100x8-mig", "a10gx4", "h200x2", "h200x8", "l4x1", "t4x4")


@pytest.mark.parametrize(
    ("name", "product", "architecture", "capability", "mib", "count"),
    [
        ("h200x2", "NVIDIA H200", "Hopper", "9.0", 143771, 2),
        ("h200x8", "NVIDIA H200", "Hopper", "9.0", 143771, 8),
        ("l4x1", "NVIDIA L4", "Ada Lovelace", "8.9", 23034, 1),
        ("a10gx4", "NVIDIA A10G", "Ampere", "8.6", 23028, 4),
        ("t4x4", "Tesla T4", "Turing", "7.5", 15360, 4),
        ("a100x8", "NVIDIA A100-SXM4-40GB", "Ampere", "8.0", 40960, 8),
        ("a100x8-mig", "NVIDIA A100-SXM4-40GB", "Ampere", "8.0", 40960, 8),
    ],
)
def test_shipped_cards_have_their_public_figures(
    name: str, product: str, architecture: str, capability: str, mib: int, count: int
) -> None:
    gpus = SimulatedNode.load(name).source().scan().gpus
    assert len(gpus) == count
    facts = {(g.product_name, g.architecture, g.cuda_compute_capability, g.memory_bytes) for g in gpus}
    assert facts == {(product, architecture, capability, mib * 1024**2)}


def test_shipped_scenarios_are_part_of_the_package() -> None:
    assert scenario.SHIPPED.parent == Path(scenario.__file__).parent


def test_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"driver: {{version: '1.2'}}\ngpus: [{CARDS}]\n")
    assert list(SimulatedNode.load(path).source().scan().devices) == ["gpu-0"]


def test_same_scenario_gives_the_same_cards() -> None:
    first, second = (SimulatedNode.load("h200x8").source().scan() for _ in range(2))
    assert first == second


def test_other_seed_gives_other_uuids() -> None:
    first, second = (SimulatedNode.load("h200x8", seed).source().scan() for seed in ("node-a", "node-b"))
    assert not {gpu.uuid for gpu in first.gpus} & {gpu.uuid for gpu in second.gpus}


def test_thousand_equal_cards_need_one_line_and_have_their_own_identity() -> None:
    gpus = node_of(MANY).source().scan().gpus
    assert {gpu.minor for gpu in gpus} == set(range(1000))
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci_bus_id for gpu in gpus}) == 1000


def test_groups_are_numbered_through() -> None:
    assert list(node_of(f"{CARDS}, {CARDS}").source().scan().devices) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("driver: {version: '1'}", ["gpus is required"]),
        ("[]", ["the whole file", "found []"]),
        ("", ["the whole file", "found None"]),
        ("driver: {version: '1'}\ngpus: [", ["not YAML", "line 3"]),
        (
            f"driver: {{version: '1', cude: '13.0'}}\ngpus: [{CARDS}]",
            ["driver.cude is not a known key", "known: version, cuda, nvml"],
        ),
        (
            f"driver: {{version: '1', cuda: 13.0}}\ngpus: [{CARDS}]",
            ["driver.cuda", "found 13.0", "valid string", "put it in quotes"],
        ),
        (
            "driver: {version: '1'}\ngpus: [{productName: X, architecture: Amper, cudaComputeCapability: '8.0'}]",
            ["gpus.0.architecture", "found 'Amper'", "allowed: Kepler, Maxwell", "Ada Lovelace"],
        ),
        (
            f"driver: {{version: '1'}}\ngpus: [{CARDS}]\ntool: {{behaviours: [{{signal: USR9}}]}}",
            ["tool.behaviours.0.signal", "found 'USR9'", "'SEGV'"],
        ),
        (
            f"driver: {{version: '1'}}\ngpus: [{CARDS}]\nfailures: {{calls: [{{call: fan, error: unknown}}]}}",
            ["failures.calls.0.call", "found 'fan'", "'computeMode'"],
        ),
        (
            f"driver: {{version: '1'}}\ngpus: [{CARDS[:-1]}, migProfiles: {{1g: {{di: 1}}}}}}]",
            ["gpus.0.migProfiles.1g.id is required", "and 3 more"],
        ),
        (
            f"driver: {{version: '1'}}\ngpus: [{CARDS[:-1]}, persistence: 1}}]",
            ["gpus.0.persistence", "found 1", "boolean"],
        ),
        (
            f"driver: {{version: '1'}}\ngpus: [{CARDS[:-1]}, pciBusId: gpu0}}]",
            ["gpus.0.pciBusId.0", "found 'gpu0'", "domain:bus:device.function"],
        ),
    ],
)
def test_bad_file_is_answered_in_one_line_with_key_value_and_allowed(text: str, parts: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        scenario.parse(text, "mine.yaml")
    message = str(caught.value)
    assert message.startswith("scenario mine.yaml: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("gpus", "rest", "message"),
    [
        (CARDS.replace("{", "{count: 3, minor: [0, 1], "), "", "gpus.0.minor: found 2 values for 3 cards"),
        (CARDS.replace("{", "{count: 2, minor: 4, "), "", "gpus.0.minor: found 1 values for 2 cards"),
        (f"{CARDS}, {CARDS.replace('{', '{minor: 0, ')}", "", "two cards have minor 0"),
        (MIG % "[{profile: 2g.10gb, starts: [0]}]", "", "found '2g.10gb': migProfiles has: 1g.5gb, 3g.20gb"),
        (
            MIG % "[{profile: 3g.20gb, starts: [0]}, {profile: 1g.5gb, starts: [3]}]",
            "",
            "gpus.0.mig.1.starts: found 3: overlaps",
        ),
        (CARDS, "changes: [{afterScans: 1, gpu: 1, gone: true}]", "changes.0.gpu: found 1: the node has 1 GPUs"),
        (
            CARDS,
            "tool: {behaviours: [{gpu: 4}]}",
            "tool.behaviours.0.gpu: found 4: the node has 1 GPUs",
        ),
        (
            CARDS,
            "failures: {calls: [{call: memory, error: unknown, gpu: 2}]}",
            "failures.calls.0.gpu: found 2: the node has 1 GPUs",
        ),
    ],
)
def test_contradiction_between_keys_is_named(gpus: str, rest: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        node_of(gpus, rest)


def test_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(SettingError, match=r"'h100x9' is neither .*a100x8, a100x8-mig, .*nor a file"):
        SimulatedNode.load("h100x9")


def test_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match=r"binary\.yaml: cannot be read"):
        SimulatedNode.load(path)


def test_yaml_tags_run_no_code(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not YAML"):
        scenario.parse(f"!!python/object/apply:os.mkdir ['{tmp_path}/made']", "x")
    assert not (tmp_path / "made").exists()
