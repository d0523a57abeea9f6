"""Give weights fewer bits: choose how many (``bits.py``), round (``rounding.py``, ``gptq.py``), and replace layers.

``quantize.py`` is the entrance: it resolves the options for a checkpoint, and packs layers for our kernels;
``stock.py`` does for XNNPACK's. May import source, layers and operators; knows nothing of drafters, methods and
writers.
"""
