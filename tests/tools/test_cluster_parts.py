"""What a cluster is made of, as values: addresses, configuration, certificates, images, rights, command lines."""

import io
import json
import tarfile
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from dra_driver.commands.main import main as validate
from hack.cluster import certificates, cli, control_plane, driver, images, network, node_files, objects
from hack.cluster.certificates import Authority, Pair
from hack.cluster.control_plane import Files
from hack.cluster.errors import ClusterError
from hack.cluster.network import Addresses
from hack.cluster.plan import Plan

FILES = Files(Path("/tmp/c"))


def names_in(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        return {entry.name: entry for entry in found}


def content(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        file = found.extractfile(name)
        assert file is not None
        return file.read()


def a_slice(generation: int, count: int) -> driver.Json:
    return {"spec": {"pool": {"name": "node-1", "generation": generation, "resourceSliceCount": count}}}


def test_clusters_of_different_slots_share_no_address() -> None:
    assert Addresses(0).whole == "100.64.0.0/16"
    assert Addresses(1).whole == "100.65.0.0/16"


def test_pods_of_a_node_are_outside_the_range_of_the_nodes() -> None:
    addresses = Addresses(3)
    assert (addresses.node(1), addresses.pods(1), addresses.pods(2)) == (
        "100.67.0.11",
        "100.67.1.0/24",
        "100.67.2.0/24",
    )


def test_service_address_of_the_api_server_is_its_own() -> None:
    assert "address add 10.96.0.1/32 dev lo" in network.inside_commands(Addresses(0), 1)


def test_each_node_has_an_address_on_the_bridge() -> None:
    commands = network.inside_commands(Addresses(0), 2)
    assert "address add 100.64.0.12/24 dev bridge" in commands


def test_host_reaches_pods_through_the_cluster() -> None:
    commands = network.host_commands("dra-1", 4711, Addresses(0))
    assert commands[0] == "link add dra-1 type veth peer name uplink netns 4711"
    assert commands[-1] == "route add 100.64.0.0/16 via 100.64.0.1 dev dra-1"


@pytest.mark.parametrize("nodes", [0, 10])
def test_plan_with_too_few_or_many_nodes_is_refused(nodes: int) -> None:
    with pytest.raises(ClusterError, match=f"nodes: found {nodes}, want 1 to 9"):
        Plan(nodes=nodes).check()


def test_plan_is_read_back_as_it_was_kept() -> None:
    plan = Plan(nodes=2, gates={"A": False}, apis=("resource.k8s.io/v1alpha3",))
    assert Plan.read(json.loads(json.dumps(asdict(plan)))) == plan


def test_taint_rules_are_switched_on_where_they_are_alpha() -> None:
    assert control_plane.default_apis("1.34.4") == ("resource.k8s.io/v1alpha3",)
    assert control_plane.default_apis("1.36.3") == ()


def test_kubelet_authenticates_and_asks_the_api_server_who_may() -> None:
    config = node_files.kubelet(FILES, "node-1", "100.64.0.11", "/g/node-1", {})
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authorization"] == {"mode": "Webhook"}


def test_pods_are_in_the_control_group_of_their_node() -> None:
    config = node_files.kubelet(FILES, "node-1", "100.64.0.11", "/g/node-1", {})
    assert (config["cgroupsPerQOS"], config["cgroupRoot"]) == (True, "/g/node-1")


def test_kubelet_collects_no_image_as_none_can_be_had_again() -> None:
    assert node_files.kubelet(FILES, "node-1", "100.64.0.11", "/g", {})["imageGCHighThresholdPercent"] == 100


def test_pods_fit_into_the_addresses_of_their_node() -> None:
    assert node_files.kubelet(FILES, "node-1", "100.64.0.11", "/g", {})["maxPods"] <= 253


def test_containerd_hands_out_cdi_devices_and_the_local_pause_image() -> None:
    config = tomllib.loads(node_files.containerd("native", "/usr/sbin/runc"))
    assert config["plugins"]["io.containerd.cri.v1.runtime"]["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert config["plugins"]["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": "dra.local/pause:1"}
    assert config["disabled_plugins"][0] == "io.containerd.internal.v1.opt"


def test_node_certificate_says_who_the_kubelet_is() -> None:
    pair = Authority().client("system:node:node-1", ("system:nodes",))
    subject = x509.load_pem_x509_certificate(pair.certificate.encode()).subject
    assert subject.rfc4514_string() == "CN=system:node:node-1,O=system:nodes"


def test_certificates_are_signed_by_their_authority() -> None:
    authority = Authority()
    server = authority.server("node-1", ["node-1"], ["100.64.0.11"])
    root = x509.load_pem_x509_certificate(authority.pair.certificate.encode())
    x509.load_pem_x509_certificate(server.certificate.encode()).verify_directly_issued_by(root)


def test_server_certificate_is_good_for_its_address() -> None:
    pair = Authority().server("node-1", ["node-1"], ["100.64.0.11"])
    found = x509.load_pem_x509_certificate(pair.certificate.encode()).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["100.64.0.11"]


def test_keys_are_readable_for_their_owner_alone(tmp_path: Path) -> None:
    private, public = certificates.signing_key()
    Pair(public, private).keep(tmp_path, "sa")
    assert (tmp_path / "sa.key").stat().st_mode & 0o777 == 0o600


def test_archive_names_an_image_and_its_layer() -> None:
    archive = images.archive(b"layer", [images.Image("dra.local/a:1", command=("sh",))])
    (manifest,) = json.loads(content(archive, "manifest.json"))
    assert manifest["RepoTags"] == ["dra.local/a:1"]
    assert content(archive, manifest["Layers"][0]) == b"layer"


def test_image_config_names_the_layer_by_its_digest() -> None:
    archive = images.archive(b"layer", [images.Image("dra.local/a:1", entrypoint=("/bin/sleep", "1"))])
    (manifest,) = json.loads(content(archive, "manifest.json"))
    config = json.loads(content(archive, manifest["Config"]))
    assert config["rootfs"]["diff_ids"] == ["sha256:dac1d7cfa95021764849fd102524e141488c5e3a90f861dbb5a12d9ac8584f85"]
    assert config["config"]["Entrypoint"] == ["/bin/sleep", "1"]


def test_layer_has_busybox_under_each_of_its_names(tmp_path: Path) -> None:
    program = tmp_path / "busybox"
    program.write_text("#!/bin/sh\necho busybox; echo sh; echo sleep\n")
    program.chmod(0o755)
    found = names_in(images.busybox_layer(program))
    assert (found["bin/sh"].linkname, found["bin/sleep"].linkname) == ("busybox", "busybox")
    assert found["bin/busybox"].isfile()
    assert found["tmp"].mode == 0o1777


def test_layer_without_busybox_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="install Debian's busybox-static"):
        images.busybox_layer(tmp_path / "none")


def test_driver_may_write_no_claims() -> None:
    verbs = {name: rule["verbs"] for rule in objects.DRIVER_RIGHTS for name in rule["resources"]}
    assert verbs["resourceclaims"] == ["get", "list", "watch"]
    assert verbs["nodes"] == ["get"]


def test_driver_is_started_with_gates_and_flags() -> None:
    argv = driver.command_line("node-1", Path("/k"), "h200x2", {"B": False, "A": True}, ["--v=5"])
    assert argv[1:] == [
        "-m",
        "dra_driver",
        "run",
        "--node-name=node-1",
        "--kubeconfig=/k",
        "--cdi-root=/var/run/cdi",
        "--simulated-node=h200x2",
        "--feature-gates=A=true,B=false",
        "--v=5",
    ]


def test_driver_without_scenario_uses_real_gpus() -> None:
    argv = driver.command_line("node-1", Path("/k"), None, {})
    assert not [word for word in argv if word.startswith(("--simulated-node", "--feature-gates"))]


def test_pool_is_whole_with_all_slices_of_its_newest_generation() -> None:
    assert driver.is_whole([a_slice(1, 1), a_slice(2, 2), a_slice(2, 2)])


@pytest.mark.parametrize("found", [[], [a_slice(1, 2)], [a_slice(1, 1), a_slice(2, 2)]], ids=["none", "half", "newer"])
def test_pool_is_not_whole_while_slices_are_missing(found: list[driver.Json]) -> None:
    assert not driver.is_whole(found)


@pytest.mark.parametrize(
    ("state", "known"), [("actual_state_of_world", True), ("desired_state_of_world", False)], ids=["actual", "desired"]
)
def test_driver_counts_as_registered_when_the_kubelet_has_done_so(state: str, known: bool) -> None:
    socket = "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"
    text = f'# TYPE x gauge\nplugin_manager_total_plugins{{socket_path="{socket}",state="{state}"}} 1\n'
    assert driver.is_registered(text) is known


def test_plugin_of_another_driver_is_not_ours() -> None:
    line = 'plugin_manager_total_plugins{socket_path="/r/cpu.example.com-reg.sock",state="actual_state_of_world"} 1\n'
    assert not driver.is_registered(line)


def test_directory_can_be_given_before_and_after_the_command() -> None:
    parser = cli._parser()
    assert parser.parse_args(["--dir", "/a", "down"]).dir == Path("/a")
    assert parser.parse_args(["down", "--dir", "/a"]).dir == Path("/a")


def test_words_after_kubectl_are_left_to_it() -> None:
    options = cli._parser().parse_args(["--dir", "/a", "kubectl", "get", "-o", "yaml", "pods"])
    assert (options.dir, options.arguments) == (Path("/a"), ["get", "-o", "yaml", "pods"])


def test_gate_that_is_neither_on_nor_off_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli._parser().parse_args(["up", "--gates", "A=yes"])
    assert "found 'A=yes', must be NAME=true or NAME=false" in capsys.readouterr().err


def test_words_after_two_dashes_are_flags_of_the_driver() -> None:
    options = cli._parser().parse_args(["up", "--driver", "h200x2", "--", "--consumable-shares=10", "-v", "4"])
    assert options.flags == ["--consumable-shares=10", "-v", "4"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--driver", "h200x2", "--", "--consumable-share=10"], "did you mean --consumable-shares"),
        (["--driver", "h200x2", "--", "--consumable-shares=10"], "ConsumableShares=true"),
        (["--driver", "h200x2", "--gates", "ConsumableShare=true"], "did you mean ConsumableShares"),
        (["--", "--consumable-shares=10"], "--consumable-shares=10: for a driver, but none is asked for"),
    ],
    ids=["misspelt flag", "flag without its gate", "misspelt gate", "no driver"],
)
def test_driver_that_would_not_start_is_refused_before_there_is_a_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    assert cli.main(["--dir", str(tmp_path / "cluster"), "up", *arguments]) == 1
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_driver_that_starts_with_shares_is_taken() -> None:
    flags = ["--consumable-shares=10", "--share-memory=even"]
    driver.check(driver.command_line("node-1", Path("kubeconfig"), "h200x2", {"ConsumableShares": True}, flags))


def test_example_of_shares_asks_for_devices_rightly_and_for_an_image_that_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = driver.ROOT / "hack/cluster/shares.yaml"
    assert validate(["validate", str(path)]) == 0, capsys.readouterr()
    (deployment,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == images.BUSYBOX
