"""The native core: what an app includes, links or calls, and the session through which Python's checks drive it.

``hybridge/session.h`` is for C++, ``hybridge/hybridge.h`` for everything that calls C; ``hybridge.runtime.core`` is Python's.
"""

from hybridge.runtime.native.session import NativeDrafter, NativeSession

__all__ = ["NativeDrafter", "NativeSession"]
