"""Write an artifact's folder, which appears whole or not at all and replaces only an artifact, and describe its contents."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import cast

from torch import nn

import hybridge
from hybridge.cache.errors import OutputError, UsageError
from hybridge.export.layers import WithoutWeight
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.runtime.artifacts.artifact import file_entry
from hybridge.runtime.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    CalibrationEntry,
    LayerEntry,
    Manifest,
    MethodEntry,
    OnnxEntry,
    StoredBits,
)
from hybridge.runtime.artifacts.options import DrafterDescription, ExportOptions
from hybridge.runtime.files import claim_folder, exchange, partial_path, remove_leftover, sync, sync_tree, undone_at_signals


@contextmanager
def output_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that takes its place, synced to disk, once the body is done.

    Whatever happens, nothing half-written stays and nothing existing is lost. Leftovers of a killed process are cleaned
    up first.

    Raises:
        UsageError: ``target`` exists, unless ``force`` is given and it is an artifact or empty.
        OutputError: ``target`` cannot be written, the disk is full, or another process is writing it.
    """
    staging = partial_path(target)
    with _explained(target):
        _recover(target)
        check_target(target, force=force)
        target.parent.mkdir(parents=True, exist_ok=True)
        claim = claim_folder(staging)

    def clear() -> None:
        claim.release()
        remove_leftover(staging)

    def undo() -> None:
        clear()
        _recover(target)

    try:
        with undone_at_signals(undo), _explained(target):
            yield staging
            staging.chmod(0o755)
            sync_tree(staging)
            _replace(target, staging)
            sync(target.parent)
    finally:
        clear()


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
    remove_leftover(old)


def _recover(target: Path) -> None:
    """Clean up after a process that was killed between the two renames."""
    old = _old(target)
    if not (old / MANIFEST).is_file():
        return  # nothing, or nothing of ours
    if target.exists() or target.is_symlink():
        remove_leftover(old)
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


# Contents that do not depend on the format: tokenizer, figures of the weights, manifest


def write_tokenizer(loaded: LoadedModel, folder: Path, steps: ExportProgress) -> None:
    """Write the tokenizer's files into ``folder``, and warn of what is missing or was converted.

    Raises CheckpointError and OSError.
    """
    tokenizer = loaded.source.tokenizer
    tokenizer.write(folder)
    if tokenizer.note:
        steps.warn(tokenizer.note)
    if ignored := loaded.end_of_text.ignored:
        ends = f"Texts end with {loaded.eos_ids}." if loaded.eos_ids else "No token ends a text: stop it by --stop."
        steps.warn(
            f"{', '.join(ignored)} should end a text, say {loaded.source.folder}'s files, but the model has no such token "
            f"among its {loaded.vocab_size}: ignored. {ends}"
        )


@dataclass(frozen=True, kw_only=True)
class WeightFigures:
    """Figures of the weights for the manifest. size: bytes; bits: of those layers of the model that have fewer than 32."""

    size: int
    parameters: int
    bits: dict[str, StoredBits]

    @classmethod
    def of(cls, model: nn.Module, *drafters: nn.Module) -> WeightFigures:
        """Measure a model and its drafters."""
        layers = ((name, module) for name, module in model.named_modules() if isinstance(module, WithoutWeight))
        return cls(
            size=weight_bytes(model, *drafters),
            parameters=parameter_count(model, *drafters),
            bits={name: cast("StoredBits", layer.bits) for name, layer in layers if layer.bits < 32},
        )


def weight_bytes(*models: nn.Module) -> int:
    """Return the bytes of all weights in a program, shared ones counted once."""
    stored: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        bytes_of = getattr(module, "stored_bytes", lambda weight: weight.nbytes)
        stored |= {id(weight): bytes_of(weight) for weight in module.parameters(recurse=False)}
    return sum(stored.values())


def parameter_count(*models: nn.Module) -> int:
    """Return the number of parameters, packed or not, shared ones counted once."""
    counts: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        own = list(module.parameters(recurse=False))
        if isinstance(module, WithoutWeight):
            counts[id(own[0])] = module.count
            own = [weight for weight in own if weight is getattr(module, "bias", None)]
        counts |= {id(weight): weight.numel() for weight in own}
    return sum(counts.values())


def manifest_of(
    loaded: LoadedModel,
    options: ExportOptions,
    folder: Path,
    *,
    weights: WeightFigures,
    layers: list[LayerEntry],
    methods: dict[str, MethodEntry],
    libraries: Sequence[str],
    calibration: CalibrationEntry | None = None,
    onnx: OnnxEntry | None = None,
    drafter: DrafterDescription | None = None,
) -> Manifest:
    """Return the manifest of the files in ``folder``, with the installed versions of ``libraries``."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model_type=loaded.config.model_type,
        vocab_size=loaded.vocab_size,
        bos_id=loaded.bos_id,
        eos_ids=loaded.eos_ids,
        weight_bytes=weights.size,
        parameters=weights.parameters,
        options=options,
        layers=layers,
        methods=methods,
        files={path.name: file_entry(path) for path in sorted(folder.iterdir())},
        versions={name: version(name) for name in libraries} | {"hybridge": hybridge.__version__},
        bits=weights.bits,
        calibration=calibration,
        onnx=onnx,
        source=loaded.source.origin,
        drafter=drafter,
    )
