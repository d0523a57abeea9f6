"""The start of a Python process that has nothing of the extra ``export``."""

from __future__ import annotations

ABSENT = ("torch", "transformers", "torchao", "executorch", "sentencepiece", "safetensors", "tokenizers", "onnx", "onnxruntime")
WITHOUT_EXPORT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT} and name != "executorch":  # whose folder has the shared libraries
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""Refuses to import what the extra brings."""
WITHOUT_EXECUTORCH = """
import importlib.metadata
found = importlib.metadata.version

def version(name):
    if name == "executorch":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

importlib.metadata.version = version
"""
"""Lets ExecuTorch's wheel look as if it were not installed."""
