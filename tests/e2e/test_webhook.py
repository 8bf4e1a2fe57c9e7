"""The admission webhook in the pods of the chart, asked by the real API server: case 92, and what an outage means."""

import base64
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from hack.cluster.certificates import Authority
from hack.cluster.errors import ApiRefused
from hack.image import driver as driver_image
from hack.image import oci, platforms
from tests.e2e import clusters
from tests.e2e.manifests import Json, time_slicing
from tests.e2e.waiting import until
from tests.e2e.webhook_release import NAME, NAMESPACE, SECRET, Webhook, served

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate")
WHERE: Final = "default"


def made(*configs: Json, kind: str = "ResourceClaim", version: str = "v1") -> Json:
    """A claim or a template of a version."""
    body = {"deviceClassName": "gpu.nvidia.com"}
    request = {"name": "gpu", **body} if version == "v1beta1" else {"name": "gpu", "exactly": body}
    spec = {"devices": {"requests": [request], "config": list(configs)}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": {"namespace": WHERE},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


def config(sharing: Json, kind: str = "GpuConfig", driver: str = "gpu.nvidia.com") -> Json:
    """An entry of ``config``."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **sharing}
    return {"opaque": {"driver": driver, "parameters": parameters}}


GOOD: Final = time_slicing("Long")
WRONG: Final = time_slicing("Forever")
OTHERS: Final = config({"anything": "goes"}, kind="Unheard", driver="gpu.example.com")
LARGEST: Final = [config({"text": "x" * 10_000}, driver="gpu.example.com")] * 32
"""As many and as large configs as the API takes."""


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Two pods of the chart, in a namespace where Pod Security enforces its strictest level."""
    archive = tmp_path_factory.mktemp("webhook-image") / "driver.tar"
    image, _ = driver_image.image(driver_image.NAME, platforms.RELEASES["debian"], platforms.native())
    oci.write(image, archive)
    apis = tuple(f"resource.k8s.io/{version}" for version in VERSIONS[1:])
    directory = clusters.DIRECTORY.with_name(f"{clusters.DIRECTORY.name}-webhook")
    with clusters.running(directory, 1, archive, apis) as cluster:
        strictest = {"pod-security.kubernetes.io/enforce": "restricted"}
        cluster.api.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": strictest}}
        )
        found = Webhook(cluster, tmp_path_factory.mktemp("webhook"))
        found.certify()
        found.install()
        yield found


def refused(act: Callable[[], object]) -> str:
    """What the API server says to something that it must refuse."""
    with pytest.raises(ApiRefused) as said:
        act()
    return str(said.value)


