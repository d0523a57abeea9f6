"""hybridge's own ExecuTorch kernels: for each, a schema and a reference in torch (``*.py``) and the kernel (``*.cpp``).

Importing one of the Python files registers its operators with torch, for export and eager use; ``library.load`` registers the
compiled kernels with ExecuTorch's runtime. A harness only needs the latter.
"""
