"""Load libhybridge, the native core of ``runtime/native``: the one that the wheel brought, or compiled here at first use.

It is linked against the runtime, the kernels and XNNPACK in ExecuTorch's wheel, and never against PyTorch. Our kernels and
further operators register themselves with the same ``libexecutorch.so`` when they are loaded beside it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from hybridge.arguments import checked
from hybridge.errors import (
    ArtifactError,
    BrokenStateError,
    CapacityError,
    CommitError,
    DraftError,
    HybridgeError,
    NativeError,
    NumericalError,
    OutputError,
    PictureError,
    SnapshotError,
    StateFileError,
    TokenError,
    UsageError,
)
from hybridge.runtime import pinned
from hybridge.runtime.binding.interface import VERSION, Status, declare
from hybridge.runtime.kernels import compiling
from hybridge.runtime.kernels import library as kernels
from hybridge.runtime.native_log import without_native_log
from hybridge.runtime.platforms import HERE

SOURCES = Path(__file__).parents[1] / "native"
"""The folder of the C++ headers, of the C API over them and of their CMake package."""
NOT_OF_THE_CORE = ("cli", "third_party/wuffs")
NAME = HERE.library("hybridge")
FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-Wall", "-Wextra"),
    *pinned.MACROS,
)
C_FLAGS = ("-x", "c", "-O2", "-fPIC", "-fvisibility=hidden", "-w", "-DHAVE_CONFIG_H", "-DPCRE2_CODE_UNIT_WIDTH=8")
"""For the libraries of third_party, whose warnings are not ours to see; CMakeLists.txt has the same."""

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
    loaded.hybridge_print_log(0)
    with without_native_log():  # the first use of threads reads the processor's description, and complains about it
        loaded.hybridge_set_threads(_Threads.chosen or 0)
    return loaded


def _check_version(library: Path, loaded: ctypes.CDLL) -> None:
    loaded.hybridge_version.restype = ctypes.c_char_p
    if (found := loaded.hybridge_version().decode()) != VERSION:
        raise NativeError(
            f"{library} is of hybridge {found}, and this is {VERSION}: install hybridge again, without what is left of "
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


def build() -> Path:
    """Compile the library, or find it. Raises NativeError, and KernelsError for a cache that others may write."""
    if path() == compiling.prebuilt(NAME):
        return path()
    if not compiling.is_built(_compiled()):
        _compiler()
    return compiling.built(_compiled(), _compile)


def path() -> Path:
    """Return the path of the library, compiled or not."""
    own = _compiled()
    return own if compiling.is_built(own) else compiling.prebuilt(NAME) or own


def cmake_prefix() -> str:
    """Return the value of ``CMAKE_PREFIX_PATH`` with which an app finds the sources and the installed ExecuTorch."""
    return f"{SOURCES};{pinned.executorch()}"


def _compiled() -> Path:
    """Return the path of the compiled library of these sources."""
    return compiling.cache_folder("native") / _key() / NAME


@functools.cache
def _key() -> str:
    files = [*sources(), *sources("c"), SOURCES / "exports.map", *_files("h")]
    return compiling.key(files, compiling.compiler(), [*FLAGS, *C_FLAGS])


def sources(kind: str = "cpp") -> list[Path]:
    """Return the files that are compiled: of the core, or of the libraries below its tokenizer, which are in ``c``."""
    return [each for each in _files(kind) if each.name != "utf8proc_data.c"]  # which utf8proc.c includes


def _files(kind: str) -> list[Path]:
    """Return the files of the core by the end of their names; hybridge-cli, with its decoder, is a program over it."""
    found = SOURCES.rglob(f"*.{kind}")
    return sorted(each for each in found if not any(each.is_relative_to(SOURCES / other) for other in NOT_OF_THE_CORE))


def _compile(library: Path) -> None:
    own = [_compiler(), *FLAGS, f"-I{SOURCES}", *compiling.include_flags()]
    units = [[*own, str(source)] for source in sources()]
    units += [[_compiler(), *C_FLAGS, f"-I{source.parent}", str(source)] for source in sources("c")]
    objects = [str(library.with_name(f"{number}.o")) for number in range(len(units))]
    commands = [[*unit, "-c", "-o", made] for unit, made in zip(units, objects, strict=True)]
    exports = HERE.keep_functions.format(folder=SOURCES)
    links = compiling.plugin_flags(*pinned.OPERATORS_AND_BACKENDS)
    link = [_compiler(), "-shared", *objects, exports, "-o", str(library), *links]
    if errors := compiling.compile_all(commands, library.parent) or compiling.errors_of(link, library.parent):
        raise NativeError(f"the native core does not compile {errors}")


def _compiler() -> str:
    chosen = compiling.compiler()
    if chosen is None:
        raise NativeError(
            "the native core is compiled at first use, but there is no C++ compiler here: install g++ or clang++, or set CXX."
        )
    return chosen


# Statuses of the core as the errors of ``hybridge.errors``.


REFUSALS: Mapping[tuple[str, Status], tuple[type[HybridgeError], str]] = {
    ("commit", Status.INVALID_STATE): (
        CommitError,
        "there is no verified block: call verify first, and commit before anything else.",
    ),
    ("restore", Status.INVALID_STATE): (
        SnapshotError,
        "this slot keeps nothing to restore: it was never filled, or tokens were written below its length since "
        "(an earlier snapshot was restored and another way taken).",
    ),
    ("draft", Status.INVALID_ARGUMENT): (
        DraftError,
        "there is no drafter inside this model, or the token is unknown to it.",
    ),
    ("resume", Status.INVALID_ARGUMENT): (
        UsageError,
        "this checkpoint is of another model; resume it in a session over the one that made it.",
    ),
    ("load", Status.FILE_ACCESS): (StateFileError, "the file does not exist, cannot be read, or is no regular file."),
    ("load", Status.INVALID_FILE): (
        StateFileError,
        "the file is damaged, of another artifact, or in the format of hybridge 0.2; save the state again.",
    ),
    ("chat_load", Status.FILE_ACCESS): (StateFileError, "the file does not exist, cannot be read, or is no regular file."),
    ("chat_load", Status.INVALID_FILE): (StateFileError, "the file is damaged, or holds no conversation of this artifact."),
    ("checkpoint_read", Status.INVALID_FILE): (StateFileError, "this is no checkpoint of this artifact."),
    **{
        (call, Status.INVALID_ARGUMENT): (
            TokenError,
            "a draft token is outside the vocabulary, the drafter does not fit this model, or a mask leaves no token.",
        )
        for call in ("begin", "next", "end")
    },
    **{
        (call, Status.INVALID_FILE): (
            ArtifactError,
            f"the program failed in {call!r}: its file was changed, it refused what fits, or its state is not what it "
            "answered. Open the artifact again, or reset the session.",
        )
        for call in ("prefill", "decode", "verify", "commit", "snapshot", "restore", "reset", "save", "begin", "next", "end")
    },
    ("set_threads", Status.INVALID_STATE): (
        UsageError,
        "open sessions compute with XNNPACK on the threads that they found; close them, or set the number of threads before.",
    ),
    ("next", Status.INVALID_STATE): (UsageError, "the session's text was changed while the generation waited; begin another."),
}
"""The error and its message, by call and status."""
OLDER = "saved by an older version"
"""The core's own words for a state of an earlier layout."""
PICTURE_CALLS = ("model_pictures", "picture_open", "picture_open_prepared")
CHAT_CALLS = ("chat_show", "chat_send", "chat_retry", "chat_save", "chat_load")
"""Calls that may refuse a picture, in words of the core's."""
WRITES = ("save", "chat_save")
"""Calls that write a file; the core says why it cannot be written."""
REFUSED_PICTURES = (Status.INVALID_ARGUMENT, Status.INVALID_FILE)


