"""The harness for a device, and what holds it against the same oracle as Python's.

``hybridge/session.h`` is what an app includes. ``replay.cpp`` is a command over it, which ``command.build`` compiles against
the installed ExecuTorch, and whose sessions ``NativeProcess`` drives.
"""

from hybridge.runtime.native.process import NativeProcess
from hybridge.runtime.native.session import NativeDrafter, NativeSession

__all__ = ["NativeDrafter", "NativeProcess", "NativeSession"]
