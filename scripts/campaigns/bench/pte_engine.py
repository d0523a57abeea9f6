"""The .pte files that transformers' own exporter makes: one for the prompt, one for a token, the cache handed in and out.

Both have fixed shapes: the prompt's length is the example's, and the cache has room for one token more, over all of which
attention runs. So there is a decode at that length only.

Usage, to export: python -m campaigns.bench.pte_engine CHECKPOINT FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from executorch.runtime import Method, Runtime

from campaigns.bench.worker import PREFILL, tokens
from campaigns.campaign import whole
from hybridge.runtime.binding.library import set_threads

DTYPES = {4: torch.int64, 6: torch.float32, 11: torch.bool}


def export(checkpoint: str, folder: Path) -> None:
    """Write the files to ``folder``; it appears whole or not at all. Raises whatever the exporter raises."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.exporters.exporter_executorch import ExecutorchConfig, ExecutorchExporter

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor([tokens(PREFILL, model.config.vocab_size)])
    generation = GenerationConfig(cache_implementation="static", do_sample=False)
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exported = ExecutorchExporter().export_for_generation(model, example, ExecutorchConfig(), generation_config=generation)
    with whole(folder) as unfinished:
        exported.save_pretrained(unfinished)


class PteEngine:
    """Runs both methods on tensors of the shapes that they ask for."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def load(self) -> None:
        names = "prefill", "decode"
        self.methods = {name: Runtime.get().load_program(self.folder / f"{name}.pte").load_method("forward") for name in names}
        self.inputs = {name: _inputs(method) for name, method in self.methods.items()}
        self.decode()

    def set_threads(self, count: int) -> None:
        """Threads are those of the load."""
        del self.methods
        set_threads(count)
        self.load()

    def fill(self, context: int) -> None:
        if context > PREFILL:
            raise NotImplementedError(f"its cache is as long as the example's prompt, {PREFILL} tokens")

    def decode(self) -> None:
        self.methods["decode"].execute(self.inputs["decode"])

    def verify(self, count: int) -> None:
        raise NotImplementedError("it has no method for several tokens after a context")

    def commit(self, count: int) -> None:
        raise NotImplementedError("it cannot roll back recurrent state")

    def prefill(self, count: int) -> None:
        self.methods["prefill"].execute(self.inputs["prefill"])


def _inputs(method: Method) -> list[Any]:
    """Zeros of every shape; masks let everything be seen."""
    inputs: list[Any] = []
    for index in range(method.metadata.num_inputs()):
        try:
            meta = method.metadata.input_tensor_meta(index)
        except (IndexError, RuntimeError):  # a constant of the traced call takes no tensor
            inputs.append(None)
            continue
        dtype = DTYPES[meta.dtype()]
        inputs.append(torch.full(tuple(meta.sizes()), dtype is torch.bool, dtype=dtype))
    return inputs


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
