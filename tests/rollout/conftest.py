"""One cluster of processes for a module: starting it costs seconds."""

from collections.abc import Iterator

import pytest

import dualpath_jax
from tests.cluster.harness import small_spec


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dualpath_jax.LocalCluster]:
    spec = small_spec(tmp_path_factory.mktemp("cluster"), engine__fake_seconds_per_token=0.002)
    with dualpath_jax.LocalCluster(spec) as running:
        yield running


@pytest.fixture
def address(cluster: dualpath_jax.LocalCluster) -> str:
    return cluster.client.address
