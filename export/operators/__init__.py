"""hybridge's own operators for PyTorch: for each a schema and a reference, which tracing and eager use need.

Importing a module registers its operators with PyTorch. ExecuTorch's runtime calls the C++ in ``hybridge.runtime.kernels``.
"""
