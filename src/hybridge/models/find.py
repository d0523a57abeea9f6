"""From the name of a model to its artifact: the folder itself, one in the cache, or one that is exported now."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from hybridge.arguments import checked
from hybridge.errors import CheckpointError, UsageError
from hybridge.export.cli.choices import ExportChoices
from hybridge.export.source.locate import cached_entry, find_checkpoint, hub_model
from hybridge.imports import EXPORT, needs_export, without_collections
from hybridge.models.identity import Hashes, Identity
from hybridge.models.kept import Entry, ModelCache, model_name
from hybridge.models.progress import ExportLine, expected
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.cli.console import err
from hybridge.runtime.version import __version__, code_version

if TYPE_CHECKING:  # numpy and PyTorch take long to start
    from hybridge.runtime.binding.drafters import Drafter
    from hybridge.runtime.integrations.causal_lm import CausalLM

SIGNS = ("manifest.json", "model.pte", "model.onnx")
"""Files of an artifact; one that lacks some of them is refused where it is opened, by what is missing."""
WEIGHTS_OF_WEIGHTS: Mapping[str, tuple[float, float]] = {
    "auto": (0.3, 1.0), "keep": (0.3, 1.0), "8da4w": (0.3, 0.5), "4w": (0.3, 0.5), "8w": (0.5, 0.9), "none": (1.0, 3.5),
}  # fmt: skip
"""The bytes of an artifact's weights for each byte of a checkpoint's folder and of a GGUF file, by --quantize, at the least."""
PROGRAM_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The few options of an export that a person who runs a model wants; ``hybridge export`` has the others.

    The values are those of ``ExportChoices``, as are the defaults.
    """

    quantize: Literal["auto", "none", "keep", "8da4w", "4w", "8w"] = "auto"
    max_seq_len: int | None = None
    images: bool = True

    def chosen(self) -> dict[str, object]:
        """Return the options that are not the usual ones."""
        usual = asdict(ModelOptions())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


@dataclass(frozen=True)
class NamedModel:
    """A model as a user names it. It is an artifact, or a checkpoint that an export makes one of."""

    name: Path
    options: ModelOptions

    @property
    def is_artifact(self) -> bool:
        """Return whether the name is an artifact's folder, whole or not."""
        return any((self.name / sign).exists() for sign in SIGNS)

    @cached_property
    def checkpoint(self) -> Path:
        """The checkpoint's folder or GGUF file. Raises CheckpointError, UsageError."""
        if not self.is_here and hub_model(str(self.name)) is None:
            raise CheckpointError(
                f"{self.name} is not there. Give an artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub "
                "such as ORG/NAME."
            )
        with self.needs_export():
            return find_checkpoint(self.name)

    @property
    def is_here(self) -> bool:
        """Return whether it is on this machine, at its path or in the hub's cache."""
        return os.path.lexists(os.path.expanduser(self.name)) or cached_entry(str(self.name)) is not None

    @cached_property
    def identity(self) -> Identity:
        """What the checkpoint is. Raises CheckpointError."""
        found = self._hashes.identify(self.checkpoint)
        if ModelCache().folder.is_dir():
            self._hashes.remember()
        return found

    @cached_property
    def _hashes(self) -> Hashes:
        cache = ModelCache()
        return Hashes(cache.folder / "files.json", cache.top)

    @property
    def key(self) -> str:
        """Return the key of its artifact in the cache."""
        return ModelCache().key(self.identity.digest, self.options.chosen())

    @property
    def shown(self) -> str:
        """Return the model's name for people, and for its folder."""
        return model_name(self.name.resolve().name.removesuffix(".gguf"))

    def in_cache(self) -> Path | None:
        """Return its artifact in the cache, if there is one. Raises ArtifactError for one that others could have written."""
        return ModelCache().find(self.key)

    def export(self, console: Console | None) -> Path:
        """Export it into the cache, and show that on ``console``. Raises what ``export_model`` raises, and OutputError."""
        cache, identity, options = ModelCache(), self.identity, ExportChoices(**asdict(self.options)).options()
        line = ExportLine(console, self.shown, expected(cache.models(), identity.size))

        def export(folder: Path) -> Entry:
            packing = ExportLine(console, self.shown, line.expected)  # whose steps say nothing of an export's
            if not self._is_packed(folder, options, packing):
                if not _has_torch():  # said before the export is announced
                    raise UsageError(self._missing(options))
                with line:
                    with line.step("Starting PyTorch"), without_collections(), self.needs_export():
                        from hybridge.export.api import export_model
                    export_model(self.checkpoint, folder, options, golden=False, progress=line)
            identity.check_unchanged()
            return Entry(
                key=self.key, name=self.shown, source=str(self.checkpoint.absolute()), source_bytes=identity.size,
                options=self.options.chosen(), version=__version__, code=code_version(), steps=line.steps,
            )  # fmt: skip

        artifact = cache.make(self.key, self.shown, self._needed_bytes(), export, line.wait)
        self._hashes.remember()  # the cache's folder may be new
        return artifact

    def _is_packed(self, folder: Path, options: ExportOptions, steps: ExportLine) -> bool:
        """Write the artifact without PyTorch, if it is a GGUF file of a shape whose program is kept. Return whether it is."""
        if self.checkpoint.is_dir():
            return False
        from hybridge.export.write.packed import pack_artifact  # numpy takes long to start

        folder.mkdir()
        if pack_artifact(self.checkpoint, folder, options, steps) is not None:
            return True
        folder.rmdir()
        return False

    def _missing(self, options: ExportOptions) -> str:
        """Return what to install to open it where PyTorch is not. Raises CheckpointError if nothing would help."""
        words = f"{self.name} is no artifact, and to open it hybridge needs what makes artifacts: {EXPORT}."
        if self.checkpoint.is_dir():
            return words
        from hybridge.export.write.packed import missing_program

        return f"{words} {missing_program(self.checkpoint, options)}".strip()

    def needs_export(self) -> AbstractContextManager[None]:
        """Return a context that says what to install if the export half is missing."""
        return needs_export(f"{self.name} is no artifact, and to open it hybridge")

    def _needed_bytes(self) -> int:
        folder, gguf = WEIGHTS_OF_WEIGHTS[self.options.quantize]
        return PROGRAM_BYTES + int(self.identity.size * (folder if self.checkpoint.is_dir() else gguf))


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:  # of a finder that hides it
        return False


