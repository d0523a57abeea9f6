"""Count the outputs and logits that do not depend on how their tokens were read: by decodes, verifies or prefills in chunks.

Each operator of ``--kernels hybridge`` that reads several tokens runs over the same tokens one by one and in blocks; then
whole models do. A row is one token's output, or its logits, in one of these ways; it is the same if all its bits are those of a
decode. Differences are parts of the largest number of a decode's rows.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from kernel_program import KernelProgram, one
from numpy.typing import NDArray
from packed_weights import HALVES, KINDS, packed_blocks
from recurrences import CASES, Recurrence
from tiny import save_lively_checkpoint, tiny_config
from torch import Tensor
from zoo import VARIANTS

from campaigns import campaign
from campaigns.real_models.models import GEMMA3, SMOLLM2, RealModel, gguf_of
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.export.api import export_model
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.export.operators.define import ops
from hybridge.export.weights import PackedExperts, PackedLinear, PackedWeight
from hybridge.runtime import Session
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer

TOKENS, BLOCKS = 48, (2, 3, 8)
"""Tokens that are read in each way, and the blocks that they are read in; prefills also read all of them at once."""
WORK = Path.home() / ".cache" / "hybridge-bench"


@dataclass
class Count:
    """Rows that are compared with those of decodes."""

    rows: int = 0
    same: int = 0
    difference: float = 0.0
    unlike: list[str] = field(default_factory=list)

    def add(self, way: str, got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
        """Compare rows that were read in a way with the decodes' rows of the same tokens."""
        got, want = (each.reshape(len(each), -1) for each in (got, want))
        same = (got.view(np.int32) == want.view(np.int32)).all(axis=1)
        self.rows, self.same = self.rows + len(got), self.same + int(same.sum())
        apart = np.where(np.isnan(got) | np.isnan(want), np.inf, np.abs(got - want)) / np.abs(want).max()
        self.difference = max(self.difference, float(apart.max()))
        if not same.all() and way not in self.unlike:
            self.unlike.append(way)

    def line(self, name: str) -> str:
        """Return a row of a table."""
        return f"| {name} | {self.same} of {self.rows} | {self.difference:.1e} | {', '.join(self.unlike)} |"


def by_token(function: Callable[..., Tensor], *inputs: Tensor, first: int = 0) -> Count:
    """Read the tokens of ``inputs`` [1, T, ...] in blocks; ``function`` also gets the position of a block's first token.

    Args:
        function: gives the outputs [1, T, ...] of tokens that depend on nothing but themselves and what is there before.
        inputs: the tokens.
        first: the position of the first.
    """
    count = Count()

    def read(each: int) -> NDArray[np.float32]:
        blocks = [[x[:, at : at + each].contiguous() for x in inputs] for at in range(0, TOKENS, each)]
        program = KernelProgram(function, [*blocks[0], one(first)])
        return torch.cat([program(*block, one(first + i * each))[0] for i, block in enumerate(blocks)], 1)[0].numpy()

    want = read(1)
    for each in (*BLOCKS, TOKENS):
        count.add(f"{each}", read(each), want)
    return count


def recurrent(make: Callable[[], Recurrence]) -> Count:
    """Read a recurrence's tokens as blocks, and as verifies with a commit after each."""
    torch.manual_seed(0)
    recurrence, count = make(), Count()
    inputs = recurrence.inputs(TOKENS, TOKENS)

    def blocks(each: int) -> NDArray[np.float32]:
        program = KernelProgram(
            recurrence.extend, [*(x[:, :each].contiguous() for x in inputs), one(each)], state=recurrence.state
        )
        parts = [[x[:, at : at + each].contiguous() for x in inputs] for at in range(0, TOKENS, each)]
        return torch.cat([program(*part, one(each))[0] for part in parts], 1)[0].numpy()

    def verifies(each: int) -> NDArray[np.float32]:
        def step(*rows: Tensor, state: Tensor, **staged: Tensor) -> Tensor:
            out = recurrence.verify(*rows, state=state, **staged)
            recurrence.commit(one(each), state=state, **staged)
            return out

        program = KernelProgram(
            step, [x[:, :each].contiguous() for x in inputs], state=recurrence.state, **recurrence.staged(each)
        )
        parts = [[x[:, at : at + each].contiguous() for x in inputs] for at in range(0, TOKENS, each)]
        return torch.cat([program(*part)[0] for part in parts], 1)[0].numpy()

    want = blocks(1)
    for each in (*BLOCKS, TOKENS):
        count.add(f"block of {each}", blocks(each), want)
    for each in BLOCKS:
        count.add(f"verify of {each}", verifies(each), want)
    return count


def attends(heads: int, groups: int, D: int, V: int, rows: int, dtype: torch.dtype, softcap: float = 0.0) -> Count:
    """Read the last tokens of a text of ``rows`` tokens, all of whose keys and values are there."""
    torch.manual_seed(0)
    keys, values = torch.randn(1, rows, groups, D).to(dtype), torch.randn(1, rows, groups, V).to(dtype)
    return by_token(
        lambda q, start: ops.attention(q, keys, values, start, None, None, D**-0.5, softcap, 0, 0, False),
        torch.randn(1, TOKENS, heads, D),
        first=rows - TOKENS,
    )


