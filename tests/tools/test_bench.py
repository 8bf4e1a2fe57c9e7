"""The bench: its figures, its objects, its processes, and once the whole of it with few claims."""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from dra_driver.devices import scenario as scenarios
from dra_driver.simulator import kinds
from dra_driver.simulator.api_server import ApiServer
from hack.bench import cli, driver, inside, load, objects, processes, report, surroundings, targets
from hack.bench.cluster import Cluster
from hack.bench.errors import BenchError
from hack.bench.objects import PLAIN, SHARED, SLICED, Claim, Device
from hack.bench.processes import Child
from hack.bench.samples import Measured, Memory, Start, Surroundings, Timing, quantile
from tests.unit.simulator.builders import gpu_slice

MIB = 1024 * 1024


def timing(seconds: list[float], *, operation: str = "prepare", sharing: str = PLAIN, **more: object) -> Timing:
    defaults: dict[str, object] = {"gpus": 8, "at_once": 1, "wall_s": 1.0}
    return Timing(operation=operation, sharing=sharing, seconds=tuple(seconds), **defaults | more)  # type: ignore[arg-type]


def measured(**more: object) -> Measured:
    around = Surroundings(disk_append=0.004, disk_overwrite=0.0004, get=0.001, tool=0.024, tool_at_once=0.003)
    return Measured(**{"machine": {"cores": "2"}, "surroundings": around} | more)  # type: ignore[arg-type]


def row(found: Measured, what: str) -> targets.Row:
    return next(row for row in targets.rows(found) if row.what.startswith(what))


def a_slice(name: str, devices: list[str], *, generation: int = 1, of: int = 1) -> objects.Json:
    pool = {"name": "node-a", "generation": generation, "resourceSliceCount": of}
    return {"metadata": {"name": name}, "spec": {"pool": pool, "devices": [{"name": device} for device in devices]}}


def test_quantile_lies_between_neighbours() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5


def test_quantile_of_nothing_is_none() -> None:
    assert quantile([], 0.5) is None


def test_growth_compares_last_tenth_with_first() -> None:
    assert timing([0.01] * 10 + [0.5] * 80 + [0.03] * 10).growth == pytest.approx(3.0)


def test_growth_is_not_told_for_few_calls() -> None:
    assert timing([0.01] * 8).growth is None


def test_rate_counts_only_calls_that_succeeded() -> None:
    assert timing([0.01] * 8, failures=("no",) * 2, wall_s=2.0).rate == 4.0


def test_cpu_per_call_is_unknown_when_the_process_cannot_be_seen() -> None:
    assert timing([0.01]).cpu_per_call is None


def test_time_slicing_target_is_one_tool_run_of_this_machine_and_5_ms() -> None:
    found = measured(timings=(timing([0.028] * 8, sharing=SLICED),))
    assert row(found, "prepare, time slicing, p50").target == pytest.approx(29.0)
    assert row(found, "prepare, time slicing, p50").met is True


def test_target_is_missed_when_the_figure_is_above_it() -> None:
    assert row(measured(timings=(timing([0.006] * 8),)), "prepare without sharing").met is False


def test_target_is_neither_met_nor_missed_when_nothing_was_measured() -> None:
    assert {row.met for row in targets.rows(measured())} == {None}


def test_start_of_exactly_one_second_is_not_under_it() -> None:
    assert row(measured(starts=(Start(1.0, 1.1),)), "exec to slices").met is False


def test_memory_target_is_in_mib() -> None:
    found = measured(memory=(Memory(8, 0, "idle", 59 * MIB, 40 * MIB),))
    assert (row(found, "memory idle").found, row(found, "memory idle").met) == (59.0, True)


def test_failed_parallel_prepare_misses_its_target() -> None:
    found = measured(timings=(timing([0.1] * 99, failures=("timed out",), sharing=SLICED, at_once=16),))
    assert row(found, "prepare, time slicing, 100 claims, 16 at a time: failures").met is False


