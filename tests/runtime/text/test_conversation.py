"""A conversation's state against sessions that read the same tokens from the start."""

import re
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scripted
from babbling import BYTES, END, TEMPLATE, babble, fresh_session, rendered, talk, template_of, tokens_of, turns_of
from hypothesis import given

from hybridge.errors import UsageError
from hybridge.runtime import ExportOptions, GenerationStats, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.drafters import Context, PromptLookup, Proposal
from hybridge.runtime.binding.generation import Constraint
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.programs import Numbers, TextProgram
from hybridge.runtime.cli.chat import Terminal
from hybridge.runtime.text.chat_template import ChatTemplate
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings
from hybridge.runtime.text.grammars import Grammars


def answer_of(tokens: list[int], max_seq_len: int = 600) -> str:
    """Return what a session says that reads these tokens for the first time."""
    session = fresh_session(max_seq_len=max_seq_len)
    new = list(session.generate(tokens, max_new_tokens=25))
    return BYTES.decode(new[:-1] if new[-1] == END else new)


steps = st.lists(st.sampled_from(["say", "say", "undo", "retry", "stop early"]), min_size=1, max_size=12)


def test_the_statistics_count_every_token_that_was_read() -> None:
    conversation = talk()
    for text in ("one two three", "four"):
        before, stats = conversation.session.length, GenerationStats()
        conversation.say(text, stats=stats)
        assert stats.prompt_tokens == turns_of(conversation)[-1].answer - before > len(text)
        assert stats.prefill_seconds > 0
    stats = GenerationStats()
    conversation.retry(stats=stats)
    assert stats.prompt_tokens == 1, "the message's checkpoint is of all but its last token"


def test_going_back_many_turns_reads_only_what_is_new() -> None:
    conversation = talk(slots=0)
    for i in range(8):
        conversation.say(f"message {i}")
    for _ in range(6):
        conversation.undo()
    began = conversation.session.length
    assert began >= len(tokens_of(conversation)) - 1, "the last answer's last token at most is not read"
    conversation.say("another way")
    assert conversation.read_again == 0


def test_without_checkpoints_the_conversation_is_read_again_and_says_so() -> None:
    conversation = talk(slots=0, cache_bytes=0)
    conversation.say("one")
    conversation.say("two")
    conversation.retry()
    assert conversation.read_again > 10


@pytest.mark.parametrize("cut", [1, 7])
def test_an_answer_that_ended_by_its_length_is_continued_as_if_it_had_not(cut: int) -> None:
    whole, parts = talk(), talk(max_new_tokens=cut)
    shown: list[str] = []
    while parts.ended_by_length or not shown:
        shown.append(parts.continue_answer() if shown else parts.say("one"))
    assert "".join(shown) == whole.say("one")
    assert len(shown) > 1
    assert not parts.ended_by_length
    assert parts.messages == whole.messages
    assert tokens_of(parts) == tokens_of(whole)
    parts.undo()
    whole.undo()
    parts.settings = whole.settings
    assert parts.say("two") == whole.say("two")


def test_what_a_person_has_seen_of_a_continued_answer_is_not_shown_again() -> None:
    """An answer that ends in the middle of a stop string shows what might have become one."""
    plain = talk(max_new_tokens=12)
    text = plain.say("one")
    cut = talk(max_new_tokens=6, stop=(text[5:7] + "#",))
    first = cut.say("one")
    assert first + cut.continue_answer() == text


def test_nothing_but_a_free_answer_is_continued() -> None:
    conversation = talk(stop=(talk().say("one")[2],))
    with pytest.raises(UsageError, match="no answer to continue"):
        conversation.continue_answer()
    conversation.say("one")
    with pytest.raises(UsageError, match="stop string"):
        conversation.continue_answer()


def test_another_message_of_the_system_keeps_the_conversation() -> None:
    conversation, other = talk(), talk()
    other.set_system("Be brief.")
    other.say("one")
    conversation.say("one")
    conversation.set_system("Be brief.")
    assert conversation.retry() == other.messages[-1]["content"]
    assert conversation.say("two") == other.say("two")
    assert conversation.messages == other.messages
    assert tokens_of(conversation) == tokens_of(other)
    conversation.set_system("")
    assert [each["role"] for each in conversation.messages] == ["user", "assistant"] * 2


def test_a_conversation_goes_on_from_its_note_alone() -> None:
    one, other = talk(), talk()
    one.say("one")
    one.say("two")
    other.restore(one.note)
    assert other.messages == one.messages
    assert other.say("three") == one.say("three")
    other.undo()
    other.undo()
    assert other.say("again") == answer_of(tokens_of(other)[: turns_of(other)[-1].answer])


def test_a_template_sees_its_variables_and_the_time_that_it_is_given() -> None:
    jinja = JinjaTemplate("{{ effort }} {{ strftime_now('%Y') }} {{ messages[-1].content }}")
    template = ChatTemplate(jinja, {"effort": "low"}, now="2026-01-31T12:00:00")
    conversation = Conversation(fresh_session(), BYTES, template, GenerationSettings(max_new_tokens=5))
    conversation.say("one")
    assert turns_of(conversation)[0].rendered == template.render(conversation.messages[:1]).text == "low 2026 one"


