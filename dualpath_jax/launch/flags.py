"""What the commands' flags share: config with overrides, and errors in one line with exit status 2."""

import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags

from dualpath_configs import ClusterSpec, SpecError, load_cluster
from dualpath_configs.resolved import read_resolved
from dualpath_jax.launch.lifetime import INTERRUPTED

USAGE_ERROR = 2


class UsageError(Exception):
    """Something in the command line or in the files that it names is wrong; the text is one line."""


def define_config_flags() -> None:
    """`--config` and `--set`."""
    flags.DEFINE_string("config", "local_1p1d", "Preset name, or a TOML file with a cluster spec.")
    flags.DEFINE_multi_string("set", [], "Override one key of the spec: --set=network.snic_bytes_per_s=3e7")


def cluster_from_flags() -> ClusterSpec:
    """The spec that the flags name. Raises UsageError."""
    name, overrides = flags.FLAGS.config, flags.FLAGS.set
    if name.endswith(".json") and overrides:
        raise UsageError(f"--set={overrides[0]}: {name} is whole already: expected no overrides beside it")
    try:
        if name.endswith(".json"):
            return read_resolved(Path(name))
        return load_cluster(name, dict(parse_override(text) for text in overrides))
    except SpecError as error:
        raise UsageError(str(error)) from error


def parse_override(text: str) -> tuple[str, object]:
    """`key=value` with a value as TOML writes it, or a bare word, which is a string. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set={text}: expected key=value, such as --set=engines_per_node=4")
    try:
        table = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    return (key, table["value"]) if len(table) == 1 else (key, value)


def run_command(main: Callable[[], int]) -> None:
    """Parse flags and run `main`; wrong input is one line on standard error and exit status 2."""

    def guarded(argv: Sequence[str]) -> int:
        try:
            if len(argv) > 1:
                raise UsageError(f"unexpected argument {argv[1]!r}: every option is a flag, see --help")
            status = main()
            write_out("")
            return status
        except UsageError as error:
            print(f"{Path(argv[0]).name}: {error}", file=sys.stderr)
            return USAGE_ERROR
        except KeyboardInterrupt:
            print(f"{Path(argv[0]).name}: interrupted", file=sys.stderr)
            return INTERRUPTED

    app.run(guarded, flags_parser=lambda argv: _parse(argv, main))


def write_out(text: str) -> None:
    """Print what is left, and `text`; whoever reads it may have seen enough and be gone, as `| head` is."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(argv: Sequence[str], main: Callable[[], int]) -> list[str]:
    if any(argument in ("--help", "-help", "-h") for argument in argv[1:]):
        write_out(f"{_help(Path(argv[0]).name, main)}\n")
        sys.exit(0)
    try:
        return flags.FLAGS(list(argv))
    except flags.Error as error:
        print(f"{Path(argv[0]).name}: {' '.join(str(error).split())}; see --help", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def _help(name: str, main: Callable[[], int]) -> str:
    """What the command is for, and its own flags."""
    module = sys.modules[main.__module__]
    ours = [name for name in flags.FLAGS.flags_by_module_dict() if name.startswith("dualpath_jax.")]
    modules = dict.fromkeys([module.__name__, *ours])
    parts = [flags.FLAGS.module_help(part).strip("\n") for part in modules]
    own = [part.partition("\n")[2] for part in parts]  # less the module's name
    return f"{module.__doc__}\n\nUsage: {name} [--flag=value ...]\n\n" + "\n".join(own)