def failure(call: str, status: int) -> HybridgeError:
    """Return the error for a status of a call, which is named as in ``hybridge.h``."""
    logged = load().hybridge_failure().decode(errors="replace")
    lines = list(filter(None, map(str.strip, logged.splitlines())))
    if lines and (call in PICTURE_CALLS or (call in CHAT_CALLS and "picture" in logged)) and status in REFUSED_PICTURES:
        return PictureError(f"{'; '.join(lines)}.")
    if lines and (call, status) == ("draft", Status.INVALID_ARGUMENT):
        return DraftError(f"{'; '.join(lines)}.")
    if older := [line for line in lines if OLDER in line]:
        return StateFileError(f"{older[0]}.")
    if call in WRITES and status == Status.FILE_ACCESS:
        return OutputError(f"{'; '.join(lines)}.")
    if found := REFUSALS.get((call, Status(status))):
        return found[0](found[1])
    text = load().hybridge_status_text(status).decode()
    reason = "; ".join([text, *lines])
    refusal = f"{'; '.join(lines)}." if lines and call.startswith("chat_") else f"{call}: {reason}."
    match status:
        case Status.NO_ROOM:
            return CapacityError(refusal)
        case Status.BROKEN_STATE:
            return BrokenStateError(refusal)
        case Status.NOT_FINITE:
            return NumericalError(f"the program gave logits in {call!r} that are NaN or infinite: {reason}.")
        case Status.BUSY | Status.INVALID_HANDLE | Status.INVALID_ARGUMENT | Status.INVALID_STATE:
            return UsageError(refusal)
        case Status.INVALID_FILE if call in ("artifact_open", "template_read", "chat_open", "chat_over"):
            return ArtifactError(f"{call}: {reason}.")
        case _:
            return ArtifactError(f"the program failed in {call!r}: {reason}.")


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
        raise failure(call, status)
