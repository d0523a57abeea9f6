"""What llama.cpp makes of a GGUF file; runs in the peers' environment.

llama_peer.py greedy GGUF TOKENS.json COUNT ANSWER.json    the best next tokens, one after the other
llama_peer.py logits GGUF TOKENS.npy LOGITS.npy            the logits [T, V] of the tokens [T]
llama_peer.py requantize GGUF TYPE OUT.gguf                the same model in another type, such as Q4_K_M
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np


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
    {"greedy": greedy, "logits": logits, "requantize": requantize}[sys.argv[1]](*sys.argv[2:])
