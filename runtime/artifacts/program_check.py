"""Is a loaded program what its manifest says? Signatures, state and constants, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.artifacts.buffer_names import buffer_names_of, plans_of
from hybridge.runtime.artifacts.checked_file import CheckedFile
from hybridge.runtime.artifacts.drafter_description import drafter_constants
from hybridge.runtime.artifacts.manifest import Manifest, MethodEntry, TensorEntry, shortened
from hybridge.runtime.artifacts.options import ExportOptions, shorter_verify
from hybridge.runtime.pinned import SCALAR_TYPES

SLOT_METHODS = ("snapshot", "restore")
STATE = "state.cache."
"""Qualified name of the cache in a program, before each buffer's own."""
NUMBER = ("int64", [1])
OWN_BUFFERS = ("length", "staged", "slot_length", "operations")
"""Buffers of the cache itself, which come before those of its layers."""

BOUNDED = "hybridge_bounded"
"""The constant method that lists, by their places in the state, the buffers that ``Methods.bounded`` gives."""


Signature = list[tuple[str, list[int]]]
"""Dtype and shape of each tensor."""


def check_methods(manifest: Manifest) -> None:
    """Raises ArtifactError where the manifest has other methods than its options ask for, or gives them other shapes."""
    inputs, rows = expected_inputs(manifest), expected_rows(manifest.options)
    if missing := [name for name in inputs if name not in manifest.methods]:
        raise ArtifactError(f"the manifest lists no method {', '.join(missing)}; export the model again.")
    if unknown := [name for name in manifest.methods if name not in inputs]:
        raise ArtifactError(f"the manifest lists {shortened(unknown[0])}, which is no method; export the model again.")
    for name, method in manifest.methods.items():
        _same(f"{name} takes", _entries(method.inputs), inputs[name])
        if name in rows:
            _same(f"{name} gives", _entries(method.outputs[:1]), [("float32", [1, rows[name], manifest.vocab_size])])
            answers = 2 if manifest.options.tap_layers else 1
            _same(f"the number of {name}'s outputs is", len(method.outputs), 1 if name == "forward" else answers)
        elif (guesses := proposing(manifest).get(name)) is not None:
            _same(f"{name} gives", _entries(method.outputs[:2]), [("int64", [1, guesses]), ("float32", [1, guesses])])
            _check_scores(name, manifest, method, guesses)
        else:
            _same(f"{name} gives", _entries(method.outputs), [NUMBER])


def proposing(manifest: Manifest) -> dict[str, int]:
    """Return the methods of the artifact's drafter that propose, and how many tokens each gives."""
    return manifest.drafter.methods if manifest.drafter is not None else {}


def _check_scores(name: str, manifest: Manifest, method: MethodEntry, guesses: int) -> None:
    """Raises ArtifactError where a drafter that samples gives no scores, or scores of tokens that nothing tells."""
    samples = manifest.drafter is not None and manifest.drafter.samples
    others = _entries(method.outputs[2:])
    width = others[0][1][-1] if others and others[0][1] else 0
    rows = others[1][1][1:2] if len(others) > 1 else []  # of candidates: one for all draft tokens, or one for each
    scores: Signature = [("float32", [1, guesses, width])]
    if width != manifest.vocab_size or rows:
        scores.append(("int64", [1, 1 if rows == [1] else guesses, width]))
    _same(f"{name} gives scores", others, scores if samples else [])


def expected_inputs(manifest: Manifest) -> dict[str, Signature]:
    """Return what each method of the artifact takes."""
    options = manifest.options
    tokens = {"prefill": options.prefill_chunk, "decode": 1, "forward": 1} | _verifying(options)
    inputs = {name: [("int64", [1, count])] for name, count in tokens.items()}
    moves = ("commit", *(SLOT_METHODS if options.snapshot_slots else ()))
    inputs |= {name: [*inputs.get(name, []), NUMBER] for name in ("prefill", "forward", *moves)}
    return inputs | {"reset": []} | _drafting_inputs(manifest)


def _drafting_inputs(manifest: Manifest) -> dict[str, Signature]:
    """What the drafter's methods take: as many hidden states as the target puts out for its taps, and the tokens after them."""
    drafter, options = manifest.drafter, manifest.options
    if drafter is None:
        return {}
    tapped = manifest.methods["verify"].outputs[1:] if "verify" in manifest.methods else []
    width = tapped[0].shape[-1] // len(options.tap_layers) * len(drafter.taps) if tapped and tapped[0].shape else 0

    def pairs(tokens: int) -> Signature:
        return [("float32", [1, tokens, width]), ("int64", [1, tokens]), NUMBER]

    draws = {
        name: [("float32", [1, count]), ("float32", [1])] if drafter.samples else [] for name, count in drafter.methods.items()
    }
    return {name: pairs(options.verify_len) + each for name, each in draws.items()} | {
        "draft_prefill": pairs(options.prefill_chunk)
    }


