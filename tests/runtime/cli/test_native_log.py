"""Native libraries' log lines stay off the terminal, and nothing else is kept from it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hybridge.runtime.native_log import without_native_log

LOG = b"[cpuinfo_utils.cpp:71] Reading file /sys/devices/soc0/image_version\n"
RUN = """
import sys, threading
from pathlib import Path
from hybridge.runtime import Session

def generate():
    list(Session.load(Path(sys.argv[1])).generate([1, 2, 3], max_new_tokens=3))

threads = [threading.Thread(target=generate) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("the end", file=sys.stderr)
"""


def test_only_the_log_is_kept_away(capfd: pytest.CaptureFixture[str]) -> None:
    with without_native_log():
        os.write(2, b"Error in cpuinfo: processor is not known\n" + LOG)
        os.write(2, b"another thread's\n50 %" + LOG + b" done\n")
    assert capfd.readouterr().err == "another thread's\n50 % done\n"


def test_inner_blocks_and_errors_leave_the_redirection_to_the_outer_one(capfd: pytest.CaptureFixture[str]) -> None:
    with without_native_log():
        with pytest.raises(KeyError), without_native_log():
            raise KeyError
        os.write(2, LOG)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_overlapping_blocks_of_two_threads_give_the_terminal_back(capfd: pytest.CaptureFixture[str]) -> None:
    """The first to enter leaves first: what the second found as standard error was the first one's file."""
    entered, left = threading.Event(), threading.Event()

    def second() -> None:
        with without_native_log():
            entered.set()
            left.wait()
            os.write(2, LOG)

    with without_native_log():
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait()
    left.set()
    thread.join()
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_no_file_for_the_log_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hybridge.runtime.native_log.tempfile.TemporaryFile", full)
    with without_native_log():
        os.write(2, b"seen\n")
    assert capfd.readouterr().err == "seen\n"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("closed", ["", "2>&-"])
def test_loading_and_running_in_threads_is_silent(artifact: Path, closed: str) -> None:
    """The processor is read at the first use of the thread pool; a process has one such use, so it must be a new one."""
    shell = ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, RUN, str(artifact)]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "" if closed else "the end\n")


UNFILTERED = """
import contextlib, sys
from hybridge.runtime.binding import library, model

library.without_native_log = model.without_native_log = contextlib.nullcontext
library.load().hybridge_print_log(1)  # as it is for an app in C
print("start", file=sys.stderr)
from hybridge.runtime import Session
Session.load(sys.argv[1]).decode(1)
"""


def test_a_healthy_start_logs_nothing(artifact: Path) -> None:
    """ExecuTorch logged an error for each method that was looked for and is not there, such as a drafter's."""
    done = subprocess.run([sys.executable, "-c", UNFILTERED, artifact], capture_output=True, text=True, check=True, timeout=300)
    lines = done.stderr.partition("start\n")[2].splitlines()
    # ExecuTorch's Python extension, which no app has, listens to the log as the core does, and is told that it is the second.
    assert [line for line in lines if "register_pal() called multiple times" not in line] == []
