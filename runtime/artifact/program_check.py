"""Check that a program has the signatures, state and constants of its manifest, and that this runtime can run it.

Everything is read from the program's file before ExecuTorch sees it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from hybridge.errors import ArtifactError
from hybridge.runtime.artifact.delegates import DELEGATED
from hybridge.runtime.artifact.drafter import drafter_constants
from hybridge.runtime.artifact.folder import CheckedFile
from hybridge.runtime.artifact.manifest import PROGRAM_VERSION, STOCK_METHODS, Manifest, TensorEntry, shortened
from hybridge.runtime.artifact.options import ExportOptions, shorter_verify
from hybridge.runtime.artifact.pictures import StockSizes
from hybridge.runtime.artifact.plan_check import Damaged, Table, plans_of
from hybridge.runtime.pinned import (
    EXTRA_TENSOR_INFO,
    INT,
    PLAN,
    PROGRAM,
    SCALAR_TYPES,
    TENSOR,
    TENSOR_FIELDS,
    VALUE,
    WHOLE_NUMBER,
    executorch_version,
)

SLOT_METHODS = ("snapshot", "restore")
STATE = "state.cache."
"""Qualified name of the cache in a program, before each buffer's own."""
NUMBER = ("int64", [1])
OWN_BUFFERS = ("length", "staged", "slot_length", "operations")
"""Buffers of the cache itself, which come before those of its layers."""

DELEGATE = "hybridge_delegate"
"""The constant method with the tokens of the shortest prompt that a delegate reads, unless the manifest has another number."""

BOUNDED = "hybridge_bounded"
"""The constant method that lists the places of the bounded buffers in the state."""

Signature = list[tuple[str, list[int]]]
"""Dtype and shape of each tensor."""


def check_methods(manifest: Manifest) -> None:
    """Raise ArtifactError if the manifest has other methods than its options ask for, or gives them other shapes."""
    inputs = expected_inputs(manifest)
    one = dict.fromkeys(("delegate_prefill", "prefill", "prefill_embeddings", "decode", "forward", "text_decoder"), 1)
    rows = one | _verifying(manifest.options)  # of logits
    # Programs that were made before ExecuTorch's MultimodalRunner could run any lack its methods.
    stock = _stock_inputs(manifest)
    if missing := [name for name in inputs if name not in manifest.methods and name not in stock]:
        raise ArtifactError(f"the manifest lists no method {', '.join(missing)}; export the model again.")
    if unknown := [name for name in manifest.methods if name not in inputs]:
        raise ArtifactError(f"the manifest lists {shortened(unknown[0])}, which is no method; export the model again.")
    for name, method in manifest.methods.items():
        _same(f"{name} takes", _entries(method.inputs), inputs[name])
        if name in rows:
            _same(f"{name} gives", _entries(method.outputs[:1]), [("float32", [1, rows[name], manifest.vocab_size])])
            answers = 2 if manifest.options.tap_layers else 1
            _same(f"the number of {name}'s outputs is", len(method.outputs), 1 if name in STOCK_METHODS else answers)
        elif (draft_len := proposing(manifest).get(name)) is not None:
            _same(f"{name} gives", _entries(method.outputs), [("int64", [1, draft_len]), ("float32", [1, draft_len])])
        elif (tokens := _embedding(manifest).get(name)) is not None:
            _same(f"{name} gives", _entries(method.outputs), [("float32", [1, tokens, _embedding_width(manifest)])])
        else:
            _same(f"{name} gives", _entries(method.outputs), [NUMBER])


def proposing(manifest: Manifest) -> dict[str, int]:
    """Return the proposing methods of the artifact's drafter, with the number of tokens that each gives."""
    return manifest.drafter.methods if manifest.drafter is not None else {}


