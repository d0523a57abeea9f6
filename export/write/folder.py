"""Write an artifact's folder, which appears whole or not at all and replaces only an artifact."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridge.errors import OutputError, UsageError
from hybridge.runtime.artifact.manifest import MANIFEST
from hybridge.runtime.files import (
    WrongKindError,
    exchange,
    folder_target,
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
    """Yield an empty folder that takes the place of ``target``, synced to disk, once the body is done.

    Links are followed to the folder that they lead to, and the empty one is beside that. Whatever happens, nothing half-written
    stays and nothing existing is lost. Leftovers of a killed process are cleaned up first.

    Raises:
        UsageError: ``target`` exists, unless ``force`` is given and it is an artifact or empty; or it is something that cannot
            be replaced, such as a device or a mount point.
        OutputError: ``target`` cannot be written, the disk is full, or another process is writing it.
    """
    with _explained(target):
        place = folder_target(target)

        def undo() -> None:
            _recover(place)
            remove(partial_path(place))
            lock_path(place).unlink(missing_ok=True)

        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place, wait=False), undone_at_signals(undo):
            _recover(place)
            if place.exists() and not force:
                raise UsageError(f"{target} exists already; it was kept. Choose another -o, or replace it with --force.")
            _check_replaceable(place, target)
            with partial_folder(place) as staging:
                yield staging
                staging.chmod(0o755)
                sync_tree(staging)
                _replace(place, staging, target)
                sync(place.parent)


def _check_replaceable(folder: Path, target: Path) -> None:
    """Raise UsageError for ``target`` if ``folder``, which is or was there, holds something else than an artifact."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{target} became something else than a folder meanwhile, which is not replaced.")
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UsageError(f"{target} is not an artifact (it has no {MANIFEST}), so --force does not replace it.")


def _replace(place: Path, staging: Path, target: Path) -> None:
    """Move ``staging`` to ``place`` in one step. An old folder is then at ``staging``, unless it came there meanwhile."""
    if not place.exists():
        staging.rename(place)  # replaces nothing but an empty folder
    elif not exchange(staging, place):
        _replace_in_two_steps(place, staging, target)
    else:
        try:
            _check_replaceable(staging, target)
        except UsageError:
            exchange(staging, place)
            raise


def _replace_in_two_steps(place: Path, staging: Path, target: Path) -> None:
    """Fall back to two renames. If interrupted, the old folder is restored or left beside its place."""
    old = _old(place)
    try:
        place.rename(old)
        _check_replaceable(old, target)
        staging.rename(place)
    except BaseException:
        if old.exists() and not place.exists():
            old.rename(place)
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
    except WrongKindError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}.") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OutputError(
                f"the disk of {target} is full; nothing was written. Free some space or choose another -o."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError(f"no permission to write {target}; choose another -o.") from error
        raise OutputError(f"{target} cannot be written: {error.strerror or error}.") from error
