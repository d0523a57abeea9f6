"""Measure roundings and recipes on a trained model: how far its logits move from those in float32, and bytes.

The model is SmolLM2-135M-Instruct, whose published weights have 4 bits already: rounding them to 4 bits again would be too
easy. So they are taken off their grid first, by factors of random size that one layer multiplies with and the next divides by,
which change nothing of what the model computes. It is rounded as an export does and run by PyTorch: nothing is exported.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from campaigns import campaign
from campaigns.real_models.models import SMOLLM2, gguf_of
from hybridge.export.check.evaluate import Comparison
from hybridge.export.quantize.bits import with_recipe
from hybridge.export.quantize.gptq import calibrate
from hybridge.export.quantize.quantize import quantize
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint
from hybridge.export.write.manifest import parameter_count, weight_bytes
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer

PROSE = Path(__file__).parent / "real_models" / "prose.txt"
BLOCKS: dict[str, Any] = {"rounding": "blocks"}
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "4 bits, a scale (`--rounding nearest`)": ({"quantize": "8da4w", "embedding_quantize": "4w", "rounding": "nearest"}, ""),
    "4 bits, a scale (`--rounding search`)": ({"quantize": "8da4w", "embedding_quantize": "4w"}, ""),
    "4 bits, a scale and a minimum (`--recipe small`)": ({"recipe": "small"} | BLOCKS, ""),
    "`--recipe balanced`, the default": ({"recipe": "balanced"} | BLOCKS, ""),
    "`--recipe balanced --calibrate self`": ({"recipe": "balanced"} | BLOCKS, "self"),
    "`--recipe quality`": ({"recipe": "quality"} | BLOCKS, ""),
    "8 bits (`--quantize 8w --embedding-quantize 8w`)": ({"quantize": "8w", "embedding_quantize": "8w"}, ""),
}


def main() -> int:
    """Print a row for each rounding and recipe."""
    parser = campaign.parser("quality", __doc__)
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "hybridge-bench", help="where the model is kept")
    parser.add_argument("--only", default="", help="only rows whose name has this")
    options = parser.parse_args()
    gguf = gguf_of(SMOLLM2, options.work / "real")
    original = off_its_grid(gguf)
    tokens = tokens_of(original)
    want = logits(original, tokens)
    print(f"{SMOLLM2.name}, off its grid; {len(tokens)} tokens of English prose\n")
    print("| | bits a weight | MB | KL, nats | same best token | perplexity |\n|---|---|---|---|---|---|")
    for name, (choices, source) in ROWS.items():
        if options.only in name:
            print(row(name, rounded(off_its_grid(gguf), choices, source), tokens, want), flush=True)
    return 0


def row(name: str, other: LoadedModel, tokens: list[int], want: Tensor) -> str:
    """Return a row for a model that was rounded."""
    comparison = Comparison()
    comparison.add(tokens, want, logits(other, tokens))
    whole, size = comparison.report().whole, weight_bytes(other.model)
    bits = 8 * size / parameter_count(other.model)
    same = f"{100 * whole.top1_agreement:.1f} %"
    return f"| {name} | {bits:.2f} | {size / 1e6:.1f} | {whole.kl:.4f} | {same} | {whole.perplexity:.2f} |"


@torch.no_grad()
def off_its_grid(gguf: Path) -> LoadedModel:
    """Return the model with other weights that compute the same; its embedding stays."""
    loaded = load_checkpoint(gguf)
    model: Any = loaded.model
    random = torch.Generator().manual_seed(0)

    def factors(count: int) -> Tensor:
        return torch.empty(count).uniform_(-0.3, 0.3, generator=random).exp()

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        norms = (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj))
        for norm, readers in (norms, (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj))):
            each = factors(len(norm.weight))
            norm.weight /= each
            for reader in readers:
                reader.weight *= each
        values, heads = attention.v_proj.weight, attention.o_proj.weight
        each = factors(len(values))
        values /= each[:, None]
        shared = heads.shape[1] // len(values)  # query heads of a key/value head
        heads *= each.view(-1, 1, attention.head_dim).expand(-1, shared, -1).reshape(-1)
        each = factors(len(mlp.up_proj.weight))
        mlp.up_proj.weight /= each[:, None]
        mlp.down_proj.weight *= each
    return loaded


def rounded(checkpoint: LoadedModel, choices: dict[str, Any], source: str) -> LoadedModel:
    """Round the weights of a checkpoint in place, as an export with the options ``choices`` does."""
    options = with_recipe(ExportOptions(**choices))
    rounder = calibrate(checkpoint, options, source).rounder if source else None
    quantize(checkpoint.model, options, rounder)
    return checkpoint


def tokens_of(checkpoint: LoadedModel) -> list[int]:
    """Return the tokens of the prose."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.source.tokenizer.write(Path(folder))
        tokens: list[int] = Tokenizer.from_file(Path(folder) / "tokenizer.json").encode(PROSE.read_text(encoding="utf-8")).ids
    return tokens


@torch.no_grad()
def logits(checkpoint: LoadedModel, tokens: list[int]) -> Tensor:
    """Return the logits [T, V] after each token."""
    found: Tensor = checkpoint.model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
