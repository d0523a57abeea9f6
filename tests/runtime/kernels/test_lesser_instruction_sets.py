"""The kernels without any special instruction, by tests that the processor's best set has passed.

test_other_processors.py has every set.
"""

import os
import subprocess
import sys

import pytest
from checkout import CHECKOUT

from hybridge.runtime.kernels.library import CHOICE, available_instruction_sets

FILES = [CHECKOUT / "tests/runtime/kernels" / f"test_{name}.py" for name in ("block_linear", "small_kernels")]


@pytest.mark.slow
def test_they_are_right_as_well() -> None:
    assert available_instruction_sets()[0] == "plain"
    chosen = "twin or norm or rotary or where"
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *FILES]
    done = subprocess.run(
        words, env=os.environ | {CHOICE: "plain"}, cwd=CHECKOUT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
