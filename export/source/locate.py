"""From what a user names to the folder of a checkpoint: a folder, one below ``~``, a model in the hub's cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError, NotACheckpointError, UsageError
from hybridge.export.source.files import (
    EXPECTED,
    GGUF,
    MAIN,
    HubModel,
    cached_entry,
    cached_revision,
    check_file,
    check_folder,
    first_line,
    has_weights,
    hub_cache,
    hub_model,
    is_entry,
    snapshot_of,
)


def find_checkpoint(named: str | Path) -> Path:
    """Return the folder with config.json, or the GGUF file, that ``named`` means.

    Raises UsageError for an empty name, NotACheckpointError where something else than a checkpoint is there, CheckpointError
    where nothing is or it cannot be read.
    """
    if not str(named).strip():
        raise UsageError(f"the checkpoint's name is empty. {EXPECTED}")
    try:
        folder = _folder(str(named))
        if folder.is_file():
            return folder
        os.listdir(folder)  # glob takes a folder that may not be read for an empty one
        check_folder(folder)
    except PermissionError:
        raise CheckpointError(f"no permission to read {named}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{named} cannot be read ({error.strerror or error}). {EXPECTED}") from None
    return folder


def _folder(named: str) -> Path:
    path = _expanded(Path(named))
    if not path.exists() and (model := hub_model(named)):
        return _of_hub(model)
    if not path.exists() and (entry := cached_entry(named)):
        path = entry
    if is_entry(path):
        return snapshot_of(path)
    if path.is_dir():
        return path
    if path.suffix.lower() == GGUF and path.is_file():
        return path
    if path.exists():
        check_file(path)
    raise CheckpointError(f"{named} is not a folder. {EXPECTED}")


def _of_hub(model: HubModel) -> Path:
    """The snapshot in the hub's cache, or a file in it; downloaded first where it is not there."""
    entry = cached_entry(model.id)
    found = cached_revision(entry, model.revision) if entry else None
    if entry and found is None and model.revision == MAIN:
        found = snapshot_of(entry)
    if found is None or not ((found / model.file).exists() if model.file else has_weights(found)):
        found = download(model)
    return found / model.file if model.file else found


def _expanded(path: Path) -> Path:
    """``path`` with ``~`` and ``~user`` replaced, unless a file has that very name."""
    try:
        return path if path.exists() else path.expanduser()
    except RuntimeError:
        raise CheckpointError(f"{path} is not a folder: there is no user {path.parts[0]}. {EXPECTED}") from None


# Download a model from the hub into its cache: the files that an export reads, and no others.


WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "additional_chat_templates/*.jinja")
UNWANTED = ("adapter_*", "consolidated*", "original/*", "*preprocessor_config.json", "training_args*", "trainer_state.json")


def download(model: HubModel) -> Path:
    """Return the snapshot of ``model`` in the hub's cache, downloaded at the commit that its revision is now.

    Raises CheckpointError where there is no network, no such model or no access to it, NotACheckpointError where the model has
    no files that can be read.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info: Any = HfApi().model_info(model.id, revision=model.revision)
        files = wanted_files(model, [each.rfilename for each in info.siblings or ()])
        return Path(snapshot_download(model.id, revision=info.sha, allow_patterns=files, cache_dir=hub_cache()))
    except OfflineModeIsEnabled:
        raise _failed(model, "the environment says HF_HUB_OFFLINE, so nothing is downloaded") from None
    except GatedRepoError:
        raise _failed(
            model, "its publisher asks for an agreement: accept it on the model's page, then 'hf auth login'"
        ) from None
    except RevisionNotFoundError:
        raise _failed(model, f"it has no revision {model.revision}") from None
    except RepositoryNotFoundError:
        raise _failed(model, "there is no such model, or it is private: then 'hf auth login'") from None
    except (HfHubHTTPError, OSError) as error:
        raise _failed(model, f"the hub cannot be reached: {first_line(error)}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0].startswith("http"):  # the errors of the library below are not the hub's own
            raise _failed(model, f"the hub cannot be reached: {first_line(error)}") from error
        raise


def wanted_files(model: HubModel, files: Iterable[str]) -> list[str]:
    """Return those of a model's files that an export reads: the one that is wanted alone, or weights, config and tokenizer.

    Raises NotACheckpointError where they are not among them.
    """
    there = sorted(files)
    if model.file:
        if model.file not in there:
            raise NotACheckpointError(
                f"{model.id} has no file {model.file}. It has: {', '.join(_ending(there, '.gguf')[:20])}."
            )
        return [model.file]
    wanted = [name for name in there if _matches(name, WANTED) and not _matches(name, UNWANTED)]
    if not _ending(wanted, ".safetensors"):
        if others := _ending(there, ".gguf"):
            raise NotACheckpointError(
                f"{model.id} has GGUF files. Give one:\n" + "\n".join(f"{model.id}/{name}" for name in others)
            )
        raise NotACheckpointError(f"{model.id} has no *.safetensors with weights; take a checkpoint that has them.")
    return wanted


def _failed(model: HubModel, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{model.id} is not a folder, and the hub's cache {hub_cache()} has no such model, or not this revision of it. It "
        f"cannot be downloaded ({reason}). Give the folder that it is in, or run 'hf download {model.id}' where that works."
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """fnmatch, but for ``*``, which stays in a folder."""
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _ending(names: Iterable[str], end: str) -> list[str]:
    return [name for name in names if name.endswith(end)]


# What a user asks to export: a checkpoint, and what goes with it.


@dataclass(frozen=True, kw_only=True)
class Named:
    """checkpoint: a folder, a GGUF file, or a model's id.

    adapters: folders of LoRA adapters, merged in this order; tokenizer: a folder whose tokenizer and chat template take the
    place of the checkpoint's own.
    """

    checkpoint: str | Path
    adapters: tuple[Path, ...] = ()
    tokenizer: Path | None = None


def named(checkpoint: str | Path | Named) -> Named:
    """Return ``checkpoint`` as it is, or alone."""
    return checkpoint if isinstance(checkpoint, Named) else Named(checkpoint=checkpoint)
