"""Chat formats: found for published templates, equal to them, and refused with a reason for what they cannot say."""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from public_folders import CHAT_TEMPLATES

from hybridge.cache.errors import UsageError
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.export.write.chat_format import FoundFormat, chat_format_of, find_chat_format
from hybridge.runtime.artifacts.chat_format import ChatFormatEntry
from hybridge.runtime.core.chat import message_content, render_chat
from hybridge.runtime.core.interface import Thinking
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import CoreFormat
from hybridge.runtime.text.chat_template import ChatTemplates

BYTES = Tokenizer.from_file(EMBEDDED / "tokenizer.json")
TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "turn_token": "<turn>",
    "end_of_turn_token": "<turned>",
    "think_token": "<think>",
}
NAMES = sorted(path.stem for path in CHAT_TEMPLATES.glob("*.jinja") if path.stem != "named_tokens")
"""All templates but one that leaves messages out."""


def templates_of(text: str) -> ChatTemplates:
    return ChatTemplates(Path(), {"default": text}, TOKENS)


def found(text: str) -> FoundFormat:
    return find_chat_format(templates_of(text), CoreFormat.find(text, BYTES))


@pytest.fixture(scope="module")
def formats() -> dict[str, ChatFormatEntry]:
    entries = {}
    for name in NAMES:
        entry = found((CHAT_TEMPLATES / f"{name}.jinja").read_text()).entry
        assert entry is not None, name
        entries[name] = entry
    return entries


PLACES = {
    "gemma4": "<|image|>",
    "glm5_next": "<|begin_of_image|><|image|><|end_of_image|>",
    "lfm2_vl": "<image>",
    "nemotron_h_omni": "<image>\n",
    "qwen3_5": "<|vision_start|><|image_pad|><|vision_end|>",
}
"""What templates write for a picture."""


@pytest.mark.parametrize("name", NAMES)
def test_pictures_have_the_place_that_the_template_gives_them(formats: dict[str, ChatFormatEntry], name: str) -> None:
    for rendering in (each for _, each in formats[name].renderings if each is not None):
        assert (rendering.pictures.each if rendering.pictures else None) == PLACES.get(name)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PLACES)),
    turns=st.lists(st.tuples(st.integers(0, 3), st.text("ab <>&\n|_漢", max_size=9)), min_size=1, max_size=4),
)
def test_the_core_writes_pictures_where_the_template_does(
    formats: dict[str, ChatFormatEntry], name: str, turns: list[tuple[int, str]]
) -> None:
    messages: list[dict[str, Any]] = []
    for count, said in turns:
        messages += [{"role": "user", "content": message_content(said, count)}, {"role": "assistant", "content": "so"}]
    wanted = templates_of((CHAT_TEMPLATES / f"{name}.jinja").read_text()).with_variables({})(messages[:-1])
    assert render_chat(formats[name].model_dump_json(), messages[:-1]).text == wanted


def test_a_template_that_counts_pictures_has_no_place_for_them() -> None:
    text = (CHAT_TEMPLATES / "lfm2_vl.jinja").read_text().replace('{{- "<image>" -}}', '{{- "<image" ~ loop.index ~ ">" -}}')
    entry = found(text).entry
    assert entry is not None
    assert entry.renderings.default.pictures is None


words = st.text("ab <>&{}%'\"\\\né漢\u00a0\x1c|_", max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    system=st.none() | words,
    turns=st.lists(st.tuples(words, words, st.sampled_from(["", "hm", "\nhm\n"])), max_size=4),
    asked=words,
    thinking=st.sampled_from([None, True, False]),
)
def test_the_core_writes_what_the_template_writes(
    formats: dict[str, ChatFormatEntry], name: str, system: str | None, turns: list[tuple[str, str, str]], asked: str,
    thinking: bool | None,
) -> None:  # fmt: skip
    """Dates are those of the same second."""
    entry, text = formats[name], (CHAT_TEMPLATES / f"{name}.jinja").read_text()
    messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    for said, answered, why in turns:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answered}]
        if why:
            messages[-1]["reasoning_content"] = why
    messages.append({"role": "user", "content": asked})
    if thinking is not None and entry.renderings.thinking is None:
        with pytest.raises(UsageError, match="no switch for thinking"):
            render_chat(entry.model_dump_json(), messages, Thinking.ON)
        return
    how = {None: Thinking.AS_USUAL, True: Thinking.ON, False: Thinking.OFF}[thinking]
    while True:
        now = datetime.now().replace(microsecond=0)  # noqa: DTZ005  # templates have the local time
        rendered = render_chat(entry.model_dump_json(), messages, how)
        if now == datetime.now().replace(microsecond=0):  # noqa: DTZ005
            break
    assert rendered.text == templates_of(text).with_variables({}, thinking, now.isoformat())(messages)
    for begin, end in rendered.words:
        assert rendered.text.encode()[begin:end].decode() in {part for each in messages for part in _said(each)}


