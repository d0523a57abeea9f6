"""Load libhybridge, the native core of ``runtime/native``: the one that the wheel brought, or compiled here at first use.

It is linked against the runtime, the kernels and XNNPACK in ExecuTorch's wheel, and never against PyTorch. Our kernels and
further operators register themselves with the same ``libexecutorch.so`` when they are loaded beside it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from hybridge.arguments import checked
from hybridge.errors import (
    ArtifactError,
    BrokenStateError,
    CapacityError,
    CommitError,
    DraftError,
    GrammarError,
    HybridgeError,
    NativeError,
    NumericalError,
    OutputError,
    PictureError,
    SnapshotError,
    StateFileError,
    TemplateError,
    TokenError,
    UsageError,
)
from hybridge.runtime import pinned
from hybridge.runtime.artifact.delegates import Delegate
from hybridge.runtime.binding.interface import Status, declare
from hybridge.runtime.kernels import compiling
from hybridge.runtime.kernels import library as kernels
from hybridge.runtime.native_log import without_native_log
from hybridge.runtime.platforms import library_file
from hybridge.runtime.version import __version__

SOURCES = compiling.NATIVE
"""The folder of the C API's headers and sources, and of their CMake package."""
NOT_OF_THE_CORE = (SOURCES / "cli", SOURCES / "third_party/wuffs")
"""Folders of hybridge-cli, a program over the core."""
NAME = library_file("hybridge")

MOST_THREADS = 1024


class _Threads:
    """chosen: the number of threads of this process; None for one on each fast core."""

    chosen: int | None = None


@checked
def set_threads(count: int | None = None) -> None:
    """Set the number of threads that sessions compute on; None: one for each fast core that this process may use.

    Set it before sessions are loaded: those with XNNPACK keep the threads that they found, and onnxruntime also fixes its
    number when a model is opened.

    Raises:
        UsageError: the count is impossible, or it is another one and sessions with XNNPACK are open.
    """
    if count is not None and not 1 <= count <= MOST_THREADS:
        raise UsageError(f"{count} threads cannot compute; give 1 to {MOST_THREADS}, or none for the fast cores.")
    if load.cache_info().currsize:
        with without_native_log():
            run("set_threads", count or 0)
    _Threads.chosen = count


def threads() -> int:
    """Return the number of threads that models compute on."""
    number: int = load().hybridge_threads()
    return number


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library, building it if need be. Calls of its functions release the GIL.

    Raises:
        NativeError: there is no compiler, it fails, or the library is of another version.
        KernelsError: others may write the cache.
    """
    library = build()
    try:
        with without_native_log():
            loaded = compiling.load_plugin(library, *pinned.OPERATORS_AND_BACKENDS)
    except OSError as error:
        raise NativeError(f"{library} does not load ({error}); remove {library.parent} to have it built again.") from None
    _check_version(library, loaded)
    declare(loaded)
    with without_native_log():  # the first use of threads reads the processor's description, and complains about it
        loaded.hybridge_set_threads(_Threads.chosen or 0)
    return loaded


def _check_version(library: Path, loaded: ctypes.CDLL) -> None:
    loaded.hybridge_version.restype = ctypes.c_char_p
    if (found := loaded.hybridge_version().decode()) != __version__:
        raise NativeError(
            f"{library} is of hybridge {found}, and this is {__version__}: install hybridge again, without what is left of "
            "another version."
        )


def load_operators(namespaces: Collection[str]) -> None:
    """Register the operators of these namespaces with the runtime, our own kernels among them.

    ExecuTorch's wheel has the llama:: operators in a library for PyTorch only: both have to be installed for them, and are not
    imported. Raises NativeError if a library does not load, and the errors of ``kernels.library.load``.
    """
    if "hybridge" in namespaces:
        kernels.load()
    others = set(namespaces) - set(pinned.OPERATORS_WITHOUT_PYTHON)
    try:
        found = [*pinned.operator_libraries_without_python(namespaces), *pinned.operator_libraries(others)]
        with without_native_log():
            for path in found:
                ctypes.CDLL(str(path))
    except (OSError, ModuleNotFoundError) as error:
        raise NativeError(
            f"this program's {'and '.join(f'{each}:: ' for each in sorted(set(namespaces) & set(pinned.STOCK_OPERATORS)))}"
            f"operators do not load ({error}): ExecuTorch's wheel has them for PyTorch alone. "
            "pip install 'hybridge[export]', or export the model with --kernels hybridge."
        ) from None


def load_delegate(delegate: Delegate) -> None:
    """Register an accelerator's backend with the runtime, if its library is here; sessions say if it is not."""
    delegate.prepare()
    for path in pinned.library_folder().glob(f"lib{delegate.library}.*"):
        with suppress(OSError), without_native_log():
            ctypes.CDLL(str(path))


