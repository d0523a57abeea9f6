"""Texts of a real model: greedy beside llama.cpp, a chat, JSON by a schema and a call of a tool."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from campaigns.real_models.quality import llama_logits, peer
from campaigns.serve_bench.server import Running, serving
from hybridge.runtime.cli.run import as_message
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.generate import open_text_model

QUESTIONS = ("What is the capital of France?", "Write two sentences about the sea.", "Name three cities in Italy.")
BEGINNINGS = ("The capital of France is", "The sea is", "Three cities in Italy are")
GREEDY = 40
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"]},
    },
}


def greedy_lines(artifact: Path, gguf: Path, python: Path, *, chats: bool) -> Iterator[str]:
    """Yield the answer to each question, or what continues each beginning, and the number of first tokens as by llama.cpp."""
    model = open_text_model(artifact, plain=True, threads=1)
    template = load_template(model.artifact)
    for question in QUESTIONS if chats else BEGINNINGS:
        prompt = as_message(model.tokenizer, question, "", template).ids if chats else model.tokenizer.encode(question).ids
        model.session.reset()
        ours = list(model.session.generate(prompt, max_new_tokens=GREEDY))
        theirs = llama_greedy(python, gguf, prompt)
        ours = [token for token in ours if token not in model.artifact.manifest.eos_ids]
        same = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), len(theirs))
        yield f"> {question}\n{model.tokenizer.decode(ours)!r}\nllama.cpp's first {same} of {len(theirs)} tokens are the same"
        if same < min(len(ours), len(theirs)):
            probabilities = llama_logits(python, gguf, [*prompt, *theirs[:same]])[-1].softmax(0)
            best, other = (float(probabilities[token]) for token in (theirs[same], ours[same]))
            yield f"llama.cpp has: {model.tokenizer.decode(theirs[same:])!r}; it gives that {best:.1%} and ours {other:.1%}"


def llama_greedy(python: Path, gguf: Path, prompt: list[int]) -> list[int]:
    """Return the tokens that llama.cpp continues with."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "tokens.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(prompt))
        peer(python, "greedy", gguf, asked, GREEDY, answered)
        found: list[int] = json.loads(answered.read_text())
        return found


def served_lines(artifact: Path) -> Iterator[str]:
    """Yield a conversation, JSON that fits a schema and a call of a tool, by ``hybridge serve``."""
    with serving(artifact) as one:
        talk = [{"role": "user", "content": "My name is Ada. Remember it."}]
        talk.append({"role": "assistant", "content": one.ask(talk, 40, temperature=0)[2]})
        talk.append({"role": "user", "content": "What is my name?"})
        yield f"A chat: {talk[1]['content']!r}, then {one.ask(talk, 40, temperature=0)[2]!r}"
        about = [{"role": "user", "content": "Ada Lovelace was 36 years old. Give her name and age as JSON."}]
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        yield f"JSON by a schema: {json.loads(one.ask(about, 80, temperature=0, response_format=form)[2])}"
        yield f"A tool: {called(one)}"


def called(one: Running) -> str:
    """Return the call that the model makes."""
    body = {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 80,
        "temperature": 0,
    }
    connection = one.send(json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    return f"{call['function']['name']}({call['function']['arguments']})"
