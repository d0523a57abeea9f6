"""Programs over the native core in a process of their own, in which PyTorch cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

BEGIN = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "executorch.extension")))
from pathlib import Path
import numpy as np
from hybridge import errors
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime import OwnDrafter, DraftModel, Model, PromptLookup, Proposal, Sampling, Session
model = Model.open(open_artifact({artifact!r}))
session = Session(model)
"""


def in_core(artifact: Path, program: str, **environment: str) -> str:
    """Run a program that has a ``model`` and a ``session`` of it; what it prints."""
    code = BEGIN.format(artifact=str(artifact)) + dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