def expected_rows(options: ExportOptions) -> dict[str, int]:
    """Return how many rows of logits each method gives that gives any."""
    return {"prefill": 1, "decode": 1, "forward": 1} | _verifying(options)


def _verifying(options: ExportOptions) -> dict[str, int]:
    return {"verify": options.verify_len} | {shorter_verify(length): length for length in options.shorter_verify_lens}


def check_program(manifest: Manifest, metas: Mapping[str, Any], constants: Mapping[str, list[Any]]) -> None:
    """Raises ArtifactError where signatures, state or constants differ.

    metas: the runtime's MethodMeta by method name; constants: all that each constant method answers, but for those of
    ``OF_DRAFTERS`` that the program lacks.
    """
    for name, method in manifest.methods.items():
        meta = metas[name]
        _same(f"{name} takes", _tensors(meta.num_inputs(), meta.input_tensor_meta), _entries(method.inputs))
        _same(f"{name} gives", _tensors(meta.num_outputs(), meta.output_tensor_meta), _entries(method.outputs))
    _same("the state is", _tensors(metas["decode"].num_attributes(), metas["decode"].attribute_tensor_meta), _state(manifest))
    expected = expected_constants(manifest)
    for name, found in constants.items():
        _same(f"{name}() is", found, expected[name])


def expected_constants(manifest: Manifest) -> dict[str, list[int]]:
    """Return the values that the manifest expects of the program's constant methods."""
    options, drafter = manifest.options, manifest.drafter
    return {
        "get_max_seq_len": [options.max_seq_len],
        "get_vocab_size": [manifest.vocab_size],
        "get_bos_id": [-1 if manifest.bos_id is None else manifest.bos_id],
        "get_eos_ids": manifest.eos_ids or [-1],
        "hybridge_format_version": [manifest.format_version],
        "hybridge_prefill_chunk": [options.prefill_chunk],
        "hybridge_verify_len": [options.verify_len],
        "hybridge_verify_lens": options.verify_lens,
        "hybridge_snapshot_slots": [options.snapshot_slots],
        "hybridge_taps": [len(options.tap_layers)],
        "hybridge_draft_len": [max(proposing(manifest).values(), default=0)],
        **(drafter_constants(drafter, options.tap_layers) if drafter else {}),
    }


def check_buffers(manifest: Manifest, program: CheckedFile) -> None:
    """Raises ArtifactError where the program has its buffers under other names, or in another order, than the manifest."""
    names = buffer_names_of(plans_of(program), manifest.program_method("decode"))
    _same("the names of the state are", names, [STATE + name for name in buffer_names(manifest)])


def buffer_names(manifest: Manifest) -> list[str]:
    """Return the state's buffers in the program's order."""
    return [*OWN_BUFFERS, *(f"layers.{i}.{name}" for i, layer in enumerate(manifest.layers) for name in layer.buffers)]


def bounded_names(names: Sequence[str], places: Sequence[int]) -> list[str]:
    """The names at these places of the state.

    Raises ArtifactError where they are not the length and what has slots, if anything has: the places are the program's, the
    names the manifest's.
    """
    if not all(isinstance(place, int) and 0 <= place < len(names) for place in places):
        raise ArtifactError(f"the program's {BOUNDED}() is {shortened(places)}, of a state of {len(names)}; export it again.")
    bounded = [names[place] for place in places]
    kept = {name for name in names if f"{name}_slots" in names}
    if "length" not in bounded or (kept and set(bounded) != {"length", *kept}):
        raise ArtifactError(
            f"the program's {BOUNDED}() are {shortened(bounded)} by the manifest's names: these are not the length and what "
            "has slots; export the model again."
        )
    return bounded


def _state(manifest: Manifest) -> Signature:
    own = [("int64", [1]), ("int64", [1]), ("int64", [max(1, manifest.options.snapshot_slots)]), ("int64", [1])]
    return own + [entry for layer in manifest.layers for entry in _entries(list(layer.buffers.values()))]


def _entries(entries: list[TensorEntry]) -> Signature:
    return [(entry.dtype, entry.shape) for entry in entries]


def _tensors(count: int, meta: Any) -> Signature:
    try:
        return [(SCALAR_TYPES.get(meta(i).dtype(), "unknown"), list(meta(i).sizes())) for i in range(count)]
    except (IndexError, RuntimeError):
        raise ArtifactError("a method of the program takes or gives what is no tensor; export the model again.") from None


def _same(what: str, actual: object, wanted: object) -> None:
    if actual != wanted:
        raise ArtifactError(
            f"the program is not what the manifest says: {what} {shortened(actual)}, not {shortened(wanted)}. "
            "Export the model again."
        )
