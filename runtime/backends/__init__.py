"""Backends run the methods of an artifact over one state: ExecuTorch, onnxruntime, or a plain text."""
