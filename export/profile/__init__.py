"""Measure where the time of an artifact's methods goes, by parts of the model (``parts.py``) or for a device (``device.py``).

May import layers' operators, pinned modules and the runtime; knows nothing of checkpoints.
"""
