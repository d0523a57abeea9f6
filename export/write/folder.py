"""Write an artifact's folder, which appears whole or not at all and replaces only an artifact."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridge.cache.errors import OutputError, UsageError
from hybridge.runtime.artifacts.manifest import MANIFEST
from hybridge.runtime.files import (
    exchange,
    lock_path,
    locked,
    partial_folder,
    partial_path,
    remove,
    sync,
    sync_tree,
    undone_at_signals,
)


@contextmanager
def output_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that takes its place, synced to disk, once the body is done.

    Whatever happens, nothing half-written stays and nothing existing is lost. Leftovers of a killed process are cleaned
    up first.

    Raises:
        UsageError: ``target`` exists, unless ``force`` is given and it is an artifact or empty.
        OutputError: ``target`` cannot be written, the disk is full, or another process is writing it.
    """

    def undo() -> None:
        _recover(target)
        remove(partial_path(target))
        lock_path(target).unlink(missing_ok=True)

    with _explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, wait=False), undone_at_signals(undo):
            _recover(target)
            check_target(target, force=force)
            with partial_folder(target) as staging:
                yield staging
                staging.chmod(0o755)
                sync_tree(staging)
                _replace(target, staging)
                sync(target.parent)


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError if ``target`` may not be written or replaced."""
    if not target.exists() and not target.is_symlink():
        return
    if not force:
        raise UsageError(f"{target} exists already; it was kept. Choose another -o, or replace it with --force.")
    if not target.is_dir() or (any(target.iterdir()) and not (target / MANIFEST).is_file()):
        raise UsageError(f"{target} is not an artifact (it has no {MANIFEST}), so --force does not replace it.")


def _replace(target: Path, staging: Path) -> None:
    """Move ``staging`` to ``target`` in one step. An old folder is then at ``staging``."""
    if not target.exists():
        staging.rename(target)
    elif not exchange(staging, target):
        _replace_in_two_steps(target, staging)


def _replace_in_two_steps(target: Path, staging: Path) -> None:
    """Fall back to two renames. If interrupted, the old folder is restored or left beside the target."""
    old = _old(target)
    try:
        target.rename(old)
        staging.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    remove(old)


def _recover(target: Path) -> None:
    """Clean up after a process that was killed between the two renames."""
    old = _old(target)
    if not (old / MANIFEST).is_file():
        return  # nothing, or nothing of ours
    if target.exists() or target.is_symlink():
        remove(old)
    else:
        old.rename(target)


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise OutputError(f"another process is writing {target}; wait for it, or choose another -o.") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OutputError(
                f"the disk of {target} is full; nothing was written. Free some space or choose another -o."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError(f"no permission to write {target}; choose another -o.") from error
        raise OutputError(f"{target} cannot be written: {error.strerror or error}.") from error
