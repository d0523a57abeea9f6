"""Tokens a second beside llama.cpp on the same file, in turns; what drafters bring; and how long a first token takes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from campaigns.bench.driver import Client
from campaigns.bench.worker import PREFILL, VERIFY
from campaigns.real_models.quality import peer
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.cli.run import as_message
from hybridge.runtime.text.chat_template import load_template

CONTEXT, LIMIT = 128, 600.0
NEW_TOKENS = 200
STEPS = {"decode": 40, "verify": 10, "prefill": 1}
TARGETS = {("decode", 1): "≥ 1.2", ("decode", 2): "≥ 1.1", ("prefill", 1): "≥ 1.5", ("prefill", 2): "≥ 1.5"}
HEAD = "| threads | | hybridge | llama.cpp | ratio | target |\n|---|---|---|---|---|---|"
COMMAND = Path(sys.executable).parent / "hybridge"


def rows(artifact: Path, gguf: Path, vocabulary: int, python: Path, work: Path, rounds: int) -> Iterator[str]:
    """Yield a row for each number of threads and each kind of step; ratios are medians over rounds of both engines."""
    with ExitStack() as stack:
        engines = [
            engine(stack, sys.executable, "campaigns.bench.hybridge_engine:HybridgeEngine", {"artifact": str(artifact)}, work),
            engine(stack, python, "campaigns.bench.llama_engine:LlamaEngine", llama(gguf, vocabulary), work),
        ]
        for threads in (1, 2):
            for each in engines:
                each.ask(LIMIT, do="set_threads", count=threads)
            seconds = {step: [turn(engines, step) for _ in range(rounds)] for step in STEPS}
            yield from table(threads, seconds)


def table(threads: int, seconds: dict[str, list[list[float]]]) -> Iterator[str]:
    """Yield the rows of some threads from seconds by step, round and engine."""
    shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "decode": ("decode, tokens/s", lambda each: f"{1 / each:.1f}"),
        "verify": (f"verify of {VERIFY}, ms", lambda each: f"{1000 * each:.1f}"),
        "prefill": (f"prefill of {PREFILL}, tokens/s", lambda each: f"{PREFILL / each:.0f}"),
    }
    for step, (name, show) in shown.items():
        ours, theirs = (show(median(column)) for column in zip(*seconds[step], strict=True))
        ratio = median(peer / own for own, peer in seconds[step])
        yield f"| {threads} | {name} | {ours} | {theirs} | {ratio:.2f}× | {TARGETS.get((step, threads), '')} |"
    decodes = median(verify[0] / decode[0] for verify, decode in zip(seconds["verify"], seconds["decode"], strict=True))
    yield f"| {threads} | verify of {VERIFY}, in decodes of ours | {decodes:.2f} | | | ≤ 2 |"


def turn(engines: list[Client], step: str) -> list[float]:
    """Seconds of a step of each engine, after one that does not count."""
    arguments = {"decode": [], "verify": [VERIFY], "prefill": [PREFILL]}[step]
    found = []
    for each in engines:
        if step != "prefill":
            each.ask(LIMIT, do="fill", context=CONTEXT)
        answer = each.ask(LIMIT, do="measure", what={"name": step, "arguments": arguments}, steps=1 + STEPS[step])
        found.append(median(answer["seconds"][1:]))
    return found


def engine(stack: ExitStack, python: Path | str, name: str, options: dict[str, object], work: Path) -> Client:
    """Start an engine and load its model."""
    client = Client(python, name, options, work / f"{name.partition(':')[0]}.log")
    stack.callback(client.close)
    client.ask(LIMIT, do="load")
    return client


def llama(gguf: Path, vocabulary: int) -> dict[str, object]:
    """Return the options of llama.cpp's engine: its own defaults."""
    return {"gguf": str(gguf), "vocabulary": vocabulary, "kv": "f16", "context": PREFILL, "rollback": 0}


def drafts_rows(artifact: Path, prompts: dict[str, str], rounds: int, gguf: Path, python: Path) -> Iterator[str]:
    """Yield tokens a second with and without drafters of ``hybridge run --chat`` and of llama.cpp, and if the text is the same.

    Each engine runs both in turns, ``rounds`` times; the ratio is the median over the rounds.
    """
    yield (
        "| | plain, tokens/s | by default, tokens/s | ratio | accepted | same text | llama.cpp: plain | prompt lookup | ratio |"
        " same text |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    tokenizer, template = Tokenizer.of(opened := open_artifact(artifact)), load_template(opened)
    for name, prompt in prompts.items():
        turns = [[run(artifact, prompt, *words) for words in (["--no-speculation"], [])] for _ in range(rounds)]
        speeds = [[each["tokens_per_second"] for each in turn] for turn in turns]
        accepted = f"{turns[-1][1]['accepted']} of {turns[-1][1]['proposed']}"
        ours = f"{compared(speeds)} | {accepted} | {yes(len({each['text'] for turn in turns for each in turn}) == 1)}"
        asked = as_message(tokenizer, prompt, "", template)
        theirs = llama_lookup(python, gguf, asked.ids, rounds)
        yield f"| {name} | {ours} | {compared(theirs['speeds'])} | {yes(theirs['same'])} |"


def compared(speeds: list[list[float]]) -> str:
    """Return the columns of the medians of two speeds, and of the second through the first, by rounds of both."""
    plain, drafted = (median(column) for column in zip(*speeds, strict=True))
    return f"{plain:.0f} | {drafted:.0f} | {median(fast / slow for slow, fast in speeds):.2f}×"


def yes(is_so: bool) -> str:
    """Return the cell of what should be so."""
    return "yes" if is_so else "NO"


def llama_lookup(python: Path, gguf: Path, prompt: list[int], rounds: int) -> dict[str, Any]:
    """Return what ``llama_peer.py lookup`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "tokens.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(prompt))
        peer(python, "lookup", gguf, asked, NEW_TOKENS, rounds, answered)
        found: dict[str, Any] = json.loads(answered.read_text())
        return found


def run(artifact: Path, prompt: str, *words: str) -> dict[str, Any]:
    """Return what ``hybridge run --json`` says of an answer."""
    command = [COMMAND, "run", artifact, "--chat", "--prompt", prompt, "--max-new-tokens", NEW_TOKENS, "--threads", 1, "--json"]
    said = subprocess.run(list(map(str, [*command, *words])), check=True, capture_output=True, text=True).stdout
    answer: dict[str, Any] = json.loads(said)
    return answer


def first_token_seconds(artifact: Path, prompt: str) -> float:
    """Return the seconds from the start of ``hybridge run`` to the first character that it prints."""
    command = [str(word) for word in (COMMAND, "run", artifact, "--prompt", prompt, "--max-new-tokens", 16)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        return time.perf_counter() - began
