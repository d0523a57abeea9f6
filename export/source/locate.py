"""Find the folder or GGUF file that the user's name for a checkpoint means: a path, one below ``~``, or a model on the hub.

A model that is not in the hub's local cache is downloaded into it: the files that an export reads, and no others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hybridge.errors import CheckpointError, NotACheckpointError, UsageError
from hybridge.export.source.files import (
    EXPECTED,
    check_file,
    check_folder,
    check_kinds,
    download_again,
    first_line,
    has_weights,
    names_of_parts,
)
from hybridge.runtime.pack.gguf import HUB_PREFIX

GGUF = ".gguf"


def find_checkpoint(name: str | Path) -> Path:
    """Return the folder with config.json, or the GGUF file, that ``name`` means.

    Raises:
        UsageError: the name is empty.
        NotACheckpointError: something else than a checkpoint is there.
        CheckpointError: nothing is there, or it cannot be read.
    """
    if not str(name).strip():
        raise UsageError(f"the checkpoint's name is empty. {EXPECTED}")
    try:
        folder = _find(str(name))
        if folder.is_file():
            return folder
        os.listdir(folder)  # glob takes a folder that may not be read for an empty one
        check_kinds(folder)
        check_folder(folder)
    except PermissionError:
        raise CheckpointError(f"no permission to read {name}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read ({error.strerror or error}). {EXPECTED}") from None
    return folder


def _find(name: str) -> Path:
    path = _expanded(Path(name))
    if not path.exists() and (model := hub_model(name)):
        return _of_hub(model)
    if not path.exists() and (entry := cached_entry(name)):
        path = entry
    if is_entry(path):
        return snapshot_of(path)
    if path.is_dir():
        return path
    if path.suffix.lower() == GGUF and path.is_file():
        return path
    if path.exists():
        check_file(path)
    raise CheckpointError(f"{name} is not a folder. {EXPECTED}")


def _expanded(path: Path) -> Path:
    """Replace ``~`` and ``~user``, unless a file has that very name."""
    try:
        return path if path.exists() else path.expanduser()
    except RuntimeError:
        raise CheckpointError(f"{path} is not a folder: there is no user {path.parts[0]}. {EXPECTED}") from None


# The hub's local cache: ``models--ORG--NAME/snapshots/COMMIT`` holds links to ``blobs``

MAIN = "main"
NAME = r"[A-Za-z0-9][\w.-]*"
ID = re.compile(
    rf"(?:https?:/+[^/]+/)?(?P<id>{NAME}/{NAME})"
    rf"(?:/(?P<file>(?:{NAME}/)*{NAME}\.gguf)|(?:/tree/(?P<tree>[\w.-]+))?/?)(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A model on the hub. file: the one of its files to take, or None for all; revision: a branch, tag or commit."""

    id: str
    file: str | None
    revision: str


def hub_model(name: str) -> HubModel | None:
    """Parse the id or the web address of a model: ``ORG/NAME``, optionally ``/FILE.gguf`` or ``@REVISION`` after it."""
    found = ID.fullmatch(name)
    if found is None:
        return None
    return HubModel(id=found["id"], file=found["file"], revision=found["revision"] or found["tree"] or MAIN)


def hub_cache() -> Path:
    """Return the cache's folder, by the environment variables that the hub's own tools read."""
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{user}/huggingface"
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(given or f"{home}/hub")).expanduser()


def cached_entry(name: str) -> Path | None:
    """Return the cache's folder of a model, or None if it was never downloaded."""
    model = hub_model(name)
    entry = hub_cache() / f"{HUB_PREFIX}{(model.id if model else name).replace('/', '--')}"
    return entry if is_entry(entry) else None


def cached_revision(entry: Path, revision: str) -> Path | None:
    """Return the snapshot of a commit, or of a branch or tag that was downloaded by that name; None if there is none."""
    found = entry / "snapshots" / Path(_commit(entry, revision) or revision).name
    return found if found.is_dir() else None


def _commit(entry: Path, revision: str) -> str | None:
    """Return the commit of a branch or tag that was downloaded by that name."""
    ref = entry / "refs" / revision
    return ref.read_text(encoding="utf-8", errors="replace").strip() if ref.is_file() else None


def is_entry(folder: Path) -> bool:
    """Return whether ``folder`` is a model's folder in the cache, with snapshots below it."""
    return (folder / "snapshots").is_dir() and not (folder / "config.json").exists()


def snapshot_of(entry: Path) -> Path:
    """Return the snapshot that ``refs/main`` names, or the only one.

    Raises:
        CheckpointError: there is no snapshot.
        NotACheckpointError: there are several, and ``refs/main`` names none of them.
    """
    snapshots = sorted(path for path in (entry / "snapshots").iterdir() if path.is_dir())
    chosen = [path for path in snapshots if path.name == _commit(entry, MAIN)] or snapshots
    if not chosen:
        raise CheckpointError(f"{entry} has no snapshot: {download_again(entry)}.")
    if len(chosen) > 1:
        raise NotACheckpointError(
            f"{entry} has {len(chosen)} snapshots, and refs/main names none of them. Give one:\n" + "\n".join(map(str, chosen))
        )
    return chosen[0]


def _of_hub(model: HubModel) -> Path:
    """Return the snapshot in the hub's cache, or the wanted file in it; download it first if it is not there."""
    entry = cached_entry(model.id)
    found = cached_revision(entry, model.revision) if entry else None
    if entry and found is None and model.revision == MAIN:
        found = snapshot_of(entry)
    parts = names_of_parts(model.file) if model.file else []
    if found is None or not (all((found / part).exists() for part in parts) if parts else has_weights(found)):
        found = download(model)
    return found / model.file if model.file else found


# Download

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "additional_chat_templates/*.jinja")
UNWANTED = ("adapter_*", "consolidated*", "original/*", "*preprocessor_config.json", "training_args*", "trainer_state.json")


def download(model: HubModel) -> Path:
    """Download a model at the commit that its revision is now, and return its snapshot in the hub's cache.

    Raises:
        CheckpointError: there is no network, no such model, or no access to it.
        NotACheckpointError: the model has no files that hybridge reads.
    """
    from huggingface_hub import HfApi, snapshot_download  # imported here because most exports download nothing
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
        if type(error).__module__.startswith("http"):  # of the HTTP library, which the hub's errors do not cover
            raise _failed(model, f"the hub cannot be reached: {first_line(error)}") from error
        raise


def wanted_files(model: HubModel, files: Iterable[str]) -> list[str]:
    """Return the files of a model that an export reads: the one that was asked for with the other parts that it needs, or
    weights, config and tokenizer.

    Raises NotACheckpointError if they are not among ``files``.
    """
    there = sorted(files)
    if model.file:
        if model.file not in there:
            raise NotACheckpointError(f"{model.id} has no file {model.file}. It has: {', '.join(_ending(there, GGUF)[:20])}.")
        parts = names_of_parts(model.file)
        return parts if {*parts} <= {*there} else [model.file]
    wanted = [name for name in there if _matches(name, WANTED) and not _matches(name, UNWANTED)]
    if not _ending(wanted, ".safetensors"):
        if others := _ending(there, GGUF):
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
    """Match as fnmatch does, but do not let ``*`` cross a slash."""
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _ending(names: Iterable[str], end: str) -> list[str]:
    return [name for name in names if name.endswith(end)]
