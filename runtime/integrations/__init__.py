"""Artifacts behind the interfaces of libraries that need PyTorch: transformers' ``generate`` and lm-evaluation-harness.

``hybridge.load`` and ``hybridge lm-eval`` import these modules at their call; nothing else may. They import runtime/text and
runtime/binding, and the only PyTorch in runtime/.
"""
