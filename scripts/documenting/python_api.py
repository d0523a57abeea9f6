"""The page of the Python interface: the names that ``hybridge`` and ``hybridge.runtime`` promise, for mkdocstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HEAD = """# Python API

What `hybridge` and `hybridge.runtime` have by name; [Python](../python.md) shows how it is used. Axes in shapes are capital
letters: V, the vocabulary; T, tokens; seconds and bytes are named where they are meant.

"""
ELSEWHERE = ("hybridge.runtime.core.checkpoint.Checkpoint", "hybridge.runtime.core.checkpoint.PrefixCache")
"""What docs/python.md imports from the module itself."""


def page(root: Path) -> str:
    """Return the Markdown."""
    found = {
        **dict(_promised(root / "src" / "hybridge" / "__init__.py")),
        **dict(_promised(root / "runtime" / "__init__.py")),
        **{path.rpartition(".")[2]: path for path in ELSEWHERE},
    }
    return HEAD + "\n".join(f"::: {path}\n" for path in ("hybridge.load", *found.values()))


def _promised(module: Path) -> Iterator[tuple[str, str]]:
    """Yield each name that a package imports for type checkers, and where it is."""
    promised = next(node for node in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    for node in promised.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hybridge."):
            yield from ((each.name, f"{node.module}.{each.name}") for each in node.names)
