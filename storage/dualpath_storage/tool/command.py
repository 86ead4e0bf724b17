"""Look at, check, thin out and copy stores of KV blocks, whatever their layouts, while clusters use them or not.

Blocks say what they are, so no model and no config is needed.

Exit status: 0; 1 where a block is damaged, or there was less to evict than asked; 2 with one line on standard error
where the command or a store is wrong; 130 after Ctrl-C. What was done by then stays done, and no block is left in part.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, final

from dualpath_storage.medium import Medium
from dualpath_storage.open import open_medium
from dualpath_storage.store import StoreError
from dualpath_storage.tool.blocks import Damage
from dualpath_storage.tool.copy import copy
from dualpath_storage.tool.evict import evict
from dualpath_storage.tool.survey import entries, survey
from dualpath_storage.tool.verify import verify

NAME = "dualpath-store"
NOT_ALL_WELL, USAGE_ERROR, INTERRUPTED = 1, 2, 130
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d+)([kMGT]?)B?").fullmatch


def run() -> NoReturn:
    """The command `dualpath-store`."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one subcommand and return its exit status; SystemExit for `--help` and for wrong arguments."""
    try:
        given = _given(arguments)
        status: int = given.function(given)
        sys.stdout.flush()
    except StoreError as error:
        return _complain(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(str(error), USAGE_ERROR)
    return status


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return _parser().parse_args(arguments)
    except SystemExit:
        sys.stdout.flush()  # here, where a reader of the help who is gone already is expected
        raise


@final
class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for everything else that is wrong."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    """By argparse: subcommands have arguments of their own, which flags that a whole process shares cannot say."""
    parser = _Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="stat|ls|verify|evict|copy")
    for name, function, text in (
        ("stat", _stat, "blocks, bytes, layouts, the trie, and damaged headers"),
        ("ls", _ls, "a line a block: key, parent, bytes"),
        ("verify", _verify, "read every block and list the damaged ones"),
        ("evict", _evict, "delete blocks: leaves of the trie first, least recently used among them"),
        ("copy", _copy, "copy what is missing in the target; verified on the way, taken up where it stopped"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        command.add_argument("url", help="file:///folder, or what else storage.url may be")
        command.add_argument("--json", action="store_true", help="print JSON; ls: a line a block")
        if name == "ls":
            command.add_argument("--limit", type=_count, help="print no more blocks than that")
        elif name == "verify":
            command.add_argument("--delete", action="store_true", help="delete damaged blocks")
        elif name == "evict":
            command.add_argument("--bytes", type=_size, required=True, help="free at least that much, such as 20GB")
        elif name == "copy":
            command.add_argument("target", help="URL of the store to copy to; it is made where it is missing")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 0 or more")
    return int(text)


def _size(text: str) -> int:
    if not (match := _SIZE(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes, such as 5000000, 500MB or 20GB")
    return int(match[1]) * _UNITS[match[2]]


@contextlib.contextmanager
def _opened(url: str, *, must_exist: bool = True) -> Iterator[Medium]:
    medium = open_medium(url, must_exist=must_exist)
    try:
        yield medium
    finally:
        medium.close()


def _stat(given: argparse.Namespace) -> int:
    with _opened(given.url) as medium:
        found = survey(medium)
    if given.json:
        print(json.dumps(found.as_json()))
        return NOT_ALL_WELL if found.damaged_headers else 0
    print(f"{found.blocks} blocks, {found.size_bytes} bytes")
    print(f"trie: {found.roots} roots, {found.leaves} leaves, {found.depth_blocks} blocks deep")
    for one in found.layouts:
        print(f"layout {one.layout}: {one.blocks} blocks of {one.block_bytes} bytes in {one.layers} layers")
    print(f"{len(found.damaged_headers)} damaged headers")
    _list_damaged(found.damaged_headers)
    return NOT_ALL_WELL if found.damaged_headers else 0


def _ls(given: argparse.Namespace) -> int:
    status = 0
    with _opened(given.url) as medium, contextlib.closing(entries(medium)) as found:
        for entry in itertools.islice(found, given.limit):
            if isinstance(entry, Damage):
                status = NOT_ALL_WELL
                print(json.dumps(entry.as_json()) if given.json else f"{entry.key.hex()} damaged: {entry.reason}")
                continue
            fields = {"key": entry.key.hex(), "parent": entry.parent.hex(), "bytes": entry.size_bytes}
            print(json.dumps(fields) if given.json else " ".join(map(str, fields.values())))
    return status


def _verify(given: argparse.Namespace) -> int:
    with _opened(given.url) as medium:
        found = verify(medium, delete=given.delete)
    if given.json:
        print(json.dumps(found.as_json()))
    else:
        _list_damaged(found.damaged)
        gone = f", {found.deleted} of them deleted" if given.delete else ""
        print(f"{found.blocks} blocks of {found.size_bytes} bytes verified, {len(found.damaged)} damaged{gone}")
    return NOT_ALL_WELL if found.damaged else 0


def _evict(given: argparse.Namespace) -> int:
    with _opened(given.url) as medium:
        gone = evict(medium, given.bytes)
    if given.json:
        print(json.dumps(gone.as_json()))
    else:
        left = f"{gone.left_blocks} blocks of {gone.left_bytes} bytes are left"
        print(f"{gone.blocks} blocks of {gone.size_bytes} bytes evicted; {left}")
    return 0 if gone.size_bytes >= given.bytes else NOT_ALL_WELL


def _copy(given: argparse.Namespace) -> int:
    with _opened(given.url) as source, _opened(given.target, must_exist=False) as target:
        done = copy(source, target)
    if given.json:
        print(json.dumps(done.as_json()))
    else:
        _list_damaged(done.damaged)
        rest = f"{done.skipped} were there, {len(done.damaged)} are damaged and were left out"
        print(f"{done.blocks} blocks of {done.size_bytes} bytes copied; {rest}")
    return NOT_ALL_WELL if done.damaged else 0


def _list_damaged(damaged: Sequence[Damage]) -> None:
    for bad in damaged:
        print(f"{bad.key.hex()} {bad.reason}")


def _complain(text: str, status: int) -> int:
    print(f"{NAME}: {' '.join(text.split())}", file=sys.stderr)
    return status