def test_tools_among_the_variables_are_offered() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"place": "Ulm"}}\n</tool_call>'
    conversation = thoughtful(answer=call, variables={"tools": scripted.TOOLS})
    assert conversation.say("hello") == ""
    assert conversation.messages[-1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"place": "Ulm"}}


def test_a_stop_string_ends_an_answer_and_stays_out_of_it() -> None:
    plain = talk().say("one")
    stopped = talk(stop=(plain[2:4],))
    assert stopped.say("one") == plain[: plain.find(plain[2:4])]
    assert stopped.messages[-1]["content"] == plain[: plain.find(plain[2:4])]


def test_a_stop_string_may_be_in_the_reasoning() -> None:
    script = "<think>\nto STOP or not\n</think>\n\nI STOP here"
    settings = GenerationSettings(stop=("STOP",), stop_after_reasoning=True)
    conversation = thoughtful(answer=script, settings=settings)
    assert conversation.say("hello") == "I "
    said = conversation.messages[-1]
    assert (said["reasoning_content"], said["content"]) == ("to STOP or not", "I ")
    read = conversation.session.length
    conversation.say("again")
    assert conversation.session.length > read
    assert thoughtful(answer=script, settings=replace(settings, stop_after_reasoning=False)).say("hello") == ""


class Tapped(TextProgram):
    """Also puts out a hidden state for each token: its place in the text."""

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        before = len(self.text)
        answer = super().call(name, *inputs)
        if name.split("_")[0] not in ("prefill", "decode", "verify"):
            return answer
        places = np.arange(before, before + inputs[0].size, dtype=np.float32)
        return (*answer, places[None, :, None])


class Listener:
    """A drafter that proposes nothing and notes the places of the hidden states that it gets."""

    needs_hidden, is_cheap = True, False

    def __init__(self) -> None:
        self.places: list[int] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        self.places += [int(place) for place in context.pop_hidden().flatten()]
        return Proposal([])


def test_a_drafter_gets_the_hidden_states_of_the_whole_prompt() -> None:
    """Also of what is read before a generation begins; what a checkpoint has is not read, and so has none."""
    listener, options = Listener(), ExportOptions(max_seq_len=600, verify_len=4, snapshot_slots=2, tap_layers=(0,))
    session = Session.over(Tapped(babble, snapshot_slots=2), ProgramInfo(vocab_size=260, options=options, eos_ids=[]))
    settings = GenerationSettings(drafter=listener, max_new_tokens=2)
    conversation = Conversation(session, BYTES, template_of(TEMPLATE), settings)
    conversation.say("hello")
    answer = turns_of(conversation)[0].answer
    assert listener.places[:answer] == list(range(answer))
    listener.places.clear()
    conversation.say("more")
    assert set(range(answer + 2, turns_of(conversation)[1].answer)) <= set(listener.places)


def test_what_an_answer_follows_is_made_of_its_prompt() -> None:
    """After the reasoning that a prompt has begun, the answer fits; where it has begun none, all of it does."""
    grammars, prompts = Grammars(BYTES, 260, [END]), list[str]()

    def constrain(prompt: str) -> Constraint:
        prompts.append(prompt)
        return grammars.regex("[xyz]{3}").follow("a" if len(prompts) == 1 else "")

    conversation = talk(constrain=constrain, max_new_tokens=200)
    thought = conversation.say("hello")
    assert prompts == [turns_of(conversation)[0].rendered]
    assert re.fullmatch(r"[^a]*a\n\n[xyz]{3}", thought)
    assert re.fullmatch("[xyz]{3}", conversation.say("more"))


# What ends an answer early


class Interrupting(TextProgram):
    """Ctrl-C comes in a call once the text has this length."""

    at = 10**9

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        answer = super().call(name, *inputs)
        if len(self.text) >= self.at:
            self.at = 10**9
            signal.raise_signal(signal.SIGINT)
        return answer


