"""Write artifacts: ``PteWriter`` for ExecuTorch and ``OnnxWriter`` for onnxruntime, behind ``hybridge.export.api.Writer``.

``folder.py`` has what both formats share: the output folder and the tokenizer's files. May import the rooms below (program,
drafters, model, lower, quantize, source); knows nothing of checks, commands and consoles.
"""
