"""The Python engine of hybridge 0.2, for ``scripts/trust native-speed --old``: it runs with that version's files on PYTHONPATH.

A request a line on stdin, ``[WAY, PROMPT, TOKENS]``; an answer a line on stdout, ``[TOKENS, SECONDS]``.
Usage: engine_of_0_2.py THREADS TARGET DRAFT DSPARK, which are folders of artifacts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).parent]  # its names are not for imports

from hybridge.runtime.drafters.block_drafter import BlockDrafter  # noqa: E402
from hybridge.runtime.drafters.draft_model import DraftModel  # noqa: E402

import hybridge  # noqa: E402
from hybridge.runtime import PromptLookup, Session, open_artifact  # noqa: E402


def main(threads: int, *folders: Path) -> None:
    """Answer until stdin ends. What libraries print is no answer."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    hybridge.set_threads(threads)
    session, block = Session.load(folders[0]), Session.load(folders[2])
    ways: dict[str, tuple[Any, Any]] = {
        "plain": (session, None),
        "prompt lookup": (session, PromptLookup()),
        "draft model": (session, DraftModel.load(folders[1], open_artifact(folders[0]), session)),
        "multi-token prediction": (session, BlockDrafter(session)),
        "DSpark": (block, BlockDrafter(block)),
    }
    gc.freeze()
    for line in sys.stdin:
        way, prompt, count = json.loads(line)
        chosen, drafter = ways[way]
        chosen.reset()
        began = time.perf_counter()
        tokens = list(chosen.generate(prompt, max_new_tokens=count, drafter=drafter))
        print(json.dumps([tokens, time.perf_counter() - began]), file=answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))
