"""``hybridge inspect`` of a checkpoint that was not exported: what it is, without a minute of exporting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.markup import escape

from hybridge.errors import UsageError
from hybridge.export.source.locate import hub_model
from hybridge.models.find import NamedModel
from hybridge.models.kept import ModelCache
from hybridge.models.progress import duration, expected
from hybridge.runtime.cli.console import err, megabytes, out, print_json, table

if TYPE_CHECKING:  # PyTorch takes long to start
    from hybridge.export.source.checkpoint import CheckpointSource

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
    with model.needs_export():
        from hybridge.export.source.checkpoint import resolve_checkpoint

        source = resolve_checkpoint(model.checkpoint)
    found = dict(_facts(model, source))
    if json:
        print_json({"exported": False, **found})
        return
    grid = table(escape(str(model.name)), "", "")
    for name, value in found.items():
        grid.add_row(escape(name), escape(value))
    out.print(grid)
    for text in source.warnings():
        err.print(f"[yellow]Warning:[/] {escape(text)}", highlight=False, soft_wrap=True)
    seconds = duration(expected(ModelCache().models(), model.identity.size).seconds)
    name = escape(str(model.name))
    out.print(
        f"It is not exported yet: 'hybridge run {name} --prompt …' does that once, in about {seconds}. "
        f"'hybridge export {name} -o OUT' writes a folder of your own.",
        highlight=False,
        soft_wrap=True,
    )


def _facts(model: NamedModel, source: CheckpointSource) -> Iterator[tuple[str, str]]:
    config = source.text_config
    yield "checkpoint", "a GGUF file" if source.gguf is not None else "a folder in transformers' format"
    if source.origin is not None:
        yield "made of", source.origin
    yield "size", megabytes(model.identity.size)
    yield "model type", str(source.config.model_type)
    if source.gguf_types:
        yield "quantized", ", ".join(source.gguf_types)
    elif source.quantization is not None:
        yield "quantized", source.quantization.method.name
    for name, words in SIZES.items():
        if isinstance(value := getattr(config, name, None), int):
            yield words, f"{value:,}"
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list):
        yield "kinds of layers", ", ".join(f"{count} {kind}" for kind, count in Counter(map(str, kinds)).most_common())
