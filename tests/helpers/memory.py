"""Memory in a process of its own: one that ran other tests first may use again what they freed, and grow by nothing.

``python memory.py zeros`` and ``python memory.py xnnpack model.pte decode verify`` print bytes as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def measured(*words: object) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def given_back() -> dict[str, int]:
    import torch
    from hybridge.runtime.backends.zero_pages import release_pages

    inner = torch.ones(64 << 20, dtype=torch.uint8)[1000:-1000].zero_()
    before = own_bytes()
    release_pages(inner)
    return {"given back": before - own_bytes()}


def packed_weights(program: str, *methods: str) -> dict[str, int]:
    """Growth by the first load of ``methods``, which packs the weights, and by the second."""
    from hybridge.runtime.backends.xnnpack_cache import share_packed_weights

    from hybridge.runtime.core.library import executorch_runtime

    assert share_packed_weights()
    bytes_, loaded = [own_bytes()], []
    for _ in range(2):
        opened = executorch_runtime()._load_program(program)
        loaded.append([opened.load_method(name) for name in methods])
        bytes_.append(own_bytes())
    return {"first": bytes_[1] - bytes_[0], "second": bytes_[2] - bytes_[1]}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    print(json.dumps(given_back() if what == "zeros" else packed_weights(*words)))  # noqa: T201