def attends_what_a_mask_says() -> Count:
    """Read tokens that each see some of the rows, as if indexed."""
    torch.manual_seed(0)
    keys, values = torch.randn(1, 700, 2, 64), torch.randn(1, 700, 2, 64)
    return by_token(
        lambda q, mask, _: ops.attention(q, keys, values, one(0), mask[0], None, 0.125, 0.0, 0, 0, False),
        torch.randn(1, TOKENS, 6, 64),
        torch.rand(1, TOKENS, 700) < 0.2,
    )


def attends_by_distance() -> Count:
    """Read tokens whose keys have a bias by distance, and that have a sink each."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 1, 700, 2, 64)
    return by_token(
        lambda q, bias, sinks, start: ops.biased_attention(
            q, keys, values, start, bias, sinks.transpose(1, 2).contiguous(), 0.125, 0, 0, False
        ),
        *(torch.randn(1, TOKENS, 6, 64), torch.randn(1, TOKENS, 6, 101), torch.randn(1, TOKENS, 6)),
        first=700 - TOKENS,
    )


def attends_bytes(heads: int, groups: int, D: int, V: int, rows: int) -> Count:
    """Do likewise over keys and values in 8 bits."""
    torch.manual_seed(0)
    blocks = -(-rows // 64)
    held = QuantizedRows(
        keys=torch.zeros(1, blocks, groups, D, 64, dtype=torch.int8),
        key_scales=torch.zeros(1, blocks, groups, 64),
        values=torch.zeros(1, blocks, groups, V, 64, dtype=torch.int8),
        value_scales=torch.zeros(1, blocks, groups, 64),
    )
    held.write(torch.randn(1, rows, groups, D), torch.randn(1, rows, groups, V), one(0))
    return by_token(
        lambda q, start: ops.quantized_attention(q, *vars(held).values(), start, None, V, D**-0.5, 0.0),
        torch.randn(1, TOKENS, heads, D),
        first=rows - TOKENS,
    )


def attends_a_ring(heads: int, groups: int, D: int, window: int, before: int) -> Count:
    """Read tokens ``before`` others through a window; a block of more rows than the ring spares lies beside it."""
    torch.manual_seed(0)
    ring, last = window + max(BLOCKS), before + TOKENS
    keys, values = torch.randn(2, 1, last, groups, D)
    query, count = torch.randn(1, TOKENS, heads, D), Count()

    def read(each: int) -> NDArray[np.float32]:
        beside = each > max(BLOCKS)
        program, found = None, []
        for at in range(0, TOKENS, each):
            start, end = before + at, before + at + each
            held = [torch.full((1, ring + each * beside, groups, D), float("nan")) for _ in range(2)]
            for rows, of in zip(held, (keys, values), strict=True):
                kept = start if beside else end
                for position in range(max(0, kept - ring), kept):
                    rows[:, position % ring] = of[:, position]
                if beside:
                    rows[:, ring:] = of[:, start:end]
            inputs = [query[:, at : at + each].contiguous(), *held, one(start)]
            if program is None:
                program = KernelProgram(
                    lambda q, k, v, s: ops.attention(q, k, v, s, None, None, D**-0.5, 0.0, ring, window, False), inputs
                )
            found.append(program(*inputs)[0])
        return torch.cat(found, 1)[0].numpy()

    want = read(1)
    for each in (*BLOCKS, TOKENS):
        count.add(f"{each}", read(each), want)
    return count


def layer(weight: PackedWeight, columns: int, integer: bool) -> Count:
    """Multiply with a weight in panels."""
    linear = PackedLinear(weight, None, integer=integer)
    return by_token(lambda x, _: linear(x), torch.randn(1, TOKENS, columns))


def blocks_of(name: str, integer: bool) -> Count:
    """Multiply with a weight of a kind of blocks."""
    columns = 2 * KINDS[name].columns if name in KINDS else 301
    return layer(packed_blocks(name, 37, columns), columns, integer)


def experts(columns: int) -> Count:
    """Multiply each token with the weight of one of five experts."""
    stack = PackedExperts(packed_blocks("Q4_K", 5 * 32, columns), 17, None, integer=True)
    chosen = torch.randint(0, 5, (1, TOKENS))
    return by_token(lambda x, chosen, _: stack(x[0], chosen[0])[None], torch.randn(1, TOKENS, columns), chosen)


def operators() -> Mapping[str, Callable[[], Count]]:
    """Return what counts each operator's rows, by its name."""
    rows, weight, angles = torch.randn(1, TOKENS, 301), torch.randn(37, 301), torch.randn(2, 1, TOKENS, 34)
    counts: dict[str, Callable[[], Count]] = {name: partial(recurrent, make) for name, make in CASES.items()}
    for dtype in (torch.float32, torch.float16):
        counts[f"attention, {dtype}"] = partial(attends, 6, 2, 64, 64, 300, dtype)
        counts[f"attention, {dtype}, odd sizes, a cap, many rows"] = partial(attends, 8, 1, 43, 77, 2900, dtype, softcap=3.0)
    counts["attention, latent"] = partial(attends, 8, 1, 192, 128, 400, torch.float32)
    counts["attention, a ring"] = partial(attends_a_ring, 6, 2, 64, 21, 300)
    counts["attention, a ring from its start"] = partial(attends_a_ring, 6, 2, 64, 90, 0)
    counts["attention, a mask"] = attends_what_a_mask_says
    counts["attention, a bias by distance"] = attends_by_distance
    counts["attention, int8"] = partial(attends_bytes, 6, 2, 64, 64, 300)
    counts["attention, int8, many rows"] = partial(attends_bytes, 8, 1, 64, 64, 2900)
    counts |= {f"products, {name}": partial(blocks_of, name, True) for name in KINDS}
    counts |= {f"products, {name}, activations not rounded": partial(blocks_of, name, False) for name in (*KINDS, *HALVES)}
    counts["products, float32 panels"] = lambda: layer(PackedWeight.exact(weight), 301, False)
    counts["products, float32"] = lambda: by_token(lambda x, _: ops.linear(x, weight, None), rows)
    counts["experts"] = partial(experts, 512)
    counts["norms"] = lambda: by_token(lambda x, _: ops.rms_norm(x, None, 1e-6), rows)
    counts["activations"] = lambda: by_token(lambda x, _: ops.activation(x, "silu"), rows)
    turned = torch.randn(1, TOKENS, 3, 41)
    counts["rotary"] = lambda: by_token(lambda x, cos, sin, _: ops.rotary(x, cos, sin, False), turned, *angles)
    return counts


