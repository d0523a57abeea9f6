"""Response templates as tokenizers have them: those of transformers' documentation, tests and server, TRL and checkpoints."""

from __future__ import annotations

from typing import Any

Template = dict[str, Any]
TEXT = {"content": "text"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
LOOSE = {"name": "json", "args": {"allow_non_json": True}}
THINK = {"open": "<think>", "close": "</think>", **TEXT}
JSON_CALLS: dict[str, Any] = {
    "open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}  # fmt: skip


def template(start_anchor: Any, **fields: Any) -> Template:
    return {"defaults": {"role": "assistant"}, "start_anchor": start_anchor, "fields": fields}


def without(field: dict[str, Any], key: str, **other: Any) -> dict[str, Any]:
    return {**{name: value for name, value in field.items() if name != key}, **other}


def tags(open_pattern: str, tag_pattern: str, parser: Any = LOOSE, **close: Any) -> dict[str, Any]:
    content = {"tag_pattern": tag_pattern, **({} if parser is None else {"value_parser": parser})}
    return {
        "open_pattern": open_pattern, **close, "repeats": True, "content": "xml-inline", "content_args": content,
        "transform": NAMED,
    }  # fmt: skip


CHATML = "<|im_start|>assistant\n"
FUNCTION = r"<tool_call>\s*<function=(?P<name>[^\n>]+)>"
PARAMETER = r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"
AFTER = {"close_pattern": r"</think>\s*"}
ENDED = {"close_pattern": r"<\|im_end\|>\s*", **TEXT}
ATOM = r"[^\[\]{}'\"]|'[^']*'|\"[^\"]*\""
VALUE = rf"'[^']*'|[\[{{](?:{ATOM}|[\[{{](?:{ATOM})*[\]}}])*[\]}}]|[^,)]*"

LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n"

TEMPLATES: dict[str, tuple[str, str, Template]] = {
    # transformers' documentation and server
    "smollm3": ("hermes", CHATML, template(CHATML, thinking=THINK, tool_calls=JSON_CALLS,
                                           content={"close": "<|im_end|>", **TEXT})),
    "qwen3": ("hermes", CHATML, template(
        CHATML, reasoning_content=THINK, tool_calls=without(JSON_CALLS, "open", open_pattern=r"\s*<tool_call>"),
        content={"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", **TEXT},
    )),
    "qwen3.5": ("qwen-xml", CHATML, template(
        CHATML, reasoning_content=THINK,
        tool_calls=tags(r"\s*" + FUNCTION, PARAMETER, None, close_pattern=r"</function>\s*</tool_call>"),
        content={"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)", **TEXT},
    )),
    "gemma4": ("gemma4", "<|turn>model\n", template(
        ["<|turn>model\n", "<tool_response|>"], thinking={"open": "<|channel>thought\n", "close": "<channel|>", **TEXT},
        tool_calls={
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": True, "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]}, "transform": NAMED,
        },
        content={"close": ["<turn|>", "<|tool_response>", "<eos>"], **TEXT},
    )),
    # its tests
    "cohere": ("cohere", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", template(
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        content={"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>", **TEXT},
        thinking={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>", **TEXT},
        tool_calls={
            "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json", "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        },
    )),
    "ernie": ("hermes", "Assistant:", template(
        "Assistant:", thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>", **TEXT},
        content={"open": "<response>\n", "close_pattern": r"\n?</response>", **TEXT}, tool_calls=JSON_CALLS,
    )),
    "gpt-oss": ("harmony", "<|start|>assistant", template(
        "<|start|>assistant", thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>", **TEXT},
        content={"open": "<|channel|>final<|message|>", "close": "<|end|>", **TEXT},
        tool_calls={
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>", "close": "<|call|>",
            "repeats": True, "content": "json", "transform": NAMED,
        },
    )),
    "inkling": ("own", "<|message_model|>", template(
        "<|message_model|>",
        **{name: {"open_pattern": rf"(?:<\|message_model\|>)?[^<]*<\|content_{mark}\|>", "close": "<|end_message|>",
                  "repeats": True, "join": "", "content_args": {"strip": False}}
           for name, mark in (("thinking", "thinking"), ("content", "text"))},
        tool_calls={
            "open_pattern": r"(?:<\|message_model\|>)?[^<]*<\|content_invoke_tool_json\|>", "close": "<|end_message|>",
            "repeats": True, "content": "json",
            "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.args}"}},
        },
    )),
    # TRL
    "trl-qwen3": ("hermes", CHATML, template(
        CHATML, reasoning_content={"open": "<think>", **AFTER, **TEXT},
        tool_calls=without(JSON_CALLS, "close", close_pattern=r"</tool_call>\s*"), content=ENDED)),
    "trl-qwen3.5": ("qwen-xml", CHATML, template(
        CHATML, reasoning_content={"open": "<think>", **AFTER, **TEXT},
        tool_calls=tags(FUNCTION, PARAMETER, close_pattern=r"</tool_call>\s*"), content=ENDED)),
    "trl-glm4moe": ("glm", "<|assistant|>", template(
        "<|assistant|>", reasoning_content={"open": "<think>", **AFTER, **TEXT},
        tool_calls=tags(r"<tool_call>(?P<name>\S+)\n?",
                        r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n<arg_value>(?P<value>.*?)</arg_value>",
                        close_pattern=r"</tool_call>\s*"),
        content={"close_pattern": r"<\|user\|>\s*|$", **TEXT},
    )),
    "trl-gpt-oss": ("harmony", "<|start|>assistant", template(
        "<|start|>assistant", thinking={"open": "<|channel|>analysis<|message|>", "close_pattern": r"<\|end\|>\s*", **TEXT},
        content={"open": "<|channel|>final<|message|>", "close_pattern": r"<\|return\|>\s*", **TEXT},
        tool_calls={
            "open_pattern": r"to=functions\.(?P<name>\S+?)<\|channel\|>commentary\s+json<\|message\|>",
            "close_pattern": r"<\|call\|>\s*", "repeats": True, "content": "json", "transform": NAMED,
        },
    )),
    "trl-lfm2.5": ("lfm2", CHATML, template(
        CHATML, thinking={"open": "<think>", **AFTER, **TEXT},
        tool_calls=tags(r"(?:<\|tool_call_start\|>\[|,\s*)(?P<name>\w+)\(", rf"(?P<key>\w+)=(?P<value>{VALUE})",
                        {"name": "json", "args": {"string_delims": [["'", "'"]], "allow_non_json": True}},
                        close_pattern=r"\)(?:\]<\|tool_call_end\|>)?\s*"),
        content=ENDED,
    )),
    "trl-llama3": ("own", LLAMA, template(
        LLAMA, tool_calls={
            "open_pattern": r'\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*', "close_pattern": r"\}<\|eot_id\|>\s*",
            "repeats": True, "content": "json", "transform": NAMED,
        },
        content={"close_pattern": r"<\|eot_id\|>\s*", **TEXT},
    )),
    "trl-nemotron3": ("qwen-xml", CHATML + "<think>\n", {
        "defaults": {"role": "assistant"}, "start_anchor_pattern": r"<\|im_start\|>assistant\n<think>(?:\n|</think>)?",
        "fields": {
            "reasoning_content": {"open_pattern": r"(?=[\s\S]*?</think>)", **AFTER, **TEXT},
            "tool_calls": tags(FUNCTION, PARAMETER, close_pattern=r"</tool_call>\s*"), "content": ENDED,
        },
    }),
    # a checkpoint with headers and tags
    "atem": ("atem", "<|start|>assistant", template(
        "<|start|>assistant", reasoning_content={"open_pattern": r"to=self<\|message\|>", "close": "<|eom|>", **TEXT},
        content={"open_pattern": r"to=user<\|message\|>", "close": ["<|eot|>", "<|eom|>"], **TEXT},
        tool_calls=tags(r'<atem:invoke\b[^>]*?\bname="(?P<name>[^"]+)">',
                        r'<atem:parameter\b[^>]*?\bname="(?P<key>[^"]+)"[^>]*?>(?P<value>.*?)</atem:parameter>',
                        close="</atem:invoke>"),
    )),
    # other servers' tests
    "say": ("own", "<|turn|>bot", {
        "start_anchor_pattern": r"<\|turn\|>bot", "fields": {
            "thinking": {"open_pattern": r"(?:<\|turn\|>bot)?<\|think\|>", "close": "<|done|>", **TEXT},
            "content": {"open_pattern": r"(?:<\|turn\|>bot)?<\|say\|>", "close": ["<|done|>", "<|eos|>"], **TEXT},
            "tool_calls": tags(r"<\|tool\|>(?P<name>[A-Za-z_][A-Za-z0-9_]*)<\|args\|>",
                               r'<arg name="(?P<key>[^"]+)">(?P<value>.*?)</arg>', {"name": "text"},
                               close=["<|done|>", "<|eos|>"]),
        },
    }),
    "actions": ("own", "Bot:", template(
        "Bot:", thinking={"open": "[note]", "close": "[/note]", **TEXT},
        tool_calls={"open": ["[act]", "[do]"], "close": "[/act]", "content": "json", "transform_each": True,
                    "transform": {"function": {"name": "{name}", "arguments": "{args}"}}},
        content={},
    )),
    "named": ("own", "Bot:", template(
        "Bot:", tool_calls={"open_pattern": r"<call>.*?to=(?P<name>[\w.]+)\s*<body>", "close": "</call>", "content": "json",
                            "repeats": True, "transform": NAMED},
        content={"close": "<end>"},
    )),
    "lines": ("own", "Bot:", template(
        "Bot:", tool_calls=tags(r"<call:(?P<name>\w+)>", r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>", close="</call>"),
        content={},
    )),
    "pairs": ("own", "Bot:", template(
        "Bot:", tool_calls=tags(r"<fn>(?P<name>\w+)</fn>", r"<k>(?P<key>[^<]+)</k>\s*<v>(?P<value>.*?)</v>", close="<end>"),
        content={},
    )),
    "plain": ("own", "Bot:", template("Bot:", content={"close_pattern": r"<\|TURN_END\|>\s*", **TEXT})),
}  # fmt: skip
"""The form that is found, the end of a prompt, and the template, by names."""


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


