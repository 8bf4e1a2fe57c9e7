"""Where the chart's pods go with the values for EKS, as Helm renders it."""

import pytest
import yaml

from tests import helm
from tests.unit.manifests import agreement, groups

pytestmark = pytest.mark.chart


def test_driver_is_placed_as_the_values_for_eks_say() -> None:
    pod = helm.pod(helm.documents(yaml.safe_load(groups.EKS_VALUES.read_text(encoding="utf-8"))))
    wanted = agreement.placement(eks=True)
    assert {name: pod[name] for name in ("nodeSelector", "affinity", "tolerations")} == {
        name: wanted[name] for name in ("nodeSelector", "affinity", "tolerations")
    }
