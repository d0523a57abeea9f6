"""Run a GGUF file by llama.cpp, in the peers' environment.

llama_peer.py greedy GGUF TOKENS.json COUNT ANSWER.json    the best next tokens, one after the other
llama_peer.py lookup GGUF TOKENS.json COUNT ROUNDS ANSWER.json  tokens a second without and with prompt lookup, in turns
llama_peer.py logits GGUF TOKENS.npy LOGITS.npy            the logits [T, V] of the tokens [T]
llama_peer.py requantize GGUF TYPE OUT.gguf                the same model in another type, such as Q4_K_M
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding


def greedy(gguf: str, tokens: str, count: str, answer: str) -> None:
    """Write the tokens that follow those in the file ``tokens``, ``count`` of them or up to the end of the text."""
    prompt = json.loads(Path(tokens).read_text())
    model = llama_cpp.Llama(gguf, n_ctx=len(prompt) + int(count) + 8, verbose=False, n_threads=1)
    found: list[int] = []
    for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
        if token == model.token_eos() or len(found) == int(count):
            break
        found.append(token)
    Path(answer).write_text(json.dumps(found))


def lookup(gguf: str, tokens: str, count: str, rounds: str, answer: str) -> None:
    """Write the tokens a second of each round, plain and with prompt lookup by default, and whether all texts are the same."""
    prompt, most = json.loads(Path(tokens).read_text()), int(count)
    model = llama_cpp.Llama(gguf, n_ctx=len(prompt) + most + 32, n_batch=len(prompt) + 32, verbose=False, n_threads=1)
    texts, speeds = list[list[int]](), list[list[float]]()
    for _ in range(int(rounds)):
        turn = []
        for drafter in (None, LlamaPromptLookupDecoding()):
            text, seconds = drafted(model, prompt, most, drafter)
            texts.append(text)
            turn.append(len(text) / seconds)
        speeds.append(turn)
    Path(answer).write_text(json.dumps({"speeds": speeds, "same": all(each == texts[0] for each in texts)}))


def drafted(
    model: llama_cpp.Llama, prompt: list[int], most: int, drafter: LlamaPromptLookupDecoding | None
) -> tuple[list[int], float]:
    """Return the best tokens after a prompt, and the seconds that they take after reading it.

    Over the C interface, because the wrapper's own loop copies all logits of the context for each token.
    """
    model.reset()
    llama_cpp.llama_memory_clear(memory := llama_cpp.llama_get_memory(model.ctx), True)
    model.eval(prompt[:-1])
    text, batch = list(prompt), llama_cpp.llama_batch_init(32, 0, 1)
    began = time.perf_counter()
    while len(text) < len(prompt) + most and text[-1] != model.token_eos():
        proposed = [] if drafter is None else drafter(np.array(text, np.intc)).tolist()
        block = [text[-1], *proposed[: len(prompt) + most - len(text) - 1]]
        batch.n_tokens = len(block)
        for i, token in enumerate(block):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, len(text) - 1 + i, 1, 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(model.ctx, batch):
            raise RuntimeError(f"llama_decode refused {len(block)} tokens at {len(text)}")
        for i in range(len(block)):
            row = llama_cpp.llama_get_logits_ith(model.ctx, i)
            text.append(int(np.ctypeslib.as_array(row, (model.n_vocab(),)).argmax()))
            if text[-1] == model.token_eos() or (i + 1 < len(block) and text[-1] != block[i + 1]):
                break
        llama_cpp.llama_memory_seq_rm(memory, 0, len(text) - 1, -1)
    seconds = time.perf_counter() - began
    llama_cpp.llama_batch_free(batch)
    return text[len(prompt) :], seconds


def logits(gguf: str, tokens: str, answer: str) -> None:
    """Write the logits after each token, from an empty state."""
    text = np.load(tokens)
    model = llama_cpp.Llama(gguf, n_ctx=len(text) + 8, logits_all=True, verbose=False, n_threads=1, n_batch=len(text))
    model.eval(text.tolist())
    np.save(answer, np.array(model.scores[: len(text)], dtype=np.float32))


def requantize(gguf: str, kind: str, out: str) -> None:
    """Round the weights of a file again. Raises RuntimeError where llama.cpp does not."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    options.allow_requantize, options.nthread = True, 1
    if llama_cpp.llama_model_quantize(gguf.encode(), out.encode(), ctypes.byref(options)):
        raise RuntimeError(f"llama.cpp does not make {kind} of {gguf}")


if __name__ == "__main__":
    {"greedy": greedy, "lookup": lookup, "logits": logits, "requantize": requantize}[sys.argv[1]](*sys.argv[2:])