def count_model(folder: Path, tokens: list[int]) -> Count:
    """Read a text in each way by a whole model; prefills give a row after each chunk."""
    count = Count()
    with Session.load(folder) as session:
        want = np.stack([session.decode(token) for token in tokens])
        for each in (*BLOCKS, len(tokens)):
            session.reset()
            chunks = [tokens[at : at + each] for at in range(0, len(tokens), each)]
            got = np.stack([session.prefill(chunk) for chunk in chunks])
            count.add(f"prefill of {each}", got, want[np.cumsum([len(chunk) for chunk in chunks]) - 1])
        for each in BLOCKS:
            session.reset()
            rows = []
            for at in range(0, len(tokens), each):
                rows.append(session.verify(tokens[at : at + each]))
                session.commit(len(rows[-1]))
            count.add(f"verify of {each}", np.concatenate(rows), want)
        session.reset()
        session.prefill(tokens[: len(tokens) // 2])
        got = np.stack([session.decode(token) for token in tokens[len(tokens) // 2 :]])
        count.add("decodes after a prefill", got, want[len(tokens) // 2 :])
    return count


def exported(checkpoint: Path, options: ExportOptions, name: str, work: Path) -> Path:
    """Return the artifact of a checkpoint, which is kept as long as the code that exports is the same."""
    folder = work / "same-bits" / f"{name}-{campaign.fingerprint()}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with campaign.whole(folder) as unfinished:
            export_model(checkpoint, unfinished, options)
    return folder


def models(work: Path) -> Mapping[str, Callable[[], Count]]:
    """Return what counts each model's rows, by its name."""
    prose = (Path(__file__).parent / "real_models" / "prose.txt").read_text(encoding="utf-8")

    def family(name: str) -> Count:
        with tempfile.TemporaryDirectory() as folder:
            config = tiny_config(name)
            save_lively_checkpoint(Path(folder), config)
            # With long rope the tiny models keep their angles for 100 tokens.
            artifact = exported(Path(folder), ExportOptions(max_seq_len=100, prefill_chunk=64), name, work)
            return count_model(artifact, np.random.default_rng(0).integers(0, config.vocab_size, 96).tolist())

    def published(model: RealModel) -> Count:
        artifact = exported(gguf_of(model, work / "real"), ExportOptions(quantize="keep"), model.file, work)
        return count_model(artifact, Tokenizer.of(open_artifact(artifact)).encode(prose).ids[:160])

    return (
        {name: partial(family, name) for name in sorted(VARIANTS)}
        | {
            "the embedded model": lambda: count_model(
                exported(EMBEDDED, ExportOptions(), "embedded", work), list(prose.encode()[:160])
            )
        }
        | {model.name: partial(published, model) for model in (SMOLLM2, GEMMA3)}
    )


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Parts of names of operators and models; all if left out.")] = None,
    work: Annotated[Path, typer.Option(help="Where models and artifacts are kept.")] = WORK,
) -> None:
    """Print a table: of how many tokens the outputs of an operator, or the logits of a model, are the same in every way.

    Exits with 1 if any row differs.
    """
    print("| | rows with the same bits | largest difference | blocks that differ |\n|---|---|---|---|")
    differ = False
    for name, count in (operators() | models(work)).items():
        if not only or any(each in name for each in only):
            torch.manual_seed(0)
            counted = count()
            differ |= counted.same < counted.rows
            print(counted.line(name), flush=True)
    raise typer.Exit(int(differ))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    campaign.run("same-bits", main)