def schema(pattern: str, **fields: Any) -> Template:
    return {"x-regex": pattern, "type": "object", "properties": {"role": {"const": "assistant"}, **fields}}


JSON_ITEMS = {
    "type": "array", "x-regex-iterator": r"<tool_call>\s*(.+?)\s*</tool_call>",
    "items": {"x-parser": "json", "x-parser-args": {"transform": "{type: 'function', function: @}"}},
}  # fmt: skip
SCHEMAS: dict[str, tuple[str | None, Template]] = {
    "cohere": ("cohere", {"type": "object", "properties": {
        "content": {"type": "string", "x-regex": r"<\|START_RESPONSE\|>(.*?)(?:<\|END_RESPONSE\|>|$)"},
        "tool_calls": {"x-regex": r"<\|START_ACTION\|>(.*?)(?:<\|END_ACTION\|>|$)", "x-parser": "json"},
    }}),
    "gpt-oss": ("harmony", {"type": "object", "properties": {
        "content": {"type": "string", "x-regex": r"<\|channel\|>final<\|message\|>(.*?)(?:<\|end\|>|$)"},
        "tool_calls": {"x-regex-iterator": r"<\|channel\|>commentary (to=functions\..*?<\|message\|>.*?)(?:<\|call\|>|$)"},
    }}),
    "smollm3": ("hermes", schema(
        r"(?:<think>\n?(?P<thinking>.+?)\n?</think>)?\s*(?:<tool_call>(?P<tool_calls>.+?)</tool_call>)?\s*(?P<content>.+?)?"
        r"\s*(?:<\|im_end\|>|$)", tool_calls=JSON_ITEMS,
    )),
    "qwen3.5": ("qwen-xml", schema(
        r"^(?:(?:<think>\n?)?(?:(?P<reasoning_content>.*?\S.*?)\n?|[\s]*)</think>\s*)?(?P<content>(?:(?!<tool_call>)[\s\S])*?)"
        r"(?:\n+(?=<tool_call>))?(?P<tool_calls>(?:<tool_call>(?:(?!</tool_call>)[\s\S])+</tool_call>\s*)+)?$",
        tool_calls={"type": "array", "items": {"properties": {"function": {"properties": {
            "name": {"type": "string", "x-regex": r"<function=([^\n>]+)>"},
            "arguments": {"x-regex-key-value": r"<parameter=(?P<key>[^>\n]+)>\n(?P<value>.*?)\n</parameter>"},
        }}}}},
    )),
    "glm4moe": ("glm", schema(
        r"^(?:\n?<think>\n?(?:(?P<reasoning_content>.*?\S.*?)\n?|[\s]*)</think>\s*)?(?P<content>(?:(?!<tool_call>)[\s\S])*?)$",
        tool_calls={"x-regex-key-value": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n<arg_value>(?P<value>.*?)</arg_value>"},
    )),
    "gemma4": ("gemma4", schema(
        r"(\<\|channel\>thought\n(?P<thinking>.*?)\<channel\|\>)?(?P<tool_calls>\<\|tool_call\>.*\<tool_call\|\>)?",
        tool_calls={"x-regex-iterator": r"<\|tool_call>(.*?)<tool_call\|>", "type": "array"},
    )),
    "llama3": (None, schema(
        r'^(?:(?P<tool_calls>\{"name":\s*".+?",\s*"parameters":\s*.+\})|(?P<content>.*?))(?:<\|eot_id\|>|$)',
    )),
}  # fmt: skip
"""The form, or None, and the schema, by names."""
