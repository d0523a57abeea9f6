"""Sessions in many loads, threads and children of a process, and the C interface under the thread sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_programs import native_program
from store import demo_folder

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
PLAY = """
import gc, os, sys
from pathlib import Path
import numpy as np
from hybridge.runtime import Session

def play(session):
    session.reset()
    session.prefill(range(3, 13))
    session.verify([5, 6, 7])
    session.commit(2)
    return session.decode(9).copy()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

session = Session.load(sys.argv[1])
expected = play(session)
"""
LOADS = (
    PLAY
    + """
sizes = []
for _ in range(120):
    assert np.array_equal(play(Session.load(sys.argv[1])), expected)
    gc.collect()
    sizes.append(resident())
assert min(sizes[-30:]) <= 1.02 * min(sizes[20:50]), sizes
"""
)
CHILDREN = (
    PLAY
    + """
after = session.decode(4).copy()
play(session)
for child in range(2):
    pid = os.fork()
    if pid == 0:
        same = np.array_equal(session.decode(4), after) and np.array_equal(play(Session.load(sys.argv[1])), expected)
        os._exit(0 if same else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert np.array_equal(session.decode(4), after)
"""
)


@pytest.mark.parametrize("code", [LOADS, CHILDREN], ids=["memory of many loads", "children of a process that has computed"])
def test_in_a_process(code: str, kernels_artifact: Path) -> None:
    """In a process of its own: other tests have started threads, which a fork would lose."""
    words = [sys.executable, "-c", code, str(kernels_artifact)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr


PROMPT = ("100", "101", "102", "103", "104", "100", "101", "102", "103", "104", "100", "101")
SANITIZER = "ignore_noninstrumented_modules=1 halt_on_error=1"
"""ExecuTorch is not compiled for the sanitizer, which cannot see how its threads wait for each other."""


@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's options are those of Linux")
def test_the_c_interface_has_no_data_races(tmp_path: Path) -> None:
    """Four threads call all of it: two models, a draft model, chats, checkpoints, closes and cancels in the middle."""
    models = demo_folder() / "hybridge-demo", demo_folder() / "hybridge-demo-draft" / "model.pte"
    words = [native_program("threads_sanitized"), *models, tmp_path, 40, *PROMPT]
    environment = os.environ | {"TSAN_OPTIONS": SANITIZER}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
