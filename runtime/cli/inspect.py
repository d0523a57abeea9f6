"""``hybridge inspect``: show an artifact's manifest as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from hybridge.runtime.cli.console import check_writable_file, megabytes, out, print_json, table
from hybridge.runtime.cli.options import HtmlOption, JsonOption, ModelArgument

if TYPE_CHECKING:  # pydantic takes long to start: it is imported when the command runs
    from hybridge.runtime.artifact.drafter import DrafterDescription
    from hybridge.runtime.artifact.folder import Artifact
    from hybridge.runtime.artifact.manifest import Manifest, OnnxEntry, TensorEntry

EXAMPLES = (
    "hybridge inspect OUT",
    "hybridge inspect model-Q4_K_M.gguf",
    "hybridge inspect OUT --all",
    "hybridge inspect OUT --html plan.html",
    "hybridge inspect OUT --json",
)


def inspect(
    model: ModelArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show options, files, layers, state, methods, operators and backends.")
    ] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Show an artifact's size, context, memory, drafter and uses, after checking its hashes.

    A checkpoint that was not exported is described without an export.
    """
    if html is not None:
        from hybridge.runtime.html_report import artifact_sections, check_matplotlib, write_page

        check_writable_file(html)
        check_matplotlib("--html")
    from hybridge.runtime.artifact.folder import open_artifact

    opened = open_artifact(model)
    manifest = opened.manifest
    if html is not None:
        sections = artifact_sections(
            manifest, list(summary(manifest, _chats(opened), _sampling(opened))), kinds_of_bits(manifest)
        )
        write_page(html, opened.folder.name, sections)
    if json:
        print_json(manifest.model_dump(mode="json"))
    elif html is None:
        show(opened, everything=everything)


def show(artifact: Artifact, *, everything: bool) -> None:
    """Print what a person asks first, and the manifest as tables if they want everything."""
    from hybridge.runtime.artifact.program_check import other_version

    manifest = artifact.manifest
    grid = table(escape(str(artifact.folder)), "", "")
    grid.columns[1].justify = "left"
    for name, value in essentials(manifest, _chats(artifact)):
        grid.add_row(escape(name), escape(value))
    out.print(grid)
    if note := other_version(manifest):
        out.print(f"{escape(note.strip())} Loading it checks that this one has all of its operators and backends.")
    if not everything:
        out.print("--all shows options, files, layers, methods and operators.", highlight=False)
        return
    _print_summary(artifact)
    _print_layers(manifest)
    _print_bits(manifest)
    _print_methods(manifest)
    _print_operators(manifest)
    if manifest.onnx is not None:
        _print_onnx(manifest.onnx)


def _print_summary(artifact: Artifact) -> None:
    manifest = artifact.manifest
    grid = table("The artifact", "", "")
    for name, value in summary(manifest, _chats(artifact), _sampling(artifact)):
        grid.add_row(escape(name), escape(value))
    out.print(grid)


