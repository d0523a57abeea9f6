"""Is a loaded program what its manifest says? Signatures, state and constants, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.artifacts.manifest import Manifest, TensorEntry
from hybridge.runtime.artifacts.options import shorter_verify
from hybridge.runtime.pinned import SCALAR_TYPES

METHODS = ("prefill", "decode", "verify", "commit", "reset", "forward")
SLOT_METHODS = ("snapshot", "restore")
DRAFT_METHODS = ("draft", "draft_prefill")
OWN_BUFFERS = ("length", "staged", "slot_length", "operations")
"""Buffers of the cache itself, which come before those of its layers."""

BOUNDED = "hybridge_bounded"
"""The constant method that lists, by their places in the state, the buffers that ``Methods.bounded`` gives."""


def check_methods(manifest: Manifest) -> None:
    """Raises ArtifactError where the manifest lacks a method that every session needs."""
    wanted = METHODS + (SLOT_METHODS if manifest.options.snapshot_slots else ())
    verifying = {shorter_verify(length): length for length in manifest.options.shorter_verify_lens}
    wanted += (*verifying, *(DRAFT_METHODS if manifest.options.mtp else ()))
    if missing := [name for name in wanted if name not in manifest.methods]:
        raise ArtifactError(f"the manifest lists no method {', '.join(missing)}; export the model again.")
    for name, length in verifying.items():
        _same(f"{name} takes", _entries(manifest.methods[name].inputs), [("int64", [1, length])])
    answers = 2 if manifest.options.tap_layers else 1
    for name in ("prefill", "decode", "verify", *verifying):
        _same(f"the number of {name}'s outputs is", len(manifest.methods[name].outputs), answers)


def check_program(manifest: Manifest, metas: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Raises ArtifactError where signatures, state or constants differ.

    metas: the runtime's MethodMeta by method name; constants: what the constant methods answer.
    """
    for name, method in manifest.methods.items():
        meta = metas[name]
        _same(f"{name} takes", _tensors(meta.num_inputs(), meta.input_tensor_meta), _entries(method.inputs))
        _same(f"{name} gives", _tensors(meta.num_outputs(), meta.output_tensor_meta), _entries(method.outputs))
    _same("the state is", _tensors(metas["decode"].num_attributes(), metas["decode"].attribute_tensor_meta), _state(manifest))
    for name, value in expected_constants(manifest).items():
        _same(f"{name}() is", constants[name], value)


def expected_constants(manifest: Manifest) -> dict[str, int]:
    """Return the values that the manifest expects of the program's constant methods."""
    options = manifest.options
    return {
        "get_max_seq_len": options.max_seq_len,
        "get_vocab_size": manifest.vocab_size,
        "hybridge_format_version": manifest.format_version,
        "hybridge_prefill_chunk": options.prefill_chunk,
        "hybridge_verify_len": options.verify_len,
        "hybridge_verify_lens": options.verify_lens[0],  # of a list the runtime hands over the first here
        "hybridge_snapshot_slots": options.snapshot_slots,
        "hybridge_taps": len(options.tap_layers),
        "hybridge_draft_len": options.draft_len if options.mtp else 0,
    }


def buffer_names(manifest: Manifest) -> list[str]:
    """Return the state's buffers in the program's order."""
    return [*OWN_BUFFERS, *(f"layers.{i}.{name}" for i, layer in enumerate(manifest.layers) for name in layer.buffers)]


def bounded_names(names: Sequence[str], places: Sequence[int]) -> list[str]:
    """The names at these places of the state. Raises ArtifactError where there are none, or the length is not among them."""
    if not all(0 <= place < len(names) for place in places) or names.index("length") not in places:
        raise ArtifactError(f"the program's {BOUNDED}() is {list(places)}, of a state of {len(names)}; export the model again.")
    return [names[place] for place in places]


def _state(manifest: Manifest) -> list[tuple[str, list[int]]]:
    own = [("int64", [1]), ("int64", [1]), ("int64", [max(1, manifest.options.snapshot_slots)]), ("int64", [1])]
    return own + [entry for layer in manifest.layers for entry in _entries(list(layer.buffers.values()))]


def _entries(entries: list[TensorEntry]) -> list[tuple[str, list[int]]]:
    return [(entry.dtype, entry.shape) for entry in entries]


def _tensors(count: int, meta: Any) -> list[tuple[str, list[int]]]:
    return [(SCALAR_TYPES.get(meta(i).dtype(), "unknown"), list(meta(i).sizes())) for i in range(count)]


def _same(what: str, actual: object, wanted: object) -> None:
    if actual != wanted:
        raise ArtifactError(
            f"the program is not what the manifest says: {what} {actual}, not {wanted}. Export the model again."
        )
