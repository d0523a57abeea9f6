"""llama.cpp through the C interface that llama-cpp-python wraps; runs in the peers' environment."""

from __future__ import annotations

import os
from pathlib import Path

import llama_cpp as llama

from campaigns.bench.worker import ROOM, VERIFY, tokens

BATCH = 512
TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


class LlamaEngine:
    """One GGUF file. Logits are asked for where the other engines compute them; nothing else of the defaults is changed."""

    def __init__(self, gguf: str, vocabulary: int, kv: str, context: int, rollback: int) -> None:
        self.path, self.vocabulary, self.kv, self.longest = Path(gguf), vocabulary, kv, context
        self.rollback, self.length = rollback, 0
        llama.llama_backend_init()

    def load(self) -> None:
        options = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(str(self.path).encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {self.path.name}")
        context = llama.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = self.longest + ROOM, BATCH, BATCH
        context.type_k = context.type_v = TYPES[self.kv]
        context.n_threads = context.n_threads_batch = self.threads = os.cpu_count() or 1
        context.n_rs_seq, context.no_perf = self.rollback, True
        self.context = llama.llama_init_from_model(self.model, context)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context with {self.kv} keys and values")
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(BATCH, 0, 1)
        self.decode()

    def set_threads(self, count: int) -> None:
        self.threads = count
        llama.llama_set_n_threads(self.context, count, count)

    def fill(self, context: int) -> None:
        """Prefill the first time, because the cells must be in use, and keep the state in a file for the next times."""
        kept = self.path.with_name(f"{self.path.stem}-{self.kv}-{context}.state")
        self._clear()
        if not self._restored(kept):
            llama.llama_set_n_threads(self.context, self.threads, os.cpu_count() or 1)
            for start in range(0, context, BATCH):
                self._run(min(BATCH, context - start), logits=False)
            llama.llama_set_n_threads(self.context, self.threads, self.threads)
            llama.llama_state_save_file(self.context, str(kept).encode(), None, 0)
        self.length = context

    def decode(self) -> None:
        self._run(1, logits=True)

    def verify(self, count: int) -> None:
        self._run(count, logits=True)

    def commit(self, count: int) -> None:
        """Roll back the rest of the verify, from the copies of the recurrent state that ``rollback`` asks for."""
        if not self.rollback:
            raise NotImplementedError("llama.cpp rolls back recurrent state only where it keeps copies")
        self.length -= VERIFY - count
        if not llama.llama_memory_seq_rm(self.memory, 0, self.length, -1):
            raise RuntimeError(f"llama.cpp did not go back to {self.length}")

    def prefill(self, count: int) -> None:
        self._clear()
        for start in range(0, count, BATCH):
            self._run(min(BATCH, count - start), logits=False, last=True)

    def _clear(self) -> None:
        llama.llama_memory_clear(self.memory, True)
        self.length = 0

    def _restored(self, kept: Path) -> bool:
        if not kept.exists():
            return False
        found = (llama.llama_token * 1)()
        count = llama.ctypes.c_size_t()
        return bool(llama.llama_state_load_file(self.context, str(kept).encode(), found, 1, llama.ctypes.byref(count)))

    def _run(self, count: int, *, logits: bool, last: bool = False) -> None:
        """``count`` tokens after the others, with logits for all, for the last, or for none of them."""
        batch = self.batch
        batch.n_tokens = count
        for i, token in enumerate(tokens(count, self.vocabulary)):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = logits or (last and i == count - 1)
        if llama.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode refused {count} tokens at {self.length}")
        llama.llama_synchronize(self.context)
        self.length += count