def essentials(manifest: Manifest, chats: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of what a person asks first. chats: how they are written. hybridge-cli says the same."""
    size = sum(manifest.files[name].size for name in manifest.program_files)
    state = sum(layer.state_bytes for layer in manifest.layers)
    extra = sum(layer.rollback_bytes + layer.slot_bytes for layer in manifest.layers)
    yield "model", manifest.model_type + (f", made of {manifest.source}" if manifest.source is not None else "")
    weights = f", {manifest.parameters / 1e6:.1f} million weights" if manifest.parameters else ""
    bits = f" of {manifest.bits_per_weight:.2f} bits" if manifest.parameters and manifest.bits_per_weight else ""
    yield "size", megabytes(size) + weights + bits
    yield "context", f"{manifest.options.max_seq_len} tokens"
    yield (
        "memory",
        (
            f"{megabytes(manifest.weight_bytes)} of weights, {megabytes(state)} of state for a full context, "
            f"{megabytes(extra)} to go back"
        ),
    )
    if manifest.options.delegate != "none":
        yield "delegate", _delegate(manifest)
    own = "prompt lookup" if manifest.drafter is None else f"its own ({manifest.drafter.kind}) and prompt lookup"
    yield "drafter", own if manifest.options.verify_len > 1 else "none: it verifies one token at a time"
    apps = "Python" if manifest.onnx is not None else "Python, C, C++, Kotlin, Swift and JavaScript"
    yield "use", f"{apps}; chats {chats}"


def summary(manifest: Manifest, chats: str, sampling: str) -> Iterator[tuple[str, str]]:
    """Yield names and values that describe an artifact as a whole. chats, sampling: how they are written and sampled."""
    yield "format version", f"{manifest.format_version}"
    yield "model type", manifest.model_type
    if manifest.source is not None:
        yield "made of", manifest.source
    yield "vocabulary", f"{manifest.vocab_size} tokens, bos {manifest.bos_id}, eos {manifest.eos_ids}"
    for name, value in _options(manifest).items():
        yield name, _shown(value)
    yield "logits", _bits(manifest)
    for name, file in manifest.files.items():
        yield name, f"{megabytes(file.size)}  sha256 {file.sha256[:16]}…"
    yield "weights", megabytes(manifest.weight_bytes)
    if manifest.parameters and manifest.bits_per_weight:
        yield "bits a weight", f"{manifest.bits_per_weight:.2f}, of the whole file for {manifest.parameters / 1e6:.1f} million"
    if manifest.drafter is not None:
        yield "drafter", _drafter(manifest.drafter)
    if manifest.pictures is not None:
        most = manifest.pictures.budgets
        yield "pictures", f"encoded in at most {' or '.join(map(str, most))} tokens at once (docs/images.md)"
    yield "chats", chats
    yield "sampling", sampling
    yield "made with", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())


def _shown(value: object) -> str:
    """Return an option's value as on the command line."""
    if not isinstance(value, tuple):
        return str(value)
    return ", ".join("=".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in value) or "none"


def _options(manifest: Manifest) -> dict[str, object]:
    """Return the options that have a meaning for the artifact's format, by name."""
    pte_only = ("backend", "kernels") if manifest.onnx else ()
    return {name: value for name, value in vars(manifest.options).items() if name not in pte_only}


def _delegate(manifest: Manifest) -> str:
    """Return the accelerator, what it reads, and the bytes that it adds."""
    options = manifest.options
    methods = [manifest.methods[name] for name in options.delegated]
    parts = sum(sum(each.delegates.values()) for each in methods)
    size = megabytes(sum(each.delegate_bytes for each in methods))
    takes = {"prefill": f"reads prompts from {options.delegate_from} tokens on", "encode": "encodes pictures"}
    whole = megabytes(sum(manifest.files[name].size for name in manifest.program_files))
    return (
        f"{options.delegate}:{options.delegate_device} {' and '.join(takes[each] for each in options.delegate_methods)}, in "
        f"{parts} parts of {size}, of {whole} in all, with weights in {options.delegate_weights}; the CPU's own methods do the "
        "rest, and all without it"
    )


def _bits(manifest: Manifest) -> str:
    """Return whether a text's logits have the same bits however it is read (docs/speculation.md)."""
    if manifest.has_same_bits:
        same = "bit-identical however a text is read, on one instruction set"
        return same if manifest.options.delegate == "none" else f"{same}; not for prompts that the delegate reads"
    return "not bit-identical: decodes, verifies and prefills may differ by rounding"


def _drafter(drafter: DrafterDescription) -> str:
    """Return the drafter's kind, blocks, taps and draft vocabulary."""
    blocks, taps = ("/".join(map(str, each)) for each in (drafter.blocks, drafter.taps))
    drawn = "best or drawn" if drafter.samples else "best"
    among = "" if drafter.vocabulary is None else f", among {drafter.vocabulary}"
    return f"{drafter.kind}: {drawn} tokens in blocks of {blocks}, from the hidden states {taps}{among}"


def _sampling(artifact: Artifact) -> str:
    """Return how texts are sampled unless options say otherwise."""
    from hybridge.runtime.text.generate import model_sampling

    return str(model_sampling(artifact))


def _chats(artifact: Artifact) -> str:
    """Return how chats are written."""
    from hybridge.runtime.binding.jinja import JinjaTemplate

    found = JinjaTemplate(artifact.folder).description
    if not found.names:
        return "none: there is no chat template, so the model was not made to chat"
    pictures = ", with pictures" if artifact.manifest.pictures is not None else ""
    switch = "thinking can be switched" if found.thinking_switch else "no switch for thinking"
    return f"by its chat template ({', '.join(found.names)}){pictures}; {switch}"


def _print_layers(manifest: Manifest) -> None:
    grid = table("Layers", "layer", "kind", "state", "state bytes", "+ rollback", "+ slots")
    for i, layer in enumerate(manifest.layers):
        hidden = ("staged_", "_slots")
        state = [f"{name} {_shape(t)}" for name, t in layer.buffers.items() if not any(mark in name for mark in hidden)]
        sizes = (layer.state_bytes, layer.rollback_bytes, layer.slot_bytes)
        grid.add_row(f"{i}", layer.kind, "\n".join(state), *(f"{size:,}" for size in sizes))
    state_bytes = sum(layer.state_bytes for layer in manifest.layers)
    rollback, slots = (sum(getattr(layer, name) for layer in manifest.layers) for name in ("rollback_bytes", "slot_bytes"))
    grid.add_section()
    grid.add_row("all", "", "", f"{state_bytes:,}", f"{rollback:,} ({rollback / state_bytes:.1%})", f"{slots:,}")
    out.print(grid)


def _print_bits(manifest: Manifest) -> None:
    """Print the bits of each kind of rounded weight; kinds are names without the numbers of layers."""
    if not manifest.bits:
        return
    grid = table("Weights of fewer bits; all others are float32", "weight", "bits", "layers")
    for kind, bits, count in kinds_of_bits(manifest):
        grid.add_row(escape(kind), f"{bits}", f"{count}")
    out.print(grid)


def kinds_of_bits(manifest: Manifest) -> list[tuple[str, int, int]]:
    """Return the kinds of rounded weights with their bits and their number."""
    kinds = Counter(
        (".".join(part for part in name.split(".") if not part.isdigit()), bits) for name, bits in manifest.bits.items()
    )
    return [(kind, bits, count) for (kind, bits), count in sorted(kinds.items())]


def _print_methods(manifest: Manifest) -> None:
    grid = table("Methods", "method", "inputs", "output", "operators", "delegates")
    for name, method in manifest.methods.items():
        delegates = ", ".join(f"{count} × {backend}" for backend, count in method.delegates.items()) or "none"
        inputs, outputs = (" ".join(_shape(entry) for entry in entries) for entries in (method.inputs, method.outputs))
        grid.add_row(manifest.program_method(name), inputs or "none", outputs, f"{len(method.operators)}", delegates)
    out.print(grid)


def _print_operators(manifest: Manifest) -> None:
    operators = sorted({name for method in manifest.methods.values() for name in method.operators})
    out.print(f"[bold]Operators that the runtime must have ({len(operators)})[/]")
    out.print(", ".join(operators), highlight=False)


def _print_onnx(entry: OnnxEntry) -> None:
    grid = table(f"ONNX, opset {entry.opset}", "tensor", "use", "shape")
    for state in entry.states:
        grid.add_row(state.name, f"{state.kind} state", _shape(state))
    for staged in entry.staged:
        grid.add_row(staged.name, "staged for a commit", _shape(staged))
    out.print(grid)
    out.print(f"[bold]Fused operators that onnxruntime must have ({len(entry.contrib_operators)})[/]")
    out.print(", ".join(entry.contrib_operators) or "none", highlight=False)


def _shape(entry: TensorEntry) -> str:
    return f"{entry.dtype}{entry.shape}"
