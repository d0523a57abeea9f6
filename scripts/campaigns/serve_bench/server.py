"""Start ``hybridge serve`` over an artifact, which may be made here, and ask it."""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from campaigns.bench.shapes import EMBEDDED, SHAPES, write_checkpoint
from hybridge.export.api import export_model
from hybridge.runtime.artifact.options import ExportOptions

COMMAND = Path(sys.executable).parent / "hybridge"
Row = tuple[str, str, str]
"""The name of a measurement, its figure and its target."""


class Running:
    """A server that answers at ``port``."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port, self.process = port, process

    def ask(self, messages: list[dict[str, str]], most: int = 1, **options: Any) -> tuple[float, float, str, dict[str, Any]]:
        """Return the seconds to the first text and in all, the text, and what was counted."""
        body = {"messages": messages, "max_tokens": most, "stream": True, "stream_options": {"include_usage": True}, **options}
        began = time.perf_counter()
        connection = self.send(json.dumps(body))
        first, text, usage = 0.0, "", dict[str, Any]()
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            text += delta.get("content") or ""
            if "content" in delta and "role" not in delta:
                first = first or time.perf_counter() - began
            usage = chunk.get("usage") or usage
        connection.close()
        seconds = time.perf_counter() - began
        return first or seconds, seconds, text, usage

    def send(self, body: str) -> http.client.HTTPConnection:
        """Send a body to ``/v1/chat/completions``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        return connection

    def resident(self) -> int:
        """Return the bytes of the server's memory that are there."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def serving(artifact: Path, *words: object) -> Iterator[Running]:
    """Serve an artifact. words: options of ``hybridge serve``."""
    command = [COMMAND, "serve", artifact, "--port", 0, "--queue", 64, "--timeout", 3600, *words]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            while (found := re.search(r"http://[\d.]+:(\d+)/v1", said)) is None:
                line = process.stderr.readline()
                assert line, f"the server did not start: {said}"
                said += line
            yield Running(int(found[1]), process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def words(tokens: int, seed: int) -> str:
    """Return a text of about ``tokens`` bytes."""
    rng = random.Random(seed)
    lines = (f"x{rng.randrange(999)} = f(y{rng.randrange(999)})\n" for _ in range(tokens))
    return "".join(lines)[:tokens]


def conversation(tokens: int, seed: int) -> list[dict[str, str]]:
    """Return a conversation of about ``tokens`` bytes, the user's message last."""
    part = tokens // 3
    return [
        {"role": "user", "content": words(part, seed)},
        {"role": "assistant", "content": words(part, seed + 1)},
        {"role": "user", "content": words(part, seed + 2)},
    ]


VOCABULARY = 248_320
"""Qwen3.5's."""
WORDS = ("<|im_start|>", "<|im_end|>")
"""Tokens of the embedded model's chat template, the last one of which ends a text."""


def made_up_tokenizer(size: int, rng: random.Random) -> str:
    """Return a tokenizer.json whose texts become a token for each byte; the other tokens are words that only a model says."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    while len(vocabulary) < size - len(WORDS):
        word = "".join(rng.choices('etaoinshrdlcumwfgypbvk{}[]":,.0123456789', k=rng.randint(1, 8)))
        vocabulary.setdefault(rng.choice(("Ġ", "")) + word, len(vocabulary))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": size - len(WORDS) + i, "content": word, "special": True, **flags} for i, word in enumerate(WORDS)]
    tokenizer = {
        "version": "1.0", "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    return json.dumps(tokenizer)


def made_artifact(shape: str, work: Path, max_seq_len: int) -> Path:
    """Return the artifact of a shape of scripts/bench in ``work``, in 8da4w, exported unless it is there."""
    checkpoint, artifact = work / shape / "checkpoint", work / shape / f"artifact-{max_seq_len}"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(SHAPES[shape], checkpoint)
    size = int(SHAPES[shape].config["vocab_size"])
    if not (checkpoint / "tokenizer.json").exists():
        shutil.copy(EMBEDDED / "chat_template.jinja", checkpoint)
        (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": size - 1}))
        (checkpoint / "tokenizer.json").write_text(made_up_tokenizer(size, random.Random(1)))
    if not artifact.exists():
        export_model(checkpoint, artifact, ExportOptions(max_seq_len=max_seq_len, quantize="8da4w"))
    return artifact
