"""What an app of the tests is linked to: the wheel's libraries, and our kernels as they are built on this machine."""

from __future__ import annotations

from hybridge.runtime.kernels import compiling, library
from hybridge.runtime.pinned import OPERATORS_AND_BACKENDS


def app_links() -> list[str]:
    """Return the linker's flags; they come behind the objects."""
    kernels = library.build()
    return [*compiling.link_flags(*OPERATORS_AND_BACKENDS), str(kernels), f"-Wl,-rpath,{kernels.parent}"]