def build() -> Path:
    """Compile the library, or find it. Raises NativeError, and KernelsError for a cache that others may write."""
    if path() == compiling.prebuilt(NAME):
        return path()
    if not compiling.is_built(_compiled()) and (missing := compiling.missing_tool()):
        raise NativeError(f"the native core is compiled at first use, but {missing}.")
    return compiling.built(_compiled(), _compile)


def path() -> Path:
    """Return the path of the library, compiled or not."""
    return compiling.own_or_prebuilt(compiling.cache_folder("native"), _compiled, NAME)


def cmake_prefix() -> str:
    """Return the value of ``CMAKE_PREFIX_PATH`` with which an app finds hybridge and, if it is installed, ExecuTorch."""
    try:
        return f"{SOURCES};{pinned.executorch()}"
    except ModuleNotFoundError:  # only sources need it
        return str(SOURCES)


def _compiled() -> Path:
    """Return the path of the compiled library of these sources."""
    return compiling.cache_folder("native") / _key() / NAME


@functools.cache
def _key() -> str:
    files = (each for each in sorted(SOURCES.rglob("*")) if each.is_file())
    return compiling.key([each for each in files if not any(each.is_relative_to(folder) for folder in NOT_OF_THE_CORE)])


def _compile(library: Path) -> None:
    if errors := compiling.compile_library("hybridge_core", library):
        raise NativeError(f"the native core does not compile {errors}")


# Statuses of the core as the errors of ``hybridge.errors``.


ERRORS: Mapping[Status, type[HybridgeError]] = {
    Status.INVALID_ARGUMENT: UsageError,
    Status.INVALID_HANDLE: UsageError,
    Status.BUSY: UsageError,
    Status.INVALID_STATE: UsageError,
    Status.CANCELLED: UsageError,
    Status.OTHER_MODEL: UsageError,
    Status.UNSUPPORTED: UsageError,
    Status.NO_ROOM: CapacityError,
    Status.NOT_FINITE: NumericalError,
    Status.BROKEN_STATE: BrokenStateError,
    Status.INVALID_TOKEN: TokenError,
    Status.INVALID_COMMIT: CommitError,
    Status.INVALID_SLOT: SnapshotError,
    Status.INVALID_DRAFTER: DraftError,
    Status.INVALID_PICTURE: PictureError,
    Status.INVALID_GRAMMAR: GrammarError,
    Status.INVALID_TEMPLATE: TemplateError,
    Status.INVALID_SAVED_STATE: StateFileError,
    Status.UNREADABLE_FILE: StateFileError,
    Status.UNWRITABLE_FILE: OutputError,
}
"""The error of each status; ArtifactError for the others."""


def words() -> str:
    """Return in words why the last call of this thread failed."""
    said: bytes = load().hybridge_failure()
    return said.decode(errors="replace")


def failure(status: int) -> HybridgeError:
    """Return the error for the status of the last call, in the core's own words."""
    said = words() or load().hybridge_status_text(status).decode()  # a signal's handler may have called the core since
    end = "" if said.endswith((".", "!", "?")) else "."  # a template's own words may have one
    return ERRORS.get(Status(status), ArtifactError)(said + end)


def copied_text(call: str, *arguments: object) -> str:
    """Return the text that a call copies, which says how many bytes it has. Raises like ``run``."""
    size = ctypes.c_size_t()
    run(call, *arguments, None, 0, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    run(call, *arguments, text, size.value, ctypes.byref(size))
    return text.raw.decode(errors="replace")


def run(call: str, *arguments: object) -> None:
    """Call ``hybridge_<call>``. Raises the error for its status, if that is not OK."""
    if status := getattr(load(), f"hybridge_{call}")(*arguments):
        raise failure(status)
