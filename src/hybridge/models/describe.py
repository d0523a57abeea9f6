"""``hybridge inspect`` of a checkpoint that was not exported: what it is, without a minute of exporting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape

from hybridge.errors import UsageError
from hybridge.export.source.files import text_part
from hybridge.export.source.locate import hub_model
from hybridge.models.find import NamedModel
from hybridge.models.kept import ModelCache
from hybridge.models.progress import duration, expected
from hybridge.runtime.cli.console import err, megabytes, out, print_json, table
from hybridge.runtime.pack.gguf import hub_origin

SIZES = {
    "num_hidden_layers": "layers", "hidden_size": "hidden size", "intermediate_size": "inner size",
    "num_attention_heads": "attention heads", "num_key_value_heads": "heads of keys and values",
    "vocab_size": "vocabulary", "max_position_embeddings": "longest text",
}  # fmt: skip
"""Fields of a config with words for them."""


def describe(model: NamedModel, *, json: bool) -> None:
    """Print what a checkpoint is and how it would be exported. Raises CheckpointError for one that cannot be."""
    if not model.is_here and hub_model(str(model.name)):
        raise UsageError(
            f"{model.name} is not on this machine, and inspect downloads nothing: 'hf download {model.name}' does."
        )
    facts, config, warnings = _of_file(model) if model.checkpoint.is_file() else _of_folder(model)
    found = {**facts, **dict(_sizes(config))}
    if json:
        print_json({"exported": False, **found})
        return
    grid = table(escape(str(model.name)), "", "")
    for name, value in found.items():
        grid.add_row(escape(name), escape(value))
    out.print(grid)
    for text in warnings:
        err.print(f"[yellow]Warning:[/] {escape(text)}", highlight=False, soft_wrap=True)
    seconds = duration(expected(ModelCache().models(), model.identity.size).seconds)
    name = escape(str(model.name))
    out.print(
        f"It is not exported yet: 'hybridge run {name} --prompt …' does that once, in about {seconds}. "
        f"'hybridge export {name} -o OUT' writes a folder of your own.",
        highlight=False,
        soft_wrap=True,
    )


def _of_file(model: NamedModel) -> tuple[dict[str, str], Mapping[str, Any], list[str]]:
    """Return what a GGUF file is, and its config, without PyTorch, which takes long to start or is not there."""
    from hybridge.export.source.gguf.file import open_gguf
    from hybridge.export.source.gguf.projectors import WholeModel

    file = open_gguf(model.checkpoint)
    whole = WholeModel.of(file)
    types = sorted({tensor.kind_name for tensor in file.tensors.values() if not tensor.is_float})
    facts = _facts(model, "a GGUF file", hub_origin(file.path), str(whole.config["model_type"]), ", ".join(types))
    warnings = [f"Pictures are left out: {whole.left_out}"] if whole.left_out else []
    return facts, text_part(whole.config) or whole.config, warnings


def _of_folder(model: NamedModel) -> tuple[dict[str, str], Mapping[str, Any], list[str]]:
    """Return what a folder is, with its config and warnings."""
    with model.needs_export():
        from hybridge.export.source.checkpoint import resolve_checkpoint

        source = resolve_checkpoint(model.checkpoint)
    method = source.quantization.method.name if source.quantization is not None else ""
    facts = _facts(model, "a folder in transformers' format", source.origin, str(source.config.model_type), method)
    return facts, source.text_config.to_dict(), [*source.warnings()]


def _facts(model: NamedModel, form: str, origin: str | None, model_type: str, quantized: str) -> dict[str, str]:
    found = {"checkpoint": form, "made of": origin or "", "size": megabytes(model.identity.size)}
    found |= {"model type": model_type, "quantized": quantized}
    return {name: value for name, value in found.items() if value}


def _sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, words in SIZES.items():
        if isinstance(value := config.get(name), int):
            yield words, f"{value:,}"
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        yield "kinds of layers", ", ".join(f"{count} {kind}" for kind, count in Counter(map(str, kinds)).most_common())
