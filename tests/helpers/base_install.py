"""Python's start in a process that has what ``pip install hybridge`` brings, and nothing of the extra ``export``."""

from __future__ import annotations

ABSENT = ("torch", "transformers", "torchao", "executorch", "sentencepiece", "safetensors", "onnx", "onnxruntime")
WITHOUT_EXPORT = f"""
import importlib.metadata, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

found = importlib.metadata.version

def version(name):
    if name in {ABSENT}:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

sys.meta_path.insert(0, Absent())
importlib.metadata.version = version
"""
"""Refuses to import them, and finds none of them installed."""
