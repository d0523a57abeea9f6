"""The kernels in the instruction sets below this processor's best, by tests that the best has passed."""

import os
import subprocess
import sys

import pytest
from checkout import CHECKOUT

from hybridge.runtime.kernels.library import CHOICE, available_instruction_sets

FILES = [CHECKOUT / "tests/runtime/kernels" / f"test_{name}.py" for name in ("block_linear", "attention_kernel", "small_kernels")]
CHOSEN = "twin or int8 or rms_norm or rotary or permute or where"


@pytest.mark.slow
def test_they_are_right_as_well() -> None:
    for name in available_instruction_sets()[:-1]:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-k", CHOSEN, *FILES]
        done = subprocess.run(
            words, env=os.environ | {CHOICE: name}, cwd=CHECKOUT, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, name + done.stdout[-4000:]
