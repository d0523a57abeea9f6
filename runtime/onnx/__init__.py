"""Artifacts for onnxruntime, as programs in Python under the native core."""