def expected_inputs(manifest: Manifest) -> dict[str, Signature]:
    """Return the input signature of each method."""
    options = manifest.options
    tokens = {"prefill": options.prefill_chunk, "decode": 1, "forward": 1} | _verifying(options)
    inputs = {name: [("int64", [1, count])] for name, count in tokens.items()}
    moves = ("commit", *(SLOT_METHODS if options.snapshot_slots else ()))
    inputs |= {name: [*inputs.get(name, []), NUMBER] for name in ("prefill", "forward", *moves)}
    inputs |= {"reset": []} | _drafting_inputs(manifest) | _picture_inputs(manifest) | _stock_inputs(manifest)
    return inputs | {name: inputs[like] for name, like in options.delegated.items() if like in inputs}


def _embedding_width(manifest: Manifest) -> int:
    found = manifest.methods.get("prefill_embeddings")
    return found.inputs[0].shape[-1] if found and found.inputs and found.inputs[0].shape else 0


def _picture_inputs(manifest: Manifest) -> dict[str, Signature]:
    """Return the inputs of the methods for pictures: patches and their positions, and a prefill by embeddings."""
    pictures = manifest.pictures
    if pictures is None:
        return {}
    values, side, form = 3 * pictures.patch_size**2, pictures.position_side, pictures.form

    def patches(tokens: int) -> Signature:
        count = tokens * pictures.merge**2
        places = [("float32", [count, 2])] if form.has_rope else []
        weights = [] if form.has_table else [("float32", [count, side])] * 2
        return [("uint8", [count, values]), *weights, *places, NUMBER]

    width, chunk = _embedding_width(manifest), pictures.rows(manifest.options.prefill_chunk)
    grid: Signature = [("int64", [form.axes, chunk]), NUMBER] if form.axes > 1 else []
    return {name: patches(tokens) for name, tokens in pictures.methods.items()} | {
        "prefill_embeddings": [("float32", [1, chunk, width]), *grid, NUMBER]
    }


def _stock_inputs(manifest: Manifest) -> dict[str, Signature]:
    """Return the largest inputs of the methods for ExecuTorch's MultimodalRunner."""
    sizes, pictures = StockSizes.of(manifest.options, manifest.pictures), manifest.pictures
    if sizes is None or pictures is None:
        return {}
    side = sizes.squares * pictures.unit
    return {
        "stock_vision_encoder": [("uint8", [3, side, side])],
        "token_embedding": [("int64", [1, sizes.tokens])],
        "text_decoder": [("float32", [1, sizes.tokens, _embedding_width(manifest)]), NUMBER],
    }


def _embedding(manifest: Manifest) -> dict[str, int]:
    """Return the methods that give embeddings, with the most of each."""
    sizes, pictures = StockSizes.of(manifest.options, manifest.pictures), manifest.pictures
    stock = {"stock_vision_encoder": sizes.squares**2, "token_embedding": sizes.tokens} if sizes else {}
    encoding = pictures.methods if pictures is not None else {}
    delegated = {name: encoding[like] for name, like in manifest.options.delegated.items() if like in encoding}
    return stock | encoding | delegated


def _drafting_inputs(manifest: Manifest) -> dict[str, Signature]:
    """Return the inputs of the drafter's methods: the target's tapped hidden states and the tokens after them."""
    drafter, options = manifest.drafter, manifest.options
    if drafter is None:
        return {}
    tapped = manifest.methods["verify"].outputs[1:] if "verify" in manifest.methods else []
    width = tapped[0].shape[-1] // len(options.tap_layers) * len(drafter.taps) if tapped and tapped[0].shape else 0

    def pairs(tokens: int) -> Signature:
        return [("float32", [1, tokens, width]), ("int64", [1, tokens]), NUMBER]

    draws = {
        name: [("int64", [1, count]), ("float32", [1])] if drafter.samples else [] for name, count in drafter.methods.items()
    }
    return {name: pairs(options.verify_len) + each for name, each in draws.items()} | {
        "draft_prefill": pairs(options.prefill_chunk)
    }


