"""What hybridge assumes of the pinned libraries beyond what they document: their private names, and all patches of them.

One file for each library. ``hybridge.runtime.pinned`` is the same for what runs on a device. ``tests/test_pins.py`` holds every
assumption against the installed versions, and finds private names that are used anywhere else.
"""
