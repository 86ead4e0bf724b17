"""Parts of the replay command that need no process."""

import pytest

from dualpath_jax.replay.main import _own_store
from tests.cluster.harness import small_spec

BOTH = ("basic", "dualpath")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("file:///data/kv", "file:///data/kv/basic"),
        ("file:///data/kv/", "file:///data/kv/basic"),
        ("faulty+file:///data/kv?flip=0.1&seed=3", "faulty+file:///data/kv/basic?flip=0.1&seed=3"),
        ("", ""),
    ],
)
def test_runs_that_are_compared_have_folders_of_their_own(tmp_path, url, own):
    spec = small_spec(tmp_path, storage__url=url)
    assert _own_store(spec, "basic", BOTH).storage.url == own
    assert _own_store(spec, "basic", ("basic",)).storage.url == url
