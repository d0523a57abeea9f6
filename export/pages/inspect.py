"""``hybridge inspect --html``: what an artifact is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hybridge.export.pages.layer_plan import layer_plan, totals
from hybridge.export.pages.page import page
from hybridge.runtime.artifacts.manifest import Manifest, TensorEntry


def inspect_page(
    manifest: Manifest, title: str, summary: Sequence[tuple[str, str]], bits: Sequence[tuple[str, int, int]]
) -> str:
    """Return the page of an artifact. summary: names and values of its table; bits: kinds of weights, their bits and number."""
    return page(
        "inspect.html.jinja",
        {
            "title": title,
            "summary": summary,
            "plan": layer_plan(manifest.layers),
            "totals": totals(manifest.layers),
            "methods": list(_methods(manifest)),
            "bits": bits,
        },
    )


def _methods(manifest: Manifest) -> Iterator[dict[str, Any]]:
    for name, method in manifest.methods.items():
        yield {
            "name": manifest.program_method(name),
            "takes": _tensors(method.inputs),
            "gives": _tensors(method.outputs),
            "operators": method.operators,
            "delegates": ", ".join(f"{count} × {backend}" for backend, count in method.delegates.items()),
        }


def _tensors(entries: Sequence[TensorEntry]) -> str:
    return " ".join(f"{entry.dtype}{entry.shape}" for entry in entries)
