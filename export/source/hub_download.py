"""Download a model from the hub into its cache: the files that an export reads, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError, NotACheckpointError
from hybridge.export.source.hub_cache import HubModel, hub_cache
from hybridge.export.source.reading import first_line

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