@pytest.mark.parametrize("cache_bytes", [0, 10**6])
def test_ctrl_c_ends_a_long_prompt_between_two_chunks(cache_bytes: int) -> None:
    program = Interrupting(babble, snapshot_slots=2)
    conversation = talk(max_seq_len=3000, program=program, cache_bytes=cache_bytes)
    conversation.say("hello")
    before = conversation.messages, tokens_of(conversation)
    program.at = 1000
    stats, seen = GenerationStats(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        conversation.say("x" * 2000, lambda content, _: seen.append(content), stats)
    assert (conversation.messages, tokens_of(conversation)) == before
    assert (seen, stats.new_tokens) == ([], 0)
    assert len(program.text) <= 1000 + conversation.session.prefill_chunk
    assert conversation.say("x" * 2000) == answer_of(tokens_of(conversation)[: turns_of(conversation)[-1].answer], 3000)


def test_ctrl_c_ends_an_answer_and_keeps_its_text() -> None:
    program = Interrupting(babble, snapshot_slots=2)
    conversation = talk(program=program, drafter=PromptLookup())
    answer = conversation.say("hello")
    program.at = turns_of(conversation)[0].answer + len(answer) // 2
    conversation.undo()
    stats, seen = GenerationStats(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        conversation.say("hello", lambda content, _: seen.append(content), stats)
    said = "".join(seen)
    assert answer.startswith(said)
    assert conversation.messages[-1] == {"role": "assistant", "content": said}
    assert 0 < len(said) < len(answer)
    assert stats.new_tokens == len(said)
    assert conversation.say("more") == answer_of(tokens_of(conversation)[: turns_of(conversation)[-1].answer])


class OwnError(Exception):
    pass


def failing(*_: object) -> Any:
    raise OwnError


@pytest.mark.parametrize("name", ["constrain", "show", "propose"])
def test_what_a_function_of_python_raises_comes_out(name: str) -> None:
    """Before the first token nothing has changed; after it the text so far stays."""
    conversation = talk()
    conversation.say("one")
    before = conversation.messages
    drafter = SimpleNamespace(propose=failing, is_cheap=True, needs_hidden=False)
    if name != "show":
        given = {"constrain": failing} if name == "constrain" else {"drafter": drafter}
        conversation.settings = replace(conversation.settings, **given)  # type: ignore[arg-type]
    with pytest.raises(OwnError):
        conversation.say("two", failing if name == "show" else None)
    assert len(conversation.messages) == len(before) + (0 if name == "constrain" else 2)
    assert conversation.messages[: len(before)] == before


def test_what_a_template_refuses_changes_nothing() -> None:
    template = template_of(TEMPLATE + "{% if messages | length > 2 %}{{ raise_exception('one answer is all') }}{% endif %}")
    conversation = Conversation(fresh_session(), BYTES, template, GenerationSettings(max_new_tokens=5))
    conversation.say("one")
    before = conversation.note
    with pytest.raises(UsageError, match="refuses this conversation: one answer is all"):
        conversation.say("two")
    assert conversation.note == before


# Reasoning

FORGETFUL = scripted.TEMPLATE.replace("message.reasoning_content", "false")


THOUGHTS = "<think>\nhm\n</think>\n\nyes"


def thoughtful(
    template: str = scripted.TEMPLATE,
    answer: str = THOUGHTS,
    variables: dict[str, Any] | None = None,
    settings: GenerationSettings | None = None,
) -> Conversation:
    """A conversation with a model that thinks "hm" and says "yes", in the form of the template."""
    model = scripted.speaking(lambda prompt: answer)
    options = ExportOptions(max_seq_len=1500, verify_len=4, snapshot_slots=2)
    session = Session.over(TextProgram(model), ProgramInfo(vocab_size=260, options=options, eos_ids=[scripted.END]))
    chat_template = ChatTemplate(JinjaTemplate(template), variables)
    return Conversation(session, BYTES, chat_template, settings or GenerationSettings())


@pytest.mark.parametrize(("template", "kept"), [(scripted.TEMPLATE, True), (FORGETFUL, False)], ids=["kept", "left out"])
def test_the_template_decides_whether_reasoning_stays(template: str, kept: bool) -> None:
    conversation = thoughtful(template)
    conversation.say("hello")
    length = conversation.session.length
    assert conversation.say("more") == "yes"
    assert ("hm" in turns_of(conversation)[1].rendered) == kept
    assert BYTES.decode(tokens_of(conversation), skip_special_tokens=False).startswith(turns_of(conversation)[1].rendered)
    assert (turns_of(conversation)[1].start >= length) == kept, "what stays is not read again"


@given(steps=st.lists(st.sampled_from(["say", "say", "undo", "retry"]), min_size=1, max_size=10))
def test_what_a_template_wrote_in_another_way_can_be_undone(steps: list[str]) -> None:
    """A message lets go of earlier reasoning; its undoing brings that back."""
    conversation = thoughtful(FORGETFUL)
    conversation.say("first")
    for step in steps:
        if step != "say" and not turns_of(conversation):
            continue
        conversation.say("more") if step == "say" else getattr(conversation, step)()
        tokens, session = tokens_of(conversation), conversation.session
        assert tokens[: session.length] == session.tokens
        if turns := turns_of(conversation):
            written = rendered(FORGETFUL, conversation.messages[:-1]).text
            assert turns[-1].rendered == written
            assert BYTES.decode(tokens, skip_special_tokens=False) == f"{written}<think>\nhm\n</think>\n\nyes"
            assert tokens[: turns[-1].answer] == BYTES.encode(written, around=False).ids


def test_the_terminal_shows_reasoning_apart(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = thoughtful()
    terminal = Terminal(conversation, json=False)
    terminal._do("hello")
    shown = capsys.readouterr()
    assert (shown.out, shown.err.split()) == ("yes\n", ["hm"])