# What it judges.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_good_config_is_taken_and_a_wrong_one_refused_in_every_version(
    webhook: Webhook, version: str, kind: str
) -> None:
    assert webhook.create(made(GOOD, kind=kind, version=version))["kind"] == kind

    text = refused(lambda: webhook.create(made(WRONG, kind=kind, version=version)))

    assert "HTTP 422" in text
    assert 'admission webhook \\"gpu.nvidia.com\\" denied the request: 1 configs failed to validate: ' in text
    assert "error validating GPU config: unknown time-slice interval: Forever" in text


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (config({"sharing": {"strategy": "MPS"}}), "error validating GPU config: unknown GPU sharing strategy: MPS; "),
        (config({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Long"}}}), "did you mean"),
        (config({}, kind="VfioDeviceConfig"), "runtime object is not a recognized configuration"),
    ],
    ids=["gate", "misspelt", "vfio"],
)
def test_kubectl_shows_the_drivers_words(webhook: Webhook, entry: Json, said: str) -> None:
    done = webhook.apply(made(entry))

    assert done.returncode == 1
    assert 'admission webhook "gpu.nvidia.com" denied the request' in done.stderr
    assert said in done.stderr


def test_kubectl_shows_what_is_legal_and_surely_not_meant(webhook: Webhook) -> None:
    done = webhook.apply(made(GOOD, kind="ResourceClaimTemplate"))

    assert done.returncode == 0
    assert (
        "Warning: spec.spec.devices.config[0].opaque.parameters.sharing.strategy: each Pod gets a claim" in done.stderr
    )
    assert "Warning" not in webhook.apply(made(GOOD)).stderr


def test_other_drivers_configs_may_be_anything(webhook: Webhook) -> None:
    assert webhook.create(made(OTHERS, GOOD))


# When it is not there.


def test_down_it_holds_up_nothing_that_is_not_of_this_driver(webhook: Webhook) -> None:
    there = webhook.create(made(GOOD))
    with webhook.down():
        for kind in KINDS:
            assert webhook.create(made(kind=kind))
            assert webhook.create(made(OTHERS, kind=kind))
        assert webhook.create(made(*LARGEST))
        for kind in KINDS:
            text = refused(lambda kind=kind: webhook.create(made(GOOD, kind=kind)))
            assert 'failed calling webhook \\"gpu.nvidia.com\\"' in text
        label_and_delete(webhook, there)


def label_and_delete(webhook: Webhook, found: Json) -> None:
    """What must go on with claims that are there: changes of all but the spec, and leaving."""
    path = f"{webhook.cluster.api.path(found)}/{found['metadata']['name']}"
    for finalizers in (["example.com/wait"], []):
        fresh = webhook.cluster.api.get(path)
        metadata = {**fresh["metadata"], "labels": {"a": "b"}, "finalizers": finalizers}
        webhook.cluster.api.request("PUT", path, {**fresh, "metadata": metadata})
    webhook.cluster.api.delete(path)
    until(lambda: webhook.cluster.api.find(path) is None, "the claim to go")


def test_slow_it_holds_up_nothing_that_is_not_of_this_driver(webhook: Webhook) -> None:
    with webhook.silent():
        # It takes the API server a moment to see the new address.
        until(lambda: "deadline exceeded" in refusal_or_none(webhook), "calls to run out of time")
        assert webhook.create(made(OTHERS))
        assert webhook.create(made(*LARGEST, kind="ResourceClaimTemplate"))
    until(lambda: webhook.create(made(GOOD)), "the webhook to be asked again")


def refusal_or_none(webhook: Webhook) -> str:
    try:
        webhook.create(made(GOOD))
    except ApiRefused as said:
        return str(said)
    return ""


def test_down_it_lets_claims_through_where_the_values_say_so(webhook: Webhook) -> None:
    webhook.install(failurePolicy="Ignore")
    try:
        assert "unknown time-slice interval" in refused(lambda: webhook.create(made(WRONG)))
        with webhook.down():
            passed = webhook.create(made(WRONG))
        # A wrong claim that is there already can be changed and deleted all the same.
        label_and_delete(webhook, passed)
    finally:
        webhook.install()


# While it changes.


def test_certificate_of_another_authority_is_taken_up_without_a_restart_or_a_lost_call(webhook: Webhook) -> None:
    before = {each["metadata"]["uid"]: each["status"]["podIP"] for each in webhook.pods()}
    webhook.authorities.append(Authority("second"))
    webhook.install()  # which trusts both
    second = webhook.certify()

    def everywhere() -> bool:
        webhook.create(made(GOOD))  # raises whenever the API server does not trust what it is shown
        return all(served(address) == second for address in before.values())

    until_without_failure(everywhere, "both pods to show the new certificate")
    del webhook.authorities[0]
    webhook.install()

    assert webhook.create(made(GOOD))
    assert "Forever" in refused(lambda: webhook.create(made(WRONG)))
    assert {each["metadata"]["uid"] for each in webhook.pods()} == set(before)
    assert {each["restartCount"] for pod in webhook.pods() for each in pod["status"]["containerStatuses"]} == {0}


def until_without_failure(look: Callable[[], bool], what: str) -> None:
    """As ``until``, which takes a refusal for no answer yet; here each is one too many."""
    refusals: list[str] = []

    def look_closely() -> bool:
        try:
            return look()
        except ApiRefused as said:
            refusals.append(str(said))
            return True

    until(look_closely, what)
    assert refusals == []


def test_broken_certificate_is_told_and_the_old_one_serves_on(webhook: Webhook) -> None:
    before = served(webhook.pods()[0]["status"]["podIP"])
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}"
    secret = webhook.cluster.api.get(path)
    broken = {**secret, "data": {**secret["data"], "tls.key": base64.b64encode(b"no key").decode()}}
    webhook.cluster.api.request("PUT", path, broken)
    try:

        def told() -> bool:
            logs = [webhook.cluster.kubectl("logs", name, f"--namespace={NAMESPACE}") for name in names]
            return all("cannot be used, the one before it still is" in log for log in logs)

        names = [each["metadata"]["name"] for each in webhook.pods()]
        until(told, "both pods to tell of the broken certificate")
        assert webhook.create(made(GOOD))
        assert {served(each["status"]["podIP"]) for each in webhook.pods()} == {before}
    finally:
        webhook.certify()
    now = [each["status"]["podIP"] for each in webhook.pods()]
    until(lambda: before not in {served(address) for address in now}, "the good certificate after it")


def test_no_call_is_lost_while_its_pods_are_replaced(webhook: Webhook) -> None:
    before = {each["metadata"]["uid"] for each in webhook.pods()}
    webhook.cluster.kubectl("rollout", "restart", f"deployment/{NAME}", f"--namespace={NAMESPACE}")

    def replaced() -> bool:
        webhook.create(made(GOOD))
        now = {each["metadata"]["uid"] for each in webhook.pods()}
        return len(now) == 2 and not now & before

    until_without_failure(replaced, "both pods to be replaced")
    webhook.wait_rolled_out()
