"""Write artifacts: ``PteWriter`` for ExecuTorch and ``OnnxWriter`` for onnxruntime, behind ``hybridge.export.api.Writer``.

``folder.py`` has what both formats share: the output folder, the tokenizer's files and the manifest. ``methods.py`` has
the exported methods over one state. May import the rooms below (drafters, model, lower, quantize, source); knows
nothing of checks, commands and consoles.
"""
