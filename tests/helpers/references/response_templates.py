"""Response templates as tokenizers have them: those of transformers' documentation, tests and server, TRL and checkpoints."""

from __future__ import annotations

import json
from typing import Any

from checkout import CASES

Template = dict[str, Any]
_ALL: dict[str, dict[str, Any]] = json.loads((CASES / "response_templates.json").read_text())
TEMPLATES: dict[str, tuple[str, str, Template]] = {name: tuple(each) for name, each in _ALL["templates"].items()}  # type: ignore[misc]
"""The form that is found, the end of a prompt, and the template, by names."""
SCHEMAS: dict[str, tuple[str | None, Template]] = {name: tuple(each) for name, each in _ALL["schemas"].items()}  # type: ignore[misc]
"""The form that is found, if any, and an older schema, by names."""
JSON_CALLS: dict[str, Any] = TEMPLATES["smollm3"][2]["fields"]["tool_calls"]


def template(start_anchor: Any, **fields: Any) -> Template:
    return {"defaults": {"role": "assistant"}, "start_anchor": start_anchor, "fields": fields}


def written(name: str, arguments: str = '{"place": "Å", "days": 2}', tool: str = "weather") -> str:
    """Return a call as the model of a template writes it: of ``weather`` with its arguments, or of ``clock`` without."""
    form = TEMPLATES[name][0]
    is_bare = tool == "clock"
    pairs = [] if is_bare else [("place", "Å"), ("days", "2")]
    body = "{}" if is_bare else arguments
    match name, form:
        case _, "hermes":
            return f'<tool_call>\n{{"name": "{tool}", "arguments": {body}}}\n</tool_call>'
        case _, "qwen-xml":
            inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
            return f"<tool_call>\n<function={tool}>\n{inner}</function>\n</tool_call>"
        case _, "glm":
            inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
            return f"<tool_call>{tool}\n{inner}</tool_call>"
        case _, "gemma4":
            return f"<|tool_call>call:{tool}" + ("{}" if is_bare else '{place:<|"|>Å<|"|>,days:2}') + "<tool_call|>"
        case _, "cohere":
            return f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "{tool}", "parameters": {body}}}\n]<|END_ACTION|>'
        case "gpt-oss", _:
            return f"<|start|>assistant<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>{body}<|call|>"
        case "trl-gpt-oss", _:
            return f"<|start|>assistant to=functions.{tool}<|channel|>commentary json<|message|>{body}<|call|>"
        case "inkling", _:
            inner = f'{{"name": "{tool}", "args": {body}}}'
            return f"<|message_model|><|content_invoke_tool_json|>{inner}<|end_message|>"
        case _, "lfm2":
            return f"<|tool_call_start|>[{tool}(" + ("" if is_bare else "place='Å', days=2") + ")]<|tool_call_end|>"
        case "atem", _:
            inner = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>' for key, value in pairs)
            return f'<atem:function_calls><atem:invoke name="{tool}">{inner}</atem:invoke></atem:function_calls>'
        case "trl-llama3", _:
            return f'{{"name": "{tool}", "parameters": {body}}}<|eot_id|>'
        case "lines", _:
            return f"<call:{tool}>\n" + "".join(f"<p={key}>\n{value}\n</p>\n" for key, value in pairs) + "</call>"
        case "pairs", _:
            return f"<fn>{tool}</fn>" + "".join(f"<k>{key}</k>\n<v>{value}</v>\n" for key, value in pairs) + "<end>"
        case "say", _:
            inner = "".join(f'<arg name="{key}">{value}</arg>' for key, value in pairs)
            return f"<|tool|>{tool}<|args|>{inner}<|done|>"
        case "actions", _:
            return f'[act][{{"name": "{tool}", "args": {body}}}][/act]'
        case "named", _:
            return f"<call>id=1 to={tool} <body>{body}</call>"
    raise AssertionError(name)


SAID: dict[str, tuple[str, str]] = {
    "gemma4": ("<|channel>thought\n{}<channel|>", "{}"),
    "cohere": ("<|START_THINKING|>{}<|END_THINKING|>", "<|START_RESPONSE|>{}<|END_RESPONSE|>"),
    "ernie": ("{}\n</think>\n\n", "<response>\n{}\n</response>\n"),
    "gpt-oss": ("<|channel|>analysis<|message|>{}<|end|>", "<|start|>assistant<|channel|>final<|message|>{}<|end|>"),
    "trl-gpt-oss": ("<|channel|>analysis<|message|>{}<|end|>", "<|start|>assistant<|channel|>final<|message|>{}<|return|>"),
    "inkling": ("<|content_thinking|>{}<|end_message|>", "<|message_model|><|content_text|>{}<|end_message|>"),
    "trl-nemotron3": ("{}\n</think>\n\n", "{}"),
    "atem": (" to=self<|message|>{}<|eom|>", "<|start|>assistant to=user<|message|>{}<|eot|>"),
    "say": ("<|think|>{}<|done|>", "<|turn|>bot<|say|>{}<|done|>"),
    "actions": ("[note]{}[/note]", "{}"),
}
"""How reasoning and content are written; others have ``<think>``, and plain content."""
THINKING = ("<think>\n{}\n</think>\n\n", "{}")
