"""Assumptions about the pinned libraries beyond their documentation: private names, and all patches of them.

One file for each library; ``hybridge.runtime.pinned`` is the device half. ``tests/repository/test_pins*.py`` check every
assumption against the installed versions, ``tests/repository/test_imports.py`` finds private names that are used elsewhere.
"""
