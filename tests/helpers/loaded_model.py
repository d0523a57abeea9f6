"""A model in memory in place of a loaded checkpoint."""

from pathlib import Path

from transformers import PreTrainedModel

from hybridge.export.source.checkpoint import CheckpointSource, LoadedModel


def loaded_model(folder: Path, model: PreTrainedModel) -> LoadedModel:
    """Return ``model`` as if it had been loaded from ``folder``."""
    return LoadedModel(source=CheckpointSource(path=folder, folder=folder, config=model.config), model=model)