@checked
def find_artifact(model: str | Path, options: ModelOptions | None = None, console: Console | None = None) -> Path:
    """Return the artifact of a model, exporting it into the cache if it is none and is not there.

    Args:
        model: an artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub.
        options: of the export; an artifact is what it is.
        console: shows the progress of an export; None for silence.

    Raises:
        CheckpointError: there is no such model, or it cannot be exported.
        OutputError: the cache cannot be written.
        UsageError: what exports is not installed. Further errors are those of ``export_model``.
    """
    named = NamedModel(Path(model), options or ModelOptions())
    if named.is_artifact:
        return named.name
    return named.in_cache() or named.export(console)


def load(
    model: str | Path,
    *,
    drafter: Drafter | Literal["auto"] | None = "auto",
    cache_dir: str | Path | None = None,
    context: int | None = None,
    options: ModelOptions | None = None,
) -> CausalLM:
    """Open a model with transformers' interface: ``load("OUT").generate(**tokenizer(text, return_tensors="pt"))``.

    Args:
        model: an artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub. What is no artifact is exported
            once, and kept as ``hybridge run`` keeps it; at a terminal, a line on stderr shows how far it is.
        drafter: proposes draft tokens; "auto" is an ``AutoDrafter``, and None decodes plainly.
        cache_dir: a folder in which checkpoints of what was read stay for the next time; it holds texts, for their owner alone.
        context: most tokens of a text, fewer than the artifact holds; as many as it holds if left out.
        options: of the export, if there is one.

    Raises:
        ArtifactError: an artifact is damaged; the message says how.
        UsageError: the extra ``export`` is not installed; ``hybridge.Session`` opens artifacts without it.
        OutputError: the cache cannot be written. Further errors are those of ``export_model``.
    """
    with needs_export("hybridge.load"):
        from hybridge.runtime.integrations.causal_lm import CausalLM
    artifact = find_artifact(model, options, err if err.is_terminal else None)
    return CausalLM.from_pretrained(artifact, drafter=drafter, cache_dir=cache_dir, context=context)
