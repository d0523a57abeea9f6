"""hybridge's own kernels for ExecuTorch in C++, the compiler that builds them, and their library.

``library.load`` registers the kernels with ExecuTorch's runtime.
Their schemas and references are in ``hybridge.export.operators``.
"""