def _verifying(options: ExportOptions) -> dict[str, int]:
    return {"verify": options.verify_len} | {shorter_verify(length): length for length in options.shorter_verify_lens}


def check_program(manifest: Manifest, program: CheckedFile) -> None:
    """Raise ArtifactError if the program has other signatures, state or constants than its manifest says."""
    try:
        plans = {plan.text(PLAN.name): plan for plan in Table.root(plans_of(program)).tables(PROGRAM.execution_plan)}
        for name, method in manifest.methods.items():
            plan = _plan(plans, manifest.program_method(name))
            _same(f"{name} takes", [_tensor(each) for each in _values(plan, PLAN.inputs)], _entries(method.inputs))
            _same(f"{name} gives", [_tensor(each) for each in _values(plan, PLAN.outputs)], _entries(method.outputs))
        state = dict(_named(_plan(plans, manifest.program_method("decode"))))
        _same("the names of the state are", [*state], [STATE + name for name in buffer_names(manifest)])
        own = [NUMBER, NUMBER, ("int64", [max(1, manifest.options.snapshot_slots)]), NUMBER]
        layers = [entry for layer in manifest.layers for entry in _entries(list(layer.buffers.values()))]
        _same("the state is", [*state.values()], own + layers)
        for name, expected in expected_constants(manifest).items():
            _same(f"{name}() is", _constants(_plan(plans, name)), expected)
        _check_bounded(buffer_names(manifest), _constants(_plan(plans, BOUNDED)))
        if manifest.options.delegate != "none":
            _same("the number of values of hybridge_delegate() is", len(_constants(_plan(plans, DELEGATE))), 1)
    except Damaged as error:
        raise ArtifactError(f"the program's plan cannot be read ({error}); export the model again.") from None


def _plan(plans: Mapping[str | None, Table], method: str) -> Table:
    if (plan := plans.get(method)) is None:
        raise ArtifactError(f"the program has no method {method}; export the model again.")
    return plan


def _values(plan: Table, field: int) -> Iterator[Table]:
    """Yield the values of a plan at the places that a field lists. Raises IndexError."""
    for place in plan.numbers(field, "i"):
        yield plan.entry(PLAN.values, place)


def _tensor(value: Table) -> tuple[str, list[int]]:
    tensor = value.table(VALUE.val)
    if tensor is None or value.number(VALUE.val_type, "B") != TENSOR:
        raise ArtifactError("a method of the program takes or gives what is no tensor; export the model again.")
    dtype = SCALAR_TYPES.get(tensor.number(TENSOR_FIELDS.scalar_type, "b"), "unknown")
    return dtype, list(tensor.numbers(TENSOR_FIELDS.sizes, "i"))


def _named(plan: Table) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    """Yield the qualified name and signature of each buffer of the state; no other tensor has a name."""
    for value in plan.tables(PLAN.values):
        tensor = value.table(VALUE.val) if value.number(VALUE.val_type, "B") == TENSOR else None
        extra = tensor.table(TENSOR_FIELDS.extra_tensor_info) if tensor else None
        name = extra.text(EXTRA_TENSOR_INFO.fully_qualified_name) if extra else None
        if name is not None:
            yield name, _tensor(value)


def _constants(plan: Table) -> list[int]:
    """Return the whole numbers that a constant method answers with."""
    contents = [(each.number(VALUE.val_type, "B"), each.table(VALUE.val)) for each in _values(plan, PLAN.outputs)]
    return [number.number(WHOLE_NUMBER.int_val, "q") if kind == INT and number else 0 for kind, number in contents]


