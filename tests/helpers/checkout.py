"""Where the files of this repository are."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
CASES = CHECKOUT / "tests" / "helpers" / "references" / "cases"
"""Lists of cases as JSON."""
HELPERS = [CHECKOUT / "tests" / "helpers" / folder for folder in ("", "checkpoints", "references", "programs")]
"""The folders in which helpers are found by their bare names."""
OLDER_ARTIFACT = CHECKOUT / "tests" / "artifacts" / "executorch-1.4.1"
"""A small artifact of ExecuTorch 1.4.1, committed because no later version can make it again."""
