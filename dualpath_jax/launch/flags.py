"""What the commands' flags share: config with overrides, and errors in one line with exit status 2."""

import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags

from dualpath_configs import ClusterSpec, SpecError, load_cluster
from dualpath_configs.resolved import read_resolved

USAGE_ERROR = 2


class UsageError(Exception):
    """Something in the command line or in the files that it names is wrong; the text is one line."""


def define_config_flags() -> None:
    """`--config` and `--set`."""
    flags.DEFINE_string("config", "local_1p1d", "Preset name, or a TOML file with a cluster spec.")
    flags.DEFINE_multi_string("set", [], "Override one key of the spec: --set=network.snic_bytes_per_s=3e7")


def cluster_from_flags() -> ClusterSpec:
    """The spec that the flags name. Raises UsageError."""
    name = flags.FLAGS.config
    try:
        if name.endswith(".json"):
            return read_resolved(Path(name))
        return load_cluster(name, dict(_override(text) for text in flags.FLAGS.set))
    except SpecError as error:
        raise UsageError(str(error)) from error


def _override(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set={text}: expected key=value, such as --set=engines_per_node=4")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value  # a bare word is a string


def run_command(main: Callable[[], int]) -> None:
    """Parse flags and run `main`; wrong input is one line on standard error and exit status 2."""

    def guarded(argv: Sequence[str]) -> int:
        try:
            if len(argv) > 1:
                raise UsageError(f"unexpected argument {argv[1]!r}: every option is a flag, see --help")
            return main()
        except UsageError as error:
            print(f"{Path(argv[0]).name}: {error}", file=sys.stderr)
            return USAGE_ERROR
        except KeyboardInterrupt:
            print(f"{Path(argv[0]).name}: interrupted", file=sys.stderr)
            return 130

    app.run(guarded, flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        return app.parse_flags_with_usage(list(argv)) if "--help" in argv or "-h" in argv else flags.FLAGS(list(argv))
    except flags.Error as error:
        print(f"{Path(argv[0]).name}: {' '.join(str(error).split())}; see --help", file=sys.stderr)
        sys.exit(USAGE_ERROR)