def expected_constants(manifest: Manifest) -> dict[str, list[int]]:
    """Return the values that the manifest expects of the program's constant methods."""
    options, drafter = manifest.options, manifest.drafter
    return {
        "get_max_seq_len": [options.max_seq_len],
        "get_vocab_size": [manifest.vocab_size],
        "get_bos_id": [-1 if manifest.bos_id is None else manifest.bos_id],
        "get_eos_ids": manifest.eos_ids or [-1],
        "hybridge_format_version": [PROGRAM_VERSION],
        "hybridge_prefill_chunk": [options.prefill_chunk],
        "hybridge_verify_len": [options.verify_len],
        "hybridge_verify_lens": options.verify_lens,
        "hybridge_snapshot_slots": [options.snapshot_slots],
        "hybridge_taps": [len(options.tap_layers)],
        "hybridge_draft_len": [max(proposing(manifest).values(), default=0)],
        **(drafter_constants(drafter, options.tap_layers) if drafter else {}),
        **(manifest.pictures.constants if manifest.pictures else {}),
    }


def buffer_names(manifest: Manifest) -> list[str]:
    """Return the state's buffers in the program's order."""
    return [*OWN_BUFFERS, *(f"layers.{i}.{name}" for i, layer in enumerate(manifest.layers) for name in layer.buffers)]


def _check_bounded(names: Sequence[str], places: Sequence[int]) -> None:
    """Raise ArtifactError if the bounded buffers are not the length and, if any buffer has slots, all that have.

    Args:
        names: of the state's buffers, by the manifest.
        places: of the bounded ones among them, by the program.
    """
    if not all(0 <= place < len(names) for place in places):
        raise ArtifactError(f"the program's {BOUNDED}() is {shortened(places)}, of a state of {len(names)}; export it again.")
    bounded = [names[place] for place in places]
    kept = {name for name in names if f"{name}_slots" in names}
    if "length" not in bounded or (kept and set(bounded) != {"length", *kept}):
        raise ArtifactError(
            f"the program's {BOUNDED}() are {shortened(bounded)} by the manifest's names: these are not the length and what "
            "has slots; export the model again."
        )


def _entries(entries: list[TensorEntry]) -> Signature:
    return [(entry.dtype, entry.shape) for entry in entries]


def _same(what: str, actual: object, wanted: object) -> None:
    if actual != wanted:
        raise ArtifactError(
            f"the program is not what the manifest says: {what} {shortened(actual)}, not {shortened(wanted)}. "
            "Export the model again."
        )


LIBRARIES = {"pte": "executorch", "onnx": "onnxruntime"}
"""The library that runs an artifact, by format."""
OURS = "hybridge::"
MOST_NAMED = 8
"""Most missing operators or backends that an error lists."""


def check_runtime(manifest: Manifest, operators: Collection[str], backends: Collection[str]) -> None:
    """Check that the installed runtime has the operators and backends that the program needs. Raises ArtifactError."""
    missing = sorted(manifest.operators - set(operators))
    if ours := [name for name in missing if name.startswith(OURS)]:
        raise ArtifactError(
            f"this hybridge has no operator {_names(ours)}, which the program calls. Export the model again, or use hybridge "
            f"{manifest.versions.get('hybridge', 'of the version')} that made it."
        )
    if missing:
        raise ArtifactError(
            f"this ExecuTorch has no operator {_names(missing)}, which the program calls.{other_version(manifest)} "
            "Export the model again, with --kernels aten if the operator is still missing then."
        )
    delegates = {each for name, method in manifest.methods.items() if name not in DELEGATED for each in method.delegates}
    if absent := sorted(delegates - set(backends)):
        raise ArtifactError(
            f"this ExecuTorch has no backend {_names(absent)}, to which the program hands parts.{other_version(manifest)} "
            "Export the model again, with --backend portable if the backend is still missing then."
        )


def other_version(manifest: Manifest) -> str:
    """Return a sentence, after a space, if the installed library is not the version that made the artifact; else nothing."""
    library = LIBRARIES[manifest.options.format]
    made, here = manifest.versions.get(library), installed(library)
    return "" if made in (None, here) else f" It was made with {library} {made}, and {here} is installed here."


def installed(library: str) -> str:
    """Return the installed version of a library, or ``none``."""
    if library == "executorch":
        return executorch_version() or "none"
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
