"""Run one case of conformance in this process and print its result as a line of JSON.

FAMILY VARIANT KERNELS OPERATIONS compares random programs with the eager model. FAMILY VARIANT KERNELS BLOCKS TOKENS DRAFTER
compares a drafter's proposals with a reference, and its texts with plain ones.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from assistant_reference import AssistantReference, assistant_config
from drafter_programs import Definition, compare_blocks, definition_of
from drafter_twins import (
    EagleTwin,
    Twin,
    dflash2_config,
    dflash_config,
    dspark_config,
    eagle_config,
    eagle_tensors,
    random_tensors,
    save_drafter,
)  # fmt: skip
from mtp_reference import save_mtp
from tiny import count_nodes, save_lively_checkpoint, tiny_config
from torch import Tensor

from campaigns.agreeing import Agreeing
from hybridge.export.api import export_model
from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.validate import OPERATIONS_PER_PROGRAM, validate
from hybridge.export.drafters.vocabulary import DraftVocabulary, choose_rows, sampled_scores, steps_of
from hybridge.export.program.build import build_cache
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.write.pte import PteWriter
from hybridge.runtime.artifact.manifest import Manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.drafters import AutoDrafter, Drafter, OwnDrafter
from hybridge.runtime.binding.session import Session

SIZES = {"max_seq_len": 67, "prefill_chunk": 17, "verify_len": 5, "snapshot_slots": 2}


def main(family: str, variant: int, kernels: str, operations: int) -> dict[str, Any]:
    options = ExportOptions(**SIZES, kernels=kernels)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name:
        checkpoint, artifact = Path(name) / "checkpoint", Path(name) / "artifact"
        artifact.mkdir()
        save_lively_checkpoint(checkpoint, tiny_config(family, variant), seed=variant)
        started = time.monotonic()
        manifest = export_once(checkpoint, artifact, options)
        seconds = time.monotonic() - started
        session = Session.load(artifact)
        programs = -(-operations // OPERATIONS_PER_PROGRAM)
        oracle = load_oracle(checkpoint, session.manifest)
        report = validate(session, oracle, programs=programs, prompts=2, new_tokens=20, seed=0, notify=lambda *_: None)
        nodes = nodes_of_decode(checkpoint, options)
    return {
        "passed": report.passed,
        "error": "" if report.passed else failure(report.to_dict()),
        "operations": sum(report.operations.values()),
        "worst": report.worst_relative,
        "top1": report.top1_agreement,
        "layers": ", ".join(dict.fromkeys(layer.kind for layer in manifest.layers)),
        "nodes": nodes,
        "nodes_per_layer": nodes / len(manifest.layers),
        "export_seconds": seconds,
        "pte_bytes": manifest.files["model.pte"].size,
        "state_bytes": sum(layer.state_bytes for layer in manifest.layers),
    }


def export_once(checkpoint: Path, artifact: Path, options: ExportOptions) -> Manifest:
    loaded = load_checkpoint(checkpoint)
    return PteWriter(loaded.config, options).write(loaded, artifact, ExportProgress())


def nodes_of_decode(checkpoint: Path, options: ExportOptions) -> int:
    loaded = load_checkpoint(checkpoint)
    method, example = build_methods(State(loaded.model, build_cache(loaded.config, options)))["decode"]
    return count_nodes(method, example)


def failure(report: dict[str, Any]) -> str:
    divergence = report["first_divergence"]
    if divergence is None:
        return f"greedy generation differs: {report['generation']}"
    return (
        f"error {divergence['error']:.1e} (largest logit {report['largest_logit']:.1e}) after {divergence['operations'][-3:]}"
    )


DRAFTED_SIZES = {"max_seq_len": 67, "prefill_chunk": 17, "verify_len": 6, "snapshot_slots": 2}
LAYERS = ["sliding_attention", "full_attention"]
KINDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dflash": lambda target: dflash_config(target, LAYERS, [1, 0]),
    "dflash2": lambda target: dflash2_config(target, LAYERS, [0, 1]),
    "dspark": lambda target: dspark_config(target, LAYERS, [0, 1]),
    "eagle3": lambda target: eagle_config(target, target.vocab_size // 2),
}
KINDS["auto"] = KINDS["dflash"]
MTP_LAYERS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_mtp_layers": 2},
    "inkling_text": {"num_mtp_layers": 4, "mtp_local_layer_ids": [0, 2], "chain_hidden_post_norm": True},
}
TIE = 1e-6
"""Share of the largest logit by which two logits may tie: blocks of other lengths sum in other orders."""
BLOCK_OPERATIONS, LONGEST_PROMPT, NEW_TOKENS = 40, 20, 30


FEW = "-few"
"""End of a kind whose drafter proposes some of the tokens."""
FEW_TOKENS = {"hybridge": "self:48", "llm": "48"}
"""The draft vocabulary by the kernels; without ours there is none by what the model says."""


def of_drafter(family: str, variant: int, kernels: str, blocks: int, tokens: int, kind: str) -> dict[str, Any]:
    kind, few = kind.removesuffix(FEW), FEW_TOKENS[kernels] if kind.endswith(FEW) else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        definition = MADE.get(kind, with_drafter)(folder, family, variant, kernels, kind, few)
        session = Session.load(folder / "artifact")
        compared = seed = 0
        while compared < blocks:
            compared, seed = compared + compare_blocks(session, definition, seed, BLOCK_OPERATIONS), seed + 1
        drafter = AutoDrafter(session) if kind == "auto" else OwnDrafter(session)
        same, ties = tokens_as_plain(session, drafter, tokens)
        return {"passed": True, "blocks": compared, "tokens": same, "ties": ties}


def chosen_tokens(folder: Path, few: str) -> Tensor:
    """Return the draft vocabulary of an artifact, int64 [C], chosen once more."""
    loaded, vocabulary = load_checkpoint(folder / "target"), DraftVocabulary.named(few)
    assert vocabulary is not None
    with Session.load(folder / "artifact") as session:
        steps = steps_of(session.manifest.parameters or 0)
        scores = sampled_scores(session, loaded.source.tokenizer.core, steps) if vocabulary.source == "self" else None
    return torch.from_numpy(choose_rows(loaded, vocabulary, scores).ids)


def with_drafter(folder: Path, family: str, variant: int, kernels: str, kind: str, few: str | None) -> Definition:
    """Export a target with a drafter of its own folder; what this has to propose."""
    target = tiny_config(family, variant)
    save_lively_checkpoint(folder / "target", target, seed=variant)
    config = KINDS[kind](target)
    tensors = eagle_tensors(config, 2) if kind == "eagle3" else random_tensors(config)
    save_drafter(folder / "drafter", config, tensors)
    options = ExportOptions(**DRAFTED_SIZES, draft_blocks=(2, 4, 6), kernels=kernels)  # type: ignore[arg-type]
    export_model(folder / "target", folder / "artifact", options, drafter=folder / "drafter", draft_vocab=few)
    model = load_checkpoint(folder / "target").model
    embedding, head = (each.weight.detach() for each in (model.get_input_embeddings(), model.get_output_embeddings()))
    twin = EagleTwin(config, tensors, embedding) if kind == "eagle3" else Twin(config, tensors, embedding, head)
    if isinstance(twin, Twin) and few:
        twin.allowed = chosen_tokens(folder, few)
    return definition_of(twin, model)


def with_mtp(folder: Path, family: str, variant: int, kernels: str, kind: str, few: str | None) -> Definition:
    """Export a target with layers of multi-token prediction in its own checkpoint; what these have to propose."""
    reference = save_mtp(folder / "target", tiny_config(family, variant, **MTP_LAYERS.get(family, {})), seed=variant)
    options = ExportOptions(**DRAFTED_SIZES, mtp=True, draft_len=3, tap_layers=(-1,), kernels=kernels)  # type: ignore[arg-type]
    export_model(folder / "target", folder / "artifact", options, draft_vocab=few)
    reference.allowed = chosen_tokens(folder, few) if few else None
    return reference.chain


def with_assistant(folder: Path, family: str, variant: int, kernels: str, kind: str, few: str | None) -> Definition:
    """Export a target with an assistant; what this has to propose."""
    target = tiny_config(family, variant)
    save_lively_checkpoint(folder / "target", target, seed=variant)
    reference = AssistantReference(assistant_config(target))
    options = ExportOptions(**DRAFTED_SIZES, draft_blocks=(2, 4, 6), kernels=kernels)  # type: ignore[arg-type]
    export_model(folder / "target", folder / "artifact", options, drafter=reference.save(folder / "drafter"))
    return reference.definition(load_checkpoint(folder / "target").model)


MADE = {"mtp": with_mtp, "gemma4_assistant": with_assistant}
"""Functions that export a target with a drafter of a kind; ``with_drafter`` for all others."""


def tokens_as_plain(session: Session, drafter: Drafter, wanted: int) -> tuple[int, int]:
    """Return how many tokens were the same with the drafter, at least ``wanted``, and how many texts parted at a tie.

    Raises AssertionError where a text parted elsewhere.
    """
    assert session.manifest.drafter is not None
    rng, count, ties = random.Random(0), 0, 0
    while count < wanted:
        prompt = [rng.randrange(session.vocab_size) for _ in range(rng.randint(1, LONGEST_PROMPT))]
        # For prompt lookup to find something: a text begins with its prompt again, where draft tokens are wrong.
        repeated = rng.randint(0, NEW_TOKENS) if isinstance(drafter, AutoDrafter) else 0
        again = {place: prompt[place % len(prompt)] for place in range(repeated)}
        for block in session.manifest.drafter.blocks:
            agreeing = Agreeing(rng.choice((0.0, 0.5, 0.9)), rng, otherwise=again)
            drafted = generated(session, prompt, agreeing, drafter=drafter, block_length=block)
            plain = generated(session, prompt, Agreeing(0.0, rng, decided=agreeing.decided))
            same = next((i for i, pair in enumerate(zip(plain, drafted, strict=True)) if len({*pair}) > 1), len(plain))
            if same < len(plain):
                check_tie(session, [*prompt, *plain[:same]], plain[same], drafted[same])
                ties += 1
            count += same
    return count, ties


def generated(session: Session, prompt: Sequence[int], constraint: Agreeing, **how: Any) -> list[int]:
    """Return the tokens after a prompt."""
    session.reset()
    return list(session.generate(prompt, max_new_tokens=NEW_TOKENS, constraint=constraint, eos_ids=(), **how))


def check_tie(session: Session, text: Sequence[int], *tokens: int) -> None:
    """Raise AssertionError unless the logits of two tokens after a text differ by no more than rounding errors."""
    session.reset()
    logits = session.prefill(text)
    between = abs(float(logits[tokens[0]] - logits[tokens[1]]))
    assert between <= TIE * float(np.abs(logits).max()), f"tokens {tokens} after {len(text)} tokens are {between:.1e} apart"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    family, variant, kernels, *counts = sys.argv[1:]
    numbers, kind = map(int, filter(str.isdecimal, counts)), counts[2:]
    run = of_drafter if kind else main
    print(json.dumps(run(family, int(variant), kernels, *numbers, *kind)))
