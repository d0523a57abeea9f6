"""hybridge: hybrid language models on a device, exported once, run with speculative rollback.

The packages live at the repository's root (``cache``, ``export``, ``runtime``); this folder gives them their import name.
"""

__version__ = "0.1.0"
