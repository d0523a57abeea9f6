"""The figures that the main job should reach, measured on an artifact."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hybridge.export.cli.common import out, table
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.core.session import Session

if TYPE_CHECKING:  # which needs PyTorch
    from hybridge.export.checks.validation import ValidationReport

PROMPT = list(range(1, 51))
QWEN3_5_08B = SimpleNamespace(
    model_type="qwen3_5_text",
    num_hidden_layers=24,
    layer_types=[*["linear_attention"] * 3, "full_attention"] * 6,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=16,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured value beside its target."""

    what: str
    target: str
    measured: str
    reached: bool


def figures(manifest: Manifest, report: ValidationReport, session: Session) -> list[Figure]:
    """Measure the figures of the main job, here and now."""
    return [*_correctness(report), _file_size(manifest), _rejection(manifest, session), *_rollback_memory(manifest)]


def _correctness(report: ValidationReport) -> list[Figure]:
    generation = report.generation
    return [
        Figure(
            what=f"worst logit error, {report.operations.total()} random operations",
            target="≤ 1e-5 of the largest logit",
            measured=f"{report.worst_relative:.1e}",
            reached=report.worst_relative <= 1e-5,
        ),
        Figure(
            what=f"greedy with speculation = eager without cache, {generation.tokens} tokens",
            target="all prompts",
            measured=f"{generation.speculative_matches} of {generation.prompts}",
            reached=generation.passed,
        ),
    ]


def _file_size(manifest: Manifest) -> Figure:
    size, limit = manifest.files["model.pte"].size, manifest.weight_bytes * 1.1 + 1e6
    return Figure(
        what="model.pte, all methods",
        target=f"≤ {limit / 1e6:.2f} MB (weights + 10 % + 1 MB)",
        measured=f"{size / 1e6:.2f} MB",
        reached=size <= limit,
    )


def _rejection(manifest: Manifest, session: Session) -> Figure:
    unchanged, verify, reject, decode = rejection(session)
    return Figure(
        what="a rejection (verify, commit 0)",
        target="no forward, state unchanged bit for bit",
        measured=f"{'un' if unchanged else ''}changed; {reject:.2f} ms (verify {verify:.2f}, decode {decode:.2f})",
        reached=unchanged and "aten::embedding.out" not in manifest.methods["commit"].operators,
    )


def _rollback_memory(manifest: Manifest) -> list[Figure]:
    """The state that staging adds: here, and for Qwen3.5-0.8B's layers at the default max_seq_len."""
    import torch

    from hybridge.cache import HybridCache

    here = [(layer.state_bytes, layer.rollback_bytes) for layer in manifest.layers]
    with torch.device("meta"):
        cache = HybridCache.from_config(QWEN3_5_08B, max_seq_len=2048)
    used = [layer.bytes_by_use() for layer in cache.cache_layers()]
    large = [(use["state"], use["rollback"]) for use in used]
    return [_share("this model", here), _share("Qwen3.5-0.8B, head dims 128", large)]


def _share(model: str, layers: list[tuple[int, int]]) -> Figure:
    state, rollback = (sum(sizes) for sizes in zip(*layers, strict=True))
    recurrent = [(size, added) for size, added in layers if added]
    alone = sum(added for _, added in recurrent) / sum(size for size, _ in recurrent)
    return Figure(
        what=f"state added for rollback, {model}",
        target="≤ 15 % of one copy of the state",
        measured=f"{rollback / state:.1%} ({alone:.1%} of the recurrent layers' alone)",
        reached=rollback <= 0.15 * state,
    )


def rejection(session: Session) -> tuple[bool, float, float, float]:
    """Whether verify and commit(0) leave the committed state as it was, and the median ms of verify, commit(0) and decode."""
    session.reset()
    session.prefill(PROMPT)
    before = committed_state(session)
    session.verify([1] * session.verify_len)
    session.commit(0)
    after = committed_state(session)
    unchanged = before == after
    block = [1] * session.verify_len
    verify = milliseconds(lambda: session.verify(block))
    reject = milliseconds(lambda: session.commit(0), before=lambda: session.verify(block))
    decode = milliseconds(lambda: session.decode(1), repeats=min(50, session.room))
    return unchanged, verify, reject, decode


def committed_state(session: Session) -> dict[str, bytes]:
    """Return the state of the accepted tokens as bytes: attention's rows up to the length, and all the bounded state."""
    state = {name: array for name, array in session.state().items() if "staged" not in name and name != "operations"}
    rows = {name: array[:, : session.length] for name, array in state.items() if name.endswith((".keys", ".values"))}
    return {name: array.tobytes() for name, array in (state | rows).items()}


def milliseconds(call: Callable[[], object], repeats: int = 50, before: Callable[[], object] = lambda: None) -> float:
    """The median time of a call; ``before`` each is what it needs and is not timed."""
    times = []
    for _ in range(repeats):
        before()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times)[repeats // 2]


def print_figures(results: list[Figure]) -> None:
    """Print the figures beside their targets."""
    grid = table("Figures", "what", "target", "measured", "")
    for figure in results:
        grid.add_row(figure.what, figure.target, figure.measured, "[green]✓[/]" if figure.reached else "[bold red]✗[/]")
    out.print(grid)
