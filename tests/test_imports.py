"""Imports run one way. Read from the sources, not executed: an import counts wherever it stands, functions included."""

import ast
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

PACKAGES = {
    "dualpath_configs": ROOT / "configs",
    "dualpath_storage": ROOT / "storage",
    "dualpath_scheduler": ROOT / "scheduler",
    "dualpath_jax": ROOT,
}
"""The packages and where they lie; each may import those before it."""

BELOW = {
    "models": set(),
    "transfer": set(),
    "engine": {"models", "transfer"},
    "cluster": {"models", "transfer", "engine"},
    "rollout": {"models", "transfer", "engine", "cluster"},
    "launch": {"models", "transfer", "engine", "cluster", "rollout"},
    "replay": {"models", "transfer", "engine", "cluster", "rollout", "launch"},
    "qos": {"launch"},
    "testbed": {"models", "transfer", "engine", "cluster", "rollout", "launch", "replay", "qos"},
}
"""The folders of dualpath_jax, and which of the others each may import."""

JAX = {"flax", "jax", "jaxlib", "optax", "orbax"}
READS_THE_ENVIRONMENT = "dualpath_jax/launch/processes.py"


@dataclass(frozen=True)
class Import:
    """`file` (below its package's folder, `dualpath_x/...`) needs `module` on `line`."""

    file: str
    line: int
    module: str

    @property
    def folder(self) -> str:
        """The folder of dualpath_jax that the file lies in; empty: at its top, or in another package."""
        package, _, rest = self.file.partition("/")
        return rest.partition("/")[0] if package == "dualpath_jax" and "/" in rest else ""


def imports_of(file: str, source: str) -> Iterator[Import]:
    """`from a import b` counts as `a.b`, which tells a folder from a name in it; imports by name count as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = pathlib.PurePath(file).parts[: -node.level]
                module = ".".join([*above, module] if module else above)
            yield from (Import(file, node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            named = node.args[0] if node.args else node
            module = named.value if isinstance(named, ast.Constant) else ast.unparse(named)
            yield Import(file, node.lineno, str(module))


def fault(found: Import) -> str | None:
    """What is wrong with an import; None: nothing."""
    package = found.file.partition("/")[0]
    target, _, rest = found.module.partition(".")
    order = list(PACKAGES)
    if target in JAX and package != "dualpath_jax":
        return "JAX is known to dualpath_jax alone"
    if target == "numpy" and package == "dualpath_configs":
        return "dualpath_configs does without NumPy"
    if target == "flax" and found.folder != "models":
        return "Flax is known to dualpath_jax/models alone"
    if target in PACKAGES and order.index(target) > order.index(package):
        return f"the order is {' <- '.join(order)}"
    if target != "dualpath_jax" or package != "dualpath_jax" or found.file == "dualpath_jax/__init__.py":
        return None
    folder = rest.partition(".")[0]
    if folder not in BELOW:
        return "what dualpath_jax exports is for its users; import the module that defines it"
    if folder != found.folder and folder not in BELOW[found.folder]:
        return f"{found.folder} may import {', '.join(sorted(BELOW[found.folder])) or 'no other folder'}"
    return None


def environment_lines(source: str) -> list[int]:
    """Lines that name the process's environment."""
    names = ("environ", "environb", "getenv", "getenvb", "putenv")
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and any(alias.name in names for alias in node.names))
    ]


def sources() -> dict[str, str]:
    """Every module of the packages, generated ones included."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for package, folder in PACKAGES.items()
        for path in sorted((folder / package).rglob("*.py"))
    }


def test_every_import_runs_the_right_way():
    faults = [
        f"{found.file}:{found.line}: imports {found.module}: {reason}"
        for file, source in sources().items()
        for found in imports_of(file, source)
        if (reason := fault(found))
    ]
    assert not faults, "\n".join(faults)


def test_every_folder_has_its_place_in_the_order():
    folders = {file.split("/")[1] for file in sources() if file.startswith("dualpath_jax/") and file.count("/") > 1}
    assert folders == set(BELOW)


def test_only_the_launcher_reads_the_environment():
    readers = {file for file, source in sources().items() if environment_lines(source)}
    assert readers == {READS_THE_ENVIRONMENT}


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("dualpath_configs/a.py", "import numpy as np", "does without NumPy"),
        ("dualpath_configs/a.py", "from dualpath_storage import keys", "the order is"),
        ("dualpath_storage/a.py", "def f():\n    import jax.numpy", "JAX is known"),
        ("dualpath_scheduler/a/b.py", "from orbax import checkpoint", "JAX is known"),
        ("dualpath_scheduler/a/b.py", "from importlib import import_module\nimport_module('jax')", "JAX is known"),
        ("dualpath_scheduler/a/b.py", "import dualpath_jax", "the order is"),
        ("dualpath_jax/engine/a.py", "from flax import nnx", "Flax is known"),
        ("dualpath_jax/models/a.py", "from dualpath_jax.transfer import Lane", "models may import no other folder"),
        ("dualpath_jax/transfer/a.py", "from dualpath_jax import models", "transfer may import no other folder"),
        ("dualpath_jax/engine/a.py", "def f():\n    from dualpath_jax.cluster import jobs", "engine may import"),
        ("dualpath_jax/cluster/a.py", "from ..rollout import Client", "cluster may import"),
        ("dualpath_jax/rollout/a.py", "from dualpath_jax.launch.local import LocalCluster", "rollout may import"),
        ("dualpath_jax/launch/a.py", "import dualpath_jax.replay.main", "launch may import"),
        ("dualpath_jax/replay/a.py", "from dualpath_jax import LocalCluster", "is for its users"),
        ("dualpath_jax/engine/a.py", "if TYPE_CHECKING:\n    from dualpath_jax.launch import x", "engine may import"),
    ],
)
def test_an_arrow_the_other_way_is_found(file, source, reason):
    assert [True for found in imports_of(file, source) if reason in (fault(found) or "")] == [True]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("dualpath_storage/a.py", "import numpy\nfrom dualpath_configs import ClusterSpec"),
        ("dualpath_jax/models/a.py", "from flax import nnx\nfrom dualpath_jax.models.b import c"),
        ("dualpath_jax/cluster/a.py", "from .b import c\nfrom dualpath_jax.engine.base import Stage"),
        ("dualpath_jax/replay/a.py", "from dualpath_jax.launch.local import LocalCluster"),
        ("dualpath_jax/__init__.py", "from dualpath_jax.launch.local import LocalCluster"),
    ],
)
def test_arrows_the_right_way_are_fine(file, source):
    assert [fault(found) for found in imports_of(file, source) if fault(found)] == []


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "from os import environ", "import os as o\ndef f():\n    o.getenv('A')"]
)
def test_a_look_at_the_environment_is_found(source):
    assert environment_lines(source)
