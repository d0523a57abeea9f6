"""The server, by OpenAI's own client: every text against the one that the model says alone."""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from scripted import speaker
from served import BYTES, END, OPTIONS, Served, alone, ask, babble, chat, chat_tokens, client, complete, served, user
from tokenizer_zoo import ZOO

from hybridge.runtime import GenerationStats, Sampling, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.server.connections import Limits
from hybridge.runtime.server.responses import Choice, CompletionFormat
from hybridge.runtime.server.worker import Event, Finished, Job, SessionSlot
from hybridge.runtime.text.answers import Answer
from hybridge.runtime.text.generate import TextPiece, TokenLogprobs

# Texts


def test_a_chat_is_what_the_model_says_alone(babbling_server: Served) -> None:
    answer = chat(babbling_server, "hello", max_tokens=40)
    assert answer.choices[0].message.content == alone(chat_tokens("hello"), 40)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens == len(chat_tokens("hello"))


def test_a_stream_has_the_same_text_and_says_what_was_counted(babbling_server: Served) -> None:
    whole = chat(babbling_server, "stream", max_tokens=50)
    chunks = list(chat(babbling_server, "stream", max_tokens=50, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_goes_on_from_a_text_or_tokens(babbling_server: Served, stream: bool) -> None:
    prompt = "ab ab ab"
    for given in (prompt, BYTES.encode(prompt).ids):
        answer: Any = complete(babbling_server, given, max_tokens=30, stream=stream)
        text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
        assert text == alone(BYTES.encode(prompt).ids, 30)


def test_sampling_follows_the_request(babbling_server: Served) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8, "seed": 5}
    answer = chat(babbling_server, "draw", max_tokens=40, extra_body={"top_k": 7, "min_p": 0.05}, **options)
    sampling = Sampling(top_k=7, min_p=0.05, **options)
    assert answer.choices[0].message.content == alone(chat_tokens("draw"), 40, sampling=sampling)


def test_a_text_ends_at_its_length_or_before_a_stop_string(babbling_server: Served) -> None:
    asked = next(text for text in ("stop", "halt", "end", "enough") if len(alone(chat_tokens(text), 40)) > 8)
    plain = alone(chat_tokens(asked), 40)
    stop = plain[3:5]
    cut = chat(babbling_server, asked, max_tokens=40, stop=[stop, "\n\n"])
    assert cut.choices[0].message.content == plain[: plain.find(stop)]
    assert cut.choices[0].finish_reason == "stop"
    short = chat(babbling_server, asked, max_completion_tokens=2)
    assert (short.choices[0].finish_reason, short.choices[0].message.content) == ("length", plain[:2])


def test_probabilities_are_the_models(babbling_server: Served) -> None:
    answer = chat(babbling_server, "sure?", max_tokens=12, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    text = chat_tokens("sure?")
    for entry in content:
        wanted = babble(tuple(text)).log_softmax(-1)
        token = BYTES.encode(entry.token, around=False).ids[0]
        assert entry.logprob == pytest.approx(float(wanted[token]), abs=1e-5)
        assert [each.logprob for each in entry.top_logprobs] == pytest.approx(wanted.topk(3).values.tolist(), abs=1e-5)
        assert entry.logprob == entry.top_logprobs[0].logprob, "greedy"
        text.append(token)
    old = complete(babbling_server, "ab", max_tokens=6, logprobs=2)
    assert "".join(old.choices[0].logprobs.tokens).startswith(old.choices[0].text)


def test_probabilities_have_the_bytes_of_parts_of_characters() -> None:
    with speaker(lambda prompt: "é 😀") as server:
        content = chat(server, "a", max_tokens=20, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert b"".join(bytes(each.bytes) for each in content) == "é 😀".encode() + b"<|im_end|>"
    assert [bytes(each.bytes) for each in content[:2]] == [b"\xc3", b"\xa9"]
    assert all(each.top_logprobs[0].bytes == each.bytes for each in content)


@pytest.mark.parametrize("name", ["gpt2", "llama2", "gemma", "mistral"])
def test_tokens_stand_at_their_offsets(name: str) -> None:
    """Also with tokenizers that decode a token alone without the space before it."""
    tokenizer = Tokenizer(ZOO[name]().to_str().encode())
    ids = tokenizer.encode("the tokens of layers 漢 is it", around=False).ids
    text = tokenizer.decode(ids)
    given = [TokenLogprobs(token, -1.0, [(token, -1.0)]) for token in ids]
    answer = Answer()
    answer.feed(text)
    choice = Choice(0, answer, 1, has_logprobs=True, logprobs=given, end=Finished("stop", 0, GenerationStats()))
    whole = CompletionFormat(False, "m", tokenizer).whole([choice])
    said = whole["choices"][0]["logprobs"]
    assert any(each.startswith(" ") for each in said["tokens"][1:])
    for token, offset in list(zip(said["tokens"], said["text_offset"], strict=True))[1:]:
        assert "\ufffd" in token or text.startswith(token, offset)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_reasoning_are_counted(stream: bool) -> None:
    """Each is a byte here: after the opening mark, up to the content."""
    with speaker(lambda prompt: "<think>\nhm, é\n</think>\n\nyes" if "a<" in prompt else "yes") as server:
        for asked, wanted in (("a", len("hm, é\n</think>\n\n".encode())), ("b", 0)):
            counted = {"stream_options": {"include_usage": True}} if stream else {}
            answer = chat(server, asked, max_tokens=90, stream=stream, **counted)
            usage = list(answer)[-1].usage if stream else answer.usage
            assert usage.completion_tokens_details.reasoning_tokens == wanted
            response = client(server).responses.create(model="babble", input=asked, max_output_tokens=90)
            assert response.usage is not None
            assert response.usage.output_tokens_details.reasoning_tokens == wanted


def test_a_conversation_is_not_read_twice() -> None:
    with served() as one_server:
        told = "a long story " * 20
        first = chat(one_server, told, max_tokens=20)
        said = first.choices[0].message.content or ""
        chat(one_server, "something else", max_tokens=5)
        before = one_server.read
        turns = [*user(told), {"role": "assistant", "content": said}, *user("and then?")]
        second = chat(one_server, turns, max_tokens=20)
        assert second.choices[0].message.content == alone(chat_tokens(told, said, "and then?"), 20)
        cached = second.usage.prompt_tokens_details.cached_tokens
        assert cached >= len(chat_tokens(told)) + len(said) - 1
        assert one_server.read - before <= second.usage.total_tokens - cached + 4 * second.usage.completion_tokens
        edited = [*turns[:2], *user("no, tell another")]
        third = chat(one_server, edited, max_tokens=20)
        assert third.choices[0].message.content == alone(chat_tokens(told, said, "no, tell another"), 20)
        assert (third.usage.prompt_tokens_details.cached_tokens or 0) >= cached


def test_the_system_prompt_is_shared_between_conversations() -> None:
    with served(sessions=1) as one_server:
        system = [{"role": "system", "content": "be brief and kind " * 5}]
        cached = []
        for text in ("one", "two"):
            answer = chat(one_server, [*system, *user(text)], max_tokens=4)
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        assert cached[0] == 0
        assert cached[1] > 80


def test_a_message_of_a_history_that_was_sent_whole_is_edited_without_reading_what_stands_before_it() -> None:
    """Checkpoints stood at multiples of 512 alone where the history was not built by this server."""
    with served(sessions=1) as one_server:
        history = [
            *user("tell " * 40),
            {"role": "assistant", "content": "abc " * 20},
            *user("more"),
            {"role": "assistant", "content": "cba"},
            *user("end"),
        ]
        ask_for = client(one_server).chat.completions.create
        ask_for(model="babble", messages=history, max_tokens=4)
        edited = [*history[:2], *user("no, something else")]
        answer = ask_for(model="babble", messages=edited, max_tokens=20)
        assert answer.choices[0].message.content == alone(chat_tokens("tell " * 40, "abc " * 20, "no, something else"), 20)
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        assert cached >= len(chat_tokens("tell " * 40, "abc " * 20)) - 20


def test_draft_tokens_are_counted(babbling_server: Served) -> None:
    prompt = "abcd " * 30
    answer = complete(babbling_server, prompt, max_tokens=200)
    assert answer.usage.completion_tokens_details is not None
    status, text = ask(babbling_server, "/metrics", method="GET")
    assert status == 200
    assert float(re.findall(r"(?m)^hybridge_generated_tokens_total (\S+)$", text)[0]) >= answer.usage.completion_tokens


# Several clients


@pytest.mark.parametrize("cache_bytes", [0, 3000, 1 << 20])
def test_clients_that_come_and_go_each_get_their_own_text(cache_bytes: int) -> None:
    wrong: list[str] = []
    with served(sessions=3, cache_bytes=cache_bytes) as one_server:

        def talk(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(8):
                text, most = "".join(rng.choices("abc ", k=rng.randint(1, 60))), rng.randint(1, 30)
                if rng.random() < 0.3:
                    with complete(one_server, text, max_tokens=200, stream=True) as chunks:
                        next(iter(chunks))
                elif rng.random() < 0.2:
                    status, _ = ask(one_server, "/v1/completions", "{" * rng.randint(1, 9))
                    wrong.extend([] if status == 400 else [f"{status}"])
                else:
                    answer = complete(one_server, text, max_tokens=most)
                    if answer.choices[0].text != alone(BYTES.encode(text).ids, most):
                        wrong.append(text)

        threads = [threading.Thread(target=talk, args=[seed]) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one_server.wait_for("running", 0)
        assert one_server.gauge("waiting") == 0
        assert one_server.gauge("cache_bytes") <= cache_bytes
    assert wrong == []


def test_two_conversations_take_turns() -> None:
    with served(sessions=2, seconds=0.004, drafters=False) as one_server:
        seen: list[str] = []

        def listen(name: str) -> None:
            for _ in complete(one_server, name, max_tokens=40, stream=True, temperature=3, seed=1):
                seen.append(name)  # noqa: PERF401  the other thread does, too

        threads = [threading.Thread(target=listen, args=[name]) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    changes = sum(seen[i] != seen[i + 1] for i in range(len(seen) - 1))
    assert changes >= 4, seen


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_generation(stream: bool) -> None:
    with served(sessions=1, seconds=0.01, drafters=False) as one_server:
        body = {"prompt": "ab", "max_tokens": 500, "stream": stream, "temperature": 5, "seed": 3}
        connection = http.client.HTTPConnection(urlsplit(one_server.url).netloc)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse() if stream else None
        one_server.wait_for("running", 1)
        if response is not None:
            response.read(10)
            response.close()
        connection.close()
        one_server.wait_for("running", 0, seconds=2)
        assert complete(one_server, "abc", max_tokens=5).choices[0].text == alone([97, 98, 99], 5)


def test_more_than_may_wait_are_refused() -> None:
    with served(sessions=1, seconds=0.02, queue=1, drafters=False) as one_server:
        busy = [complete(one_server, "ab", max_tokens=500, stream=True, temperature=5, seed=3)]
        threads = [threading.Thread(target=lambda: complete(one_server, "b", max_tokens=2))]
        threads[0].start()
        one_server.wait_for("waiting", 1)
        with pytest.raises(openai.RateLimitError, match="wait already"):
            complete(one_server, "c", max_tokens=2)
        busy[0].close()
        threads[0].join()


def test_a_request_takes_no_longer_than_it_may() -> None:
    with served(sessions=1, seconds=0.02, limits=Limits(seconds=0.3)) as one_server:
        with pytest.raises(openai.APIStatusError, match="longer than the server allows") as caught:
            complete(one_server, "ab", max_tokens=500, temperature=5, seed=3)
        assert caught.value.status_code == 408


def test_times_are_not_waited_for() -> None:
    """A server that is told to end while it computes ends soon."""
    with served(sessions=1, seconds=0.01, drafters=False) as one_server:
        chunks = complete(one_server, "a", max_tokens=500, stream=True, temperature=5, seed=2)
        next(iter(chunks))
        began = time.monotonic()
        chunks.close()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_a_prompt_is_read_whole_whatever_a_call_reads_at_most(chunk: int) -> None:
    description = ProgramInfo(vocab_size=260, options=replace(OPTIONS, prefill_chunk=chunk), eos_ids=[END])
    session, prompt = Session.over(TextProgram(babble), description), chat_tokens("Hello")
    cache = PrefixCache(session.model, 1 << 20)
    events: list[Event] = []
    for _ in range(2):
        job = Job(prompt, BYTES, Sampling(), 20, events.append, time.monotonic() + 60)
        assert list(job.steps(SessionSlot(session, None), cache))
        assert session.tokens[: len(prompt)] == prompt
    texts = "".join(each.text for each in events if isinstance(each, TextPiece))
    assert texts == 2 * alone(prompt, 20)
    assert isinstance(events[-1], Finished)
