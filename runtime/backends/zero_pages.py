"""Give back memory that holds nothing but zeros: the rows of a long context that no token has reached."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor


def release_pages(zeros: Tensor) -> None:
    """Let the whole pages of a tensor of zeros, in memory of the process's own, exist only once they are written to.

    The runtime clears its memory when it loads a program, and so all of it would be resident. Linux answers such pages with
    zeros, whatever they held; elsewhere nothing is done.
    """
    page = mmap.PAGESIZE
    begin = -(-zeros.data_ptr() // page) * page
    end = (zeros.data_ptr() + zeros.nbytes) // page * page
    if sys.platform == "linux" and begin < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
