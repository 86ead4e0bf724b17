"""Starting processes, and being interrupted meanwhile."""

import signal
import threading

import pytest

from dualpath_jax.launch.processes import ClusterError, RoleProcess, interrupt_deferred


def test_an_interrupt_comes_when_the_block_is_done():
    done = []

    def interrupted() -> None:
        with interrupt_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("begun")
            signal.raise_signal(signal.SIGINT)
            done.append("known")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["begun", "known"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_within_is_raised_as_it_is():
    with pytest.raises(OSError, match="no room"), interrupt_deferred():
        raise OSError("no room")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_need_no_deferral():
    entered = []

    def enter() -> None:
        with interrupt_deferred():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]


def test_a_process_that_ends_before_it_serves_is_named_with_its_last_words(tmp_path):
    process = RoleProcess("decode-7", ["--role=decode", "--set=storage.url=file:///x"], tmp_path)
    try:
        with pytest.raises(ClusterError, match=r"decode-7 ended with status 2: .*--scheduler is empty"):
            process.address(deadline_s=30)
    finally:
        process.stop()
    process.stop()  # twice is fine
    assert not process.running


def test_a_process_that_takes_too_long_is_named(tmp_path):
    flags = ["--role=decode", "--set=storage.url=file:///x", "--scheduler=127.0.0.1:1", "--node_id=a"]
    process = RoleProcess("decode-0", flags, tmp_path)
    try:
        with pytest.raises(ClusterError, match=r"decode-0 is not ready after 0\.1 s; its log ends: nothing"):
            process.address(deadline_s=0.1)
    finally:
        process.kill()
        process.stop()