def _said(message: dict[str, Any]) -> list[str]:
    """The words of a message, trimmed in any way."""
    parts = [str(message["content"]), str(message.get("reasoning_content", ""))]
    return [
        cut for part in parts for cut in (part, part.strip(), part.lstrip(), part.rstrip(), part.strip("\n"), part.lstrip("\n"))
    ]


EVERY = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
INEXPRESSIBLE = {
    "the system's words before the last question": (
        "{% for m in messages %}{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
        "{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}",
        "in a way of its own",
    ),
    "numbered messages": (
        "{% for m in messages %}{{ loop.index }}. {{ m.content }}\n{% endfor %}",
        "in a way of its own",
    ),
    "words that are changed": ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "left out, written twice"),
    "a date that decides": (EVERY + "{% if strftime_now('%Y') == '2001' %}!{% endif %}", "depends on the date"),
    "a length": (EVERY + "{{ messages[-1].content | length }}", "white space"),
    "a sense": ("{% if 'a' in messages[-1].content %}A{% endif %}" + EVERY, "in a way of its own"),
    "tools alone": ("{{ tools[0].name }}" + EVERY, "refuses this conversation"),
    "no template": ("{% for", "no Jinja template"),
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_strings_cannot_say_is_refused_with_the_reason(name: str) -> None:
    template, why = INEXPRESSIBLE[name]
    refused = found(template)
    assert refused.entry is None
    assert refused.reason is not None
    assert refused.reason.startswith("the chat template cannot be written without Jinja: ")
    assert re.search(why, refused.reason), refused.reason


def test_words_that_a_template_reads_are_refused_by_name() -> None:
    """SmolLM3's template takes /no_think in the system's words for a switch."""
    switch = "{% if '/no_think' in messages[0].content and messages[0].role == 'system' %}<off>{% endif %}" + EVERY
    entry = found(switch).entry
    assert entry is not None
    assert entry.renderings.default.system is not None
    assert entry.renderings.default.system.reserved == ["/no_think"]
    assert entry.renderings.default.user.reserved == []
    messages = [{"role": "system", "content": "say /no_think"}, {"role": "user", "content": "/no_think"}]
    with pytest.raises(UsageError, match="the message of the system has '/no_think' in it"):
        render_chat(entry.model_dump_json(), messages)
    assert render_chat(entry.model_dump_json(), messages[1:]).text == "<|user|>/no_think<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        ("", "ends with the user's message"),
        ("system", "ends with the user's message"),
        ("assistant", "ends with the user's message"),
        ("user user", "a user's message, an assistant's"),
        ("user system user", "at most one of the system"),
        ("tool user", "a user's message, an assistant's"),
    ],
)
def test_conversations_that_are_none_are_refused(roles: str, why: str) -> None:
    messages = [{"role": role, "content": "a"} for role in roles.split()]
    entry = found(EVERY).entry
    assert entry is not None
    with pytest.raises(UsageError, match=why):
        render_chat(entry.model_dump_json(), messages)


DAMAGED = [
    "",
    "{",
    "[]",
    "1",
    '"a"',
    '{"renderings": {}}',
    '{"renderings": {"default": {"user": {"before": 1}}}}',
    "{" * 5000,
    "\xff",
]


@pytest.mark.parametrize("json_text", DAMAGED)
def test_a_damaged_format_is_refused(json_text: str) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        render_chat(json_text, [{"role": "user", "content": "a"}])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_format_of_wrong_types_never_crashes(formats: dict[str, ChatFormatEntry], data: st.DataObject) -> None:
    """Any value of a format may be any other."""
    content = json.loads(formats["qwen3_5"].model_dump_json())
    place, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
        place, key = place[key], data.draw(st.sampled_from(sorted(place[key])))
    place[key] = data.draw(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({}) | st.just([1])
    )
    try:
        render_chat(json.dumps(content), [{"role": "user", "content": "a"}])
    except UsageError:
        return


def test_a_folder_without_a_tokenizer_or_a_template_says_so(tmp_path: Path) -> None:
    assert "no tokenizer.json" in str(chat_format_of(tmp_path).reason)
    shutil.copyfile(EMBEDDED / "tokenizer.json", tmp_path / "tokenizer.json")
    reason = str(chat_format_of(tmp_path).reason)
    assert "the checkpoint has no chat template" in reason
    assert str(tmp_path) not in reason, "the folder of an unfinished export"
    shutil.copyfile(EMBEDDED / "chat_template.jinja", tmp_path / "chat_template.jinja")
    assert chat_format_of(tmp_path).entry is not None
