"""Generates the protocol-buffer modules beside their .proto files; `--out DIR` writes them elsewhere."""

import argparse
import importlib.resources
import pathlib

from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parent.parent
# (import root, .proto below it): the generated modules import each other by this path.
PROTOS = (
    ("scheduler", "dualpath_scheduler/service/scheduler.proto"),
    (".", "dualpath_jax/transfer/transfer.proto"),
    (".", "dualpath_jax/cluster/peer.proto"),
    (".", "dualpath_jax/engine/group/group.proto"),
)


def generate(out: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Runs protoc for every file; returns the generated modules' paths. Raises RuntimeError with protoc's status."""
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    generated = []
    for base, proto in PROTOS:
        target = (out or ROOT) / base
        target.mkdir(parents=True, exist_ok=True)
        arguments = ["protoc", f"-I{ROOT / base}", f"-I{well_known}", proto]
        arguments += [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
        status = protoc.main(arguments)
        if status:
            raise RuntimeError(f"protoc failed on {proto} with status {status}")
        stem = target / proto.removesuffix(".proto")
        generated += [stem.parent / f"{stem.name}{suffix}" for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")]
    return generated


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, help="folder to write below (default: beside the sources)")
    for path in generate(parser.parse_args().out):
        print(path)