def test_devices_come_in_the_order_of_slice_names() -> None:
    slices = [a_slice("b", ["gpu-1"], of=2), a_slice("a", ["gpu-0"], of=2)]
    assert objects.devices_of(slices) == (Device("node-a", "gpu-0"), Device("node-a", "gpu-1"))


@pytest.mark.parametrize(
    "slices",
    [
        pytest.param([], id="none"),
        pytest.param([a_slice("a", ["gpu-0"], of=2)], id="one-of-two"),
        pytest.param([a_slice("a", ["gpu-0"], of=2), a_slice("b", [], generation=2, of=2)], id="mixed-generations"),
    ],
)
def test_devices_are_not_told_before_the_pool_is_complete(slices: list[objects.Json]) -> None:
    assert objects.devices_of(slices) is None


def test_claim_without_sharing_has_no_config() -> None:
    assert "config" not in objects.claim("c", "run", PLAIN)["spec"]["devices"]


def test_allocation_carries_the_claims_own_config() -> None:
    status = objects.allocated(objects.claim("c", "run", SLICED), Device("n", "gpu-0"), "n", SLICED)["status"]
    (config,) = status["allocation"]["devices"]["config"]
    assert config["source"] == "FromClaim"
    assert config["opaque"]["parameters"]["sharing"]["timeSlicingConfig"] == {"interval": "Long"}


def test_claim_is_reserved_for_nothing_that_kubernetes_would_look_for_and_miss() -> None:
    status = objects.allocated(objects.claim("c", "run", PLAIN), Device("n", "gpu-0"), "n", PLAIN)["status"]
    assert [consumer["apiGroup"] for consumer in status["reservedFor"]] == [objects.CONSUMER_GROUP]


def test_each_share_has_its_own_id() -> None:
    made = [objects.allocated(objects.claim(n, "run", SHARED), Device("n", "gpu-0"), "n", SHARED) for n in "ab"]
    assert len({claim["status"]["allocation"]["devices"]["results"][0]["shareID"] for claim in made}) == 2


def test_generated_scenario_has_the_gpus_and_the_tool_it_was_asked_for() -> None:
    found = scenarios.parse(driver.scenario(1000, 20), "bench")
    assert (sum(cards.count for cards in found.gpus), found.tool.delay_ms) == (1000, 20)


def test_load_keeps_as_many_calls_in_flight_as_asked() -> None:
    together = threading.Barrier(4, timeout=10)

    def call(claim: Claim) -> str:
        together.wait()
        return "refused" if claim.uid == "2" else ""

    results, _ = load.run(call, [Claim("ns", "c", str(number)) for number in range(8)], 4)
    assert [error for _, error in results] == ["", "", "refused", "", "", "", "", ""]


def test_child_that_ends_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        Child([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path / "log") as child,
        pytest.raises(BenchError, match="exit code 1: no such thing"),
    ):
        child.wait_for(tmp_path / "never", 20)


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_END_S", 0.1)
    ready = tmp_path / "ready"
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(60)"
    with Child([sys.executable, "-c", code], tmp_path / "log") as child:
        child.wait_for(ready, 20)
        pid = child.pid
    assert not Path(f"/proc/{pid}").exists()


def test_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="/no/such/driver cannot be started"):
        Child(["/no/such/driver"], tmp_path / "log")


def test_memory_of_a_process_has_a_share_that_is_at_most_all_of_it(tmp_path: Path) -> None:
    rss, pss = processes.memory(os.getpid())
    assert 0 < pss <= rss


def test_cpu_time_is_that_of_the_process(tmp_path: Path) -> None:
    assert processes.cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.5)


def test_cpu_time_of_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with Child(["/bin/sh", "-c", "exit 0"], tmp_path / "log") as child:
        pid = child.pid
    with pytest.raises(BenchError, match=f"CPU time of process {pid}"):
        processes.cpu_seconds(pid)


def test_stand_in_tool_takes_its_delay(tmp_path: Path) -> None:
    alone, _ = surroundings.tool(tmp_path, 20, 2, 2)
    assert alone >= 0.02


