"""A folder that appears whole or not at all, and replaces only what hybridge made."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridge.cache.errors import OutputError, UsageError
from hybridge.runtime.artifacts.manifest import MANIFEST


@contextmanager
def output_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that takes its place once the body is done.

    Raises UsageError before the body where ``target`` exists (unless ``force`` and it is an artifact or empty), OutputError
    where it cannot be written or the disk is full. Whatever happens, nothing half-written stays and nothing existing is lost.
    """
    with _explained(target):
        check_target(target, force=force)
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        with _explained(target):
            yield staging
            staging.chmod(0o755)
            _replace(target, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_target(target: Path, *, force: bool) -> None:
    """Raises UsageError where ``target`` may not be (re)placed."""
    if not target.exists() and not target.is_symlink():
        return
    if not force:
        raise UsageError(f"{target} exists already; it was kept. Choose another -o, or replace it with --force.")
    if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).is_file()):
        raise UsageError(f"{target} is not an artifact (it has no {MANIFEST}), so --force does not replace it.")


def _replace(target: Path, staging: Path) -> None:
    """Put ``staging`` in the place of ``target``; the old one is back, or still beside it, whatever interrupts this."""
    if not target.exists():
        staging.rename(target)
        return
    old = staging.with_suffix(".old")
    try:
        target.rename(old)
        staging.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OutputError(
                f"the disk of {target} is full; nothing was written. Free some space or choose another -o."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError(f"no permission to write {target}; choose another -o.") from error
        raise OutputError(f"{target} cannot be written: {error.strerror or error}.") from error
