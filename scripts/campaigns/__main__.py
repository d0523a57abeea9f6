"""List the campaigns, or run one: ``scripts/trust NAME [options]``. Its exit code is 1 if anything was wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from campaigns import ROOT

SCRIPTS = ("cross-wheel", "licenses", "try-wheel")
"""Campaigns that are shell scripts; the others are modules."""
CAMPAIGNS: Mapping[str, str] = {
    "soak": "random operations on real artifacts, compared with the eager model",
    "fuzz": "hostile input for kernels and for every file that hybridge opens",
    "faults": "power cuts at every moment of every writer of files that users keep",
    "broken-features": "break a feature at a time: the default tests must notice each",
    "conformance": "every family as a real program; writes docs/conformance.md",
    "same-bits": "how many outputs and logits depend on the blocks that their tokens were read in",
    "same-texts": "greedy tokens that depend on drafters, or on what was read again",
    "quality": "the cost of each rounding and recipe on a trained model",
    "real-models": "published models beside llama.cpp: numbers, texts, speed",
    "gguf-files": "GGUF files of every architecture, mix of blocks and tokenizer, compared with llama.cpp",
    "bench": "speed and size beside llama.cpp, ONNX and eager PyTorch; drafters by acceptance",
    "serve-bench": "the server: checkpoints, grammars, turns",
    "clients": "every client of an artifact, compared with the same greedy tokens",
    "server-clients": "the server, asked by eight clients that people use",
    "cross-wheel": "build the wheel for Linux on ARM64 here, and load its kernels by emulation",
    "try-wheel": "install a wheel and run its commands, without a compiler",
    "licenses": "write docs/licenses.md",
    "page-libraries": "fetch the libraries of the chat page again, by hash",
    "screenshots": "take the pictures of README.md and docs/pages.md",
}


def main() -> int:
    """List the campaigns, or run the one that is named first with the other arguments."""
    name, *words = sys.argv[1:] or [""]
    if not name:
        print("\n".join(f"{each:16} {summary}" for each, summary in CAMPAIGNS.items()))
        return 0
    if name not in CAMPAIGNS:
        print(f"there is no campaign {name!r}; choose of: {', '.join(CAMPAIGNS)}", file=sys.stderr)
        return 2
    module = [sys.executable, "-m", f"campaigns.{name.replace('-', '_')}"]
    command = [str(ROOT / "scripts" / "campaigns" / name)] if name in SCRIPTS else module
    threads = {"OMP_NUM_THREADS": "1"} if name in ("faults", "broken-features") else {}
    return subprocess.run([*command, *words], env=os.environ | threads, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
