"""Running the system's network programs, with errors in one line."""

import subprocess

DEADLINE_S = 20.0

_REMEDIES = {
    "Operation not permitted": "run it as root, or with CAP_NET_ADMIN",
    "Permission denied": "run it as root, or with CAP_NET_ADMIN",
    "qdisc kind is unknown": "the kernel has no such queueing discipline: load its module (sch_htb, sch_tbf)",
    "Failed to load TC action module": "the kernel has no such filter: load its module (cls_u32)",
    "TC classifier not found": "the kernel has no such filter: load its module (cls_u32)",
    "Cannot find device": "`ip link` lists what there is",
}


class NetworkError(Exception):
    """A network that is not as it was asked to be; the text is one line."""


def network_command(*command: str, lines: str = "") -> str:
    """Run a program, with `lines` as its standard input, and return what it says.

    Raises NetworkError where it is missing, fails, or takes longer than `DEADLINE_S`.
    """
    try:
        done = subprocess.run(
            command,
            input=lines,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            start_new_session=True,  # a Ctrl-C is for whoever runs it, who lets it end
        )
    except FileNotFoundError as error:
        raise NetworkError(f"the program {command[0]} is missing: install it (Debian: iproute2, util-linux)") from error
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"{' '.join(command)}: not done after {DEADLINE_S:g} s") from error
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {_explained(done.stderr)}")
    return done.stdout


def _explained(said: str) -> str:
    """The first thing that it said, and the remedy where one is known."""
    first = next((line.strip() for line in said.splitlines() if line.strip()), "failed, and said nothing")
    remedy = next((remedy for text, remedy in _REMEDIES.items() if text in said), "")
    return first + (f": {remedy}" if remedy else "")
