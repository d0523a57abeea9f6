"""Several texts of one request, prompts that come back with their scores, texts that are continued, and one line a request."""

from __future__ import annotations

import numpy as np
import pytest
from served import BYTES, Served, alone, ask, babble, chat_tokens, client, served, session, user

from hybridge.runtime import Sampling


def test_each_prompt_gets_as_many_texts_as_are_asked_for(babbling_server: Served) -> None:
    done = client(babbling_server).completions.create(
        model="babble", prompt=["one", "two"], n=2, max_tokens=8, temperature=1.0, seed=5
    )
    assert [each.index for each in done.choices] == [0, 1, 2, 3]
    for i, (prompt, seed) in enumerate([("one", 5), ("one", 6), ("two", 5), ("two", 6)]):
        assert done.choices[i].text == alone(BYTES.encode(prompt).ids, 8, sampling=Sampling(temperature=1.0, seed=seed))
    assert done.usage is not None
    assert done.usage.prompt_tokens == sum(len(BYTES.encode(each).ids) for each in ("one", "two"))


def test_the_second_text_finds_the_prompt_read() -> None:
    with served(sessions=1, drafters=False) as server:
        talk = client(server).chat.completions
        done = talk.create(model="babble", messages=user("a long question" * 9), n=3, max_tokens=4, temperature=1.0)
        assert len({choice.message.content for choice in done.choices}) > 1
        assert server.read < 2 * len(chat_tokens("a long question" * 9))


def test_a_stream_says_whose_piece_it_is(babbling_server: Served) -> None:
    whole = client(babbling_server).chat.completions.create(
        model="babble", messages=user("a"), n=2, max_tokens=6, temperature=1.0, seed=3
    )
    said, roles = ["", ""], 0
    for chunk in client(babbling_server).chat.completions.create(
        model="babble", messages=user("a"), n=2, max_tokens=6, temperature=1.0, seed=3, stream=True
    ):
        said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        roles += chunk.choices[0].delta.role is not None
    assert said == [choice.message.content for choice in whole.choices]
    assert roles == 2


@pytest.mark.parametrize("most", [0, 3])
def test_a_prompt_comes_back_with_its_scores(babbling_server: Served, most: int) -> None:
    """As the harness of lm-eval asks for them: logits from an uncached text, and its own softmax."""
    ids = BYTES.encode("some words").ids
    done = client(babbling_server).completions.create(
        model="babble", prompt=[ids], max_tokens=most, echo=True, logprobs=2, temperature=0
    )
    choice = done.choices[0]
    assert choice.text == "some words" + (alone(ids, most) if most else "")
    assert choice.logprobs is not None
    scores, best = choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
    assert scores is not None
    assert best is not None
    assert scores[0] is best[0] is None
    assert len(scores) == len(ids) + (most and len(list(session().generate(ids, max_new_tokens=most))))
    for i in range(1, len(ids)):
        logits = np.asarray(babble(tuple(ids[:i])), np.float64)
        assert scores[i] == pytest.approx(logits[ids[i]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max(), abs=1e-5)
    assert choice.logprobs.text_offset == list(range(len(scores)))
    assert done.usage is not None
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("token", [-1, 260, 2**70])
def test_a_prompt_of_other_tokens_has_no_scores(babbling_server: Served, token: int) -> None:
    body = {"prompt": [1, token], "echo": True, "logprobs": 1, "max_tokens": 0}
    status, answer = ask(babbling_server, "/v1/completions", body)
    assert status == 400
    assert "token" in answer["error"]["message"]


def test_a_last_message_of_the_model_is_continued(babbling_server: Served) -> None:
    begun = [*user("a"), {"role": "assistant", "content": "It is"}]
    status, answer = ask(babbling_server, "/v1/chat/completions", {"messages": begun, "max_tokens": 9})
    assert status == 200
    prompt = [*chat_tokens("a"), *BYTES.encode("It is", around=False).ids]
    assert answer["choices"][0]["message"]["content"] == alone(prompt, 9)


def test_tokens_there_and_back(babbling_server: Served) -> None:
    _, there = ask(babbling_server, "/tokenize", {"content": "a word", "with_pieces": True})
    ids = [each["id"] for each in there["tokens"]]
    assert (ids, there["count"]) == (BYTES.encode("a word", around=False).ids, len(ids))
    assert ask(babbling_server, "/tokenize", {"prompt": "a word", "add_special_tokens": False})[1]["tokens"] == ids
    info = ask(babbling_server, "/tokenizer_info", method="GET")[1]
    assert (info["eos_token"], info["bos_token"]) == ("<|im_end|>", None)
    assert ask(babbling_server, "/detokenize", {"tokens": ids})[1]["content"] == "a word"
    assert ask(babbling_server, "/props", method="GET")[1]["default_generation_settings"]["n_ctx"] == 600


def test_embeddings_are_refused(babbling_server: Served) -> None:
    status, answer = ask(babbling_server, "/v1/embeddings", {"input": [{"image": "x"}]})
    assert status == 400
    assert "not made for embeddings" in answer["error"]["message"]


def test_each_request_is_one_line() -> None:
    lines: list[str] = []
    with served(tell=lines.append, verbose=True) as server:
        for stream in (False, True):
            ask(server, "/v1/completions", {"prompt": "a secret", "max_tokens": 3, "stream": stream})
        ask(server, "/v1/completions", {"prompt": ""})
    first, prompt, second, _, refused = lines
    assert first.startswith("POST /v1/completions babble: 8 tokens read, of them 0 cached, 3 written, ")
    assert "of them 7 cached" in second
    assert prompt == "a secret"
    assert refused == "POST /v1/completions: 400"
