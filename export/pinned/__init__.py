"""What hybridge assumes of the pinned libraries beyond what they document: their private names, and all patches of them.

One file for each library. ``hybridge.runtime.pinned`` is the same for what runs on a device. ``tests/test_pins*.py`` hold every
assumption against the installed versions, and find private names that are used anywhere else.
"""
