"""The native core in Python: ``hybridge.h`` over ctypes and numpy, without PyTorch.

``library.load`` finds or compiles libhybridge from ``runtime/native``; ``session`` is what a caller holds.
"""
