"""Write an artifact of a GGUF file whose shape's program is kept, without PyTorch.

Such a program was made of another file of the shape, on this machine or for the catalogue of published shapes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from hybridge.errors import CheckpointError, HybridgeError, UsageError
from hybridge.export.drafters.vocabulary import ROWS, DraftRows, DraftVocabulary, choose_rows, sampled_rows
from hybridge.export.progress import ExportProgress
from hybridge.export.source.files import text_part
from hybridge.export.source.gguf.checkpoint import gguf_config
from hybridge.export.source.gguf.file import GgufFile, GgufTensor, open_gguf
from hybridge.export.source.gguf.projectors import WholeModel, processor
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import MANIFEST, PROGRAM, Manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.pack.catalogue import Catalogue, installed_catalogue
from hybridge.runtime.pack.gguf import hub_origin
from hybridge.runtime.pack.programs import PINNED, KeptProgram, UnfitProgramError, find_program, installed_versions
from hybridge.runtime.pack.tokenizer import special_ids, write_tokenizer
from hybridge.runtime.pack.weights import GgufWeights
from hybridge.runtime.version import code_version

INSTALL = "pip install hybridge-catalogue"


@dataclass(frozen=True, kw_only=True)
class PackingShape:
    """All that decides the artifact of a GGUF file but the numbers of its weights and the texts of its tokenizer.

    whole: the config.json that the file stands for, with its encoder of pictures if that is exported; end: the token that its
    tokenizer names as a text's end; tensors: of the file and of its encoder's.
    """

    whole: WholeModel
    end: int | None
    tensors: Mapping[str, GgufTensor]
    options: ExportOptions

    @classmethod
    def of(cls, file: GgufFile, options: ExportOptions) -> PackingShape:
        """Return the shape of a file that is exported with these options. Raises CheckpointError, UnsupportedModelError."""
        whole = WholeModel.of(file) if options.images else WholeModel(config=gguf_config(file))
        others = whole.projector.tensors if whole.projector is not None else {}
        if both := file.tensors.keys() & others.keys():
            raise CheckpointError(f"{file.path} has tensors of an encoder of pictures, such as {min(both)}; download it again.")
        text = text_part(whole.config) or whole.config
        count = text["vocab_size"] if "tokenizer.ggml.tokens" in file.metadata else 0
        end = special_ids(file.metadata, count).get("eos_token")
        return cls(whole=whole, end=end, tensors={**file.tensors, **others}, options=options)

    def key(self, versions: Mapping[str, str]) -> str:
        """Return the name of a program for it. versions: of the libraries that make the program."""
        options = replace(self.options, images=True)  # whether there are pictures is in its name
        return _hash(code_version(), dict(versions), self.name, self.kinds, repr(options))

    @property
    def name(self) -> str:
        """Return a hash of everything but the types of tensors and the options."""
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        return _hash(self.whole.config, self.end, shapes, self._pictures())

    @property
    def kinds(self) -> str:
        """Return a hash of the types of its tensors."""
        return _hash({name: tensor.kind for name, tensor in self.tensors.items()})

    def _pictures(self) -> object:
        """Return what else decides the program of an encoder: its processor, and limits of layers, which are in the graph."""
        if (projector := self.whole.projector) is None:
            return None
        limits = {name: tensor.data().tolist() for name, tensor in projector.tensors.items() if prod(tensor.shape) == 1}
        return processor(projector), limits


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class PackedTokens:
    """The tokens of an artifact that is being packed, as a draft vocabulary is chosen of them."""

    vocab_size: int
    eos_ids: list[int]
    core_tokenizer: Tokenizer

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> PackedTokens:
        """Return those of the model of ``manifest`` and of the tokenizer in ``folder``."""
        tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
        return cls(vocab_size=manifest.vocab_size, eos_ids=manifest.eos_ids, core_tokenizer=tokenizer)


def pack_artifact(
    checkpoint: Path, folder: Path, options: ExportOptions, steps: ExportProgress | None = None
) -> Manifest | None:
    """Write the artifact of a GGUF file into the existing, empty ``folder`` and return its manifest.

    The folder has the same files, byte for byte, as after an export with these options and nothing else. Returns None, and
    leaves the folder empty, if no program of this file's shape is kept, or the file is not one that can be packed so.

    Args:
        checkpoint: the path of a file, or of one of its parts.
        options: as an export is asked for, with ``auto`` where it is.
        steps: is told what an export warns of.
    """
    steps = steps or ExportProgress()
    try:
        file = open_gguf(checkpoint)
        shape = PackingShape.of(file, options)
        program = _find(shape)
        if program is None or program.manifest is None:
            return None
        if note := write_tokenizer(file.path, folder):
            steps.warn(f"{file.path}: {note}")
        if left_out := shape.whole.left_out:
            steps.warn(f"Pictures are left out: {left_out}")
        resolved = replace(program.manifest.options, images=options.images)
        manifest = program.manifest.model_copy(update={"options": resolved, "source": hub_origin(file.path)})
        return _Packing(shape.tensors, folder, program, manifest).write(steps)
    except (HybridgeError, UnfitProgramError, OSError):  # an export says what is wrong
        for path in folder.iterdir():
            path.unlink()
        return None


class _Packing:
    """Writes a kept program with the weights in tensors. The tokenizer's files are in the folder."""

    def __init__(self, tensors: Mapping[str, GgufTensor], folder: Path, program: KeptProgram, manifest: Manifest) -> None:
        self.tensors, self.folder, self.program, self.manifest = tensors, folder, program, manifest

    def write(self, steps: ExportProgress) -> Manifest:
        """Write program and manifest, again after the model has said which tokens its drafter may propose."""
        described = self.manifest.drafter.vocabulary if self.manifest.drafter else None
        if described is None:
            return self._write(None)
        assert described.source != "text", "a program with one of those is not kept"
        tokens, vocabulary = PackedTokens.of(self.folder, self.manifest), DraftVocabulary(described.source, ROWS)
        manifest = self._write(choose_rows(tokens, vocabulary))
        if described.source == "self":
            manifest = self._write(sampled_rows(self.folder, tokens, vocabulary, manifest.parameters or 0, steps))
        return manifest

    def _write(self, rows: DraftRows | None) -> Manifest:
        """Return the manifest. rows: the tokens that a drafter may propose, if these are not all."""
        weights = GgufWeights(self.tensors, rows.constants if rows else {})
        self.program.write(self.folder / PROGRAM, weights.fill)
        (self.folder / MANIFEST).unlink(missing_ok=True)
        update: dict[str, object] = {"files": {path.name: file_entry(path) for path in sorted(self.folder.iterdir())}}
        if rows is not None and self.manifest.drafter:
            update["drafter"] = replace(self.manifest.drafter, vocabulary=rows.description)
        manifest = self.manifest.model_copy(update=update)
        (self.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        return manifest


def _find(shape: PackingShape) -> KeptProgram | None:
    """Return the program that is kept for a shape: one that the libraries here made, or those that hybridge pins."""
    keys = list(dict.fromkeys(shape.key(versions) for versions in (installed_versions(), PINNED) if versions is not None))
    for key in keys:
        if (program := find_program(key)) is not None:
            return program
    catalogue = installed_catalogue()
    return catalogue.find(shape.key(PINNED)) if isinstance(catalogue, Catalogue) and catalogue.is_for_this_code else None


def missing_program(checkpoint: Path, options: ExportOptions) -> str:
    """Return sentences that say why a GGUF file is not packed, and what to install if that helps; empty if nothing is known.

    Raises CheckpointError, UnsupportedModelError: nothing would help, because the file is damaged or of no known architecture.
    """
    try:
        file = open_gguf(checkpoint)
        shape = PackingShape.of(file, options)
    except UsageError:  # types of tensors that only an export decodes
        return ""
    return " ".join(_unfit(file, shape))


def _unfit(file: GgufFile, shape: PackingShape) -> Iterator[str]:
    projector = shape.whole.projector
    if projector is not None and _find(PackingShape.of(file, replace(shape.options, images=False))) is not None:
        yield f"Its text opens alone, without {projector.path.name} beside it: --no-images."
    catalogue = installed_catalogue()
    if catalogue is None:
        yield f"Files of published models open without it by the programs of hybridge-catalogue: {INSTALL}."
    elif isinstance(catalogue, str):
        yield catalogue
    elif not catalogue.is_for_this_code:
        yield catalogue.mismatch
    else:
        yield from _not_in(catalogue, file, shape)


def _not_in(catalogue: Catalogue, file: GgufFile, shape: PackingShape) -> Iterator[str]:
    same = [each for each in catalogue.programs if each.shape == shape.name]
    if not same:
        config = text_part(shape.whole.config) or shape.whole.config
        sizes = f"{config['num_hidden_layers']} layers of {config['hidden_size']}"
        sizes += f" with the pictures of {shape.whole.projector.path.name}" if shape.whole.projector is not None else ""
        yield (
            f"hybridge-catalogue {catalogue.version} has no program for this shape ({file.architecture}, {sizes}, "
            f"{config['vocab_size']:,} tokens, of which {config['bos_token_id']} begins a text and "
            f"{config['eos_token_id']} end one)."
        )
    elif not any(each.kinds == shape.kinds for each in same):
        names = sorted({tensor.kind_name for tensor in shape.tensors.values()})
        mixes = ", ".join(each.mix for each in same)
        yield (
            f"hybridge-catalogue {catalogue.version} has {same[0].model} as {mixes}, but not with this file's kinds of blocks "
            f"({', '.join(names)})."
        )
    elif not any(each.key == shape.key(PINNED) for each in same):
        yield f"hybridge-catalogue {catalogue.version} has {same[0].model}, but not with these options of an export."
    else:
        yield f"The program of {same[0].model} in hybridge-catalogue {catalogue.version} does not fit this file's weights."