def test_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("clusters: 7\n")
    with pytest.raises(BenchError, match="kubeconfig"):
        Cluster(tmp_path / "kubeconfig")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(["--socket", "/"], "--socket needs --kubeconfig and --node", id="socket-alone"),
        pytest.param(["--pid", "4194304"], "belongs to --socket", id="pid-alone"),
        pytest.param(["--node", "n"], "belong to --kubeconfig", id="node-of-no-cluster"),
        pytest.param(["--cluster", "/", "--kubeconfig", "/"], "both name an API server", id="two-clusters"),
        pytest.param(["--cluster", "/no/such/folder"], "found /no/such/folder", id="missing-cluster"),
        pytest.param(["--levels", "8,0"], "found '0'", id="level-zero"),
        pytest.param(["--kubeconfig", "/no/such/file"], "found /no/such/file", id="missing-file"),
    ],
)
def test_wrong_usage_ends_with_exit_code_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_folder_without_a_cluster_is_told_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cluster", str(tmp_path)]) == 1
    assert f"no cluster in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--cluster", "dir"], ["--cluster=dir"]])
def test_bench_on_the_node_has_all_options_but_the_cluster(given: list[str]) -> None:
    assert inside.without(["--quick", *given, "-o", "json"]) == ["--quick", "-o", "json"]


@pytest.mark.parametrize("output", list(report.FORMATS))
def test_report_shows_why_calls_failed(output: str) -> None:
    found = measured(timings=(timing([0.1], failures=("device gpu-3 is gone",)),))
    assert "device gpu-3 is gone" in report.FORMATS[output](found, targets.rows(found))


def test_markdown_tables_have_the_same_number_of_cells_in_every_line() -> None:
    found = measured(timings=(timing([0.1] * 100),), starts=(Start(0.9, 1.0), Start(0.8, 0.9)))
    blocks = [block for block in report.markdown(found, targets.rows(found)).split("\n\n") if block.startswith("|")]
    assert len(blocks) == 4
    assert all(len({line.count("|") for line in block.splitlines()}) == 1 for block in blocks)


def test_driver_that_does_not_start_is_told_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--quick", "-q", "--driver-command", f"{sys.executable} -m dra_driver --no-such-flag"]) == 1
    assert "--no-such-flag" in capsys.readouterr().err


def test_quick_run_prepares_and_unprepares_everything_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as short:  # tmp_path is too long for a socket below it
        code = cli.main(["--quick", "-q", "-o", "json", "--directory", short])
        left = list(Path(short).iterdir())
    printed = capsys.readouterr()
    assert (code, printed.err, left) == (0, "", [])
    found = json.loads(printed.out)
    runs = {
        (call["operation"], call["tool_runs"])
        for call in found["calls"]
        if (call["sharing"], call["at_once"]) == (SLICED, 1)
    }
    assert runs == {("prepare", 8), ("repeat", 0), ("unprepare", 8)}


def test_given_node_is_used_for_all_drivers_and_kept_without_their_slices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ApiServer() as server, tempfile.TemporaryDirectory() as short:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        cluster = Cluster(kubeconfig)
        cluster.add_node("node-a")
        size = ["--quick", "-q", "--levels", "1", "--no-time-slicing", "--directory", short]
        code = cli.main([*size, "--kubeconfig", str(kubeconfig), "--node", "node-a"])
        cluster.close()
        nodes = [each["metadata"]["name"] for each in server.store.find(kinds.NODES)]
        assert (code, nodes, server.store.find(kinds.RESOURCE_SLICES)) == (0, ["node-a"], [])
    assert "API server" in capsys.readouterr().out


def test_node_whose_driver_runs_is_not_measured_over_its_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        server.store.create(kinds.RESOURCE_SLICES, gpu_slice())
        code = cli.main(["--quick", "-q", "--kubeconfig", str(kubeconfig), "--node", "node-a"])
    assert code == 1
    assert "node 'node-a' has ResourceSlices of gpu.nvidia.com: stop the driver" in capsys.readouterr().err
