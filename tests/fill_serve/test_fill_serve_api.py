"""The server by the official client and by raw requests: answers, streams, errors, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from tokenizers import Tokenizer

from fill_serve.doors import Door, children, door
from waiting import wait_until


@pytest.fixture
def client(served: Door) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made
    wait_until(served.at_rest, what="no request and no block to be left")


def greedy(reference: Any, place: Path, prompt: str, count: int) -> tuple[str, list[int], list[float]]:
    """Text, tokens and log probabilities of the reference, up to its end token."""
    tokenizer = Tokenizer.from_file(str(place / "tiny" / "tokenizer.json"))
    tokens = tokenizer.encode(prompt).ids
    with torch.no_grad():
        found = reference.generate(
            torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long), max_new_tokens=count, do_sample=False,
            pad_token_id=0, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    answer = found.sequences[0, len(tokens) :].tolist()
    logged = [
        float(torch.log_softmax(row[0].float(), -1)[token])
        for row, token in zip(found.logits, answer, strict=True)
    ]
    return tokenizer.decode(answer), answer, logged


PROMPT = "the quick brown fox jumps over the lazy dog, and a bubble is a wait for its gang"


def test_a_completion_is_the_reference_s(
    client: openai.OpenAI, served: Door, reference: Any, place: Path
) -> None:
    text, tokens, logged = greedy(reference, place, PROMPT, 24)
    found = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0, logprobs=3)
    choice = found.choices[0]
    assert choice.text == text
    assert found.usage is not None and found.usage.completion_tokens == len(tokens)
    assert choice.finish_reason == ("stop" if tokens[-1] == 1 else "length")
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    shown = choice.logprobs.token_logprobs
    assert shown == pytest.approx(logged[: len(shown)], abs=1e-3)
    assert all(len(one) <= 3 for one in choice.logprobs.top_logprobs or [])


def test_a_stream_has_the_text_of_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=20, temperature=0.8, seed=5, n=3
    )
    parts = ["", "", ""]
    ends, usage = {}, None
    for chunk in client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=20, temperature=0.8, seed=5, n=3, stream=True, stream_options={"include_usage": True}
    ):  # fmt: skip
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
    assert parts == [choice.text for choice in whole.choices]
    assert len(set(parts)) > 1  # each sample draws its own numbers
    assert [ends[index] for index in range(3)] == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage


def test_a_chat_has_roles_stops_and_log_probabilities(client: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    found = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
    )
    text = found.choices[0].message.content or ""
    assert found.choices[0].message.role == "assistant" and text
    logged = found.choices[0].logprobs
    assert logged is not None and logged.content and all(len(one.top_logprobs) == 2 for one in logged.content)
    assert b"".join(bytes(one.bytes or []) for one in logged.content).decode("utf-8", "replace") == text
    stop = text[len(text) // 2 :][:2]
    cut = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, stop=[stop]
    )
    assert (
        cut.choices[0].message.content == text[: text.index(stop)] and cut.choices[0].finish_reason == "stop"
    )
    streamed = list(
        client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=12, temperature=0, stream=True
        )
    )
    assert streamed[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in streamed) == text


def test_several_prompts_texts_and_tokens(client: openai.OpenAI, place: Path) -> None:
    tokens = Tokenizer.from_file(str(place / "tiny" / "tokenizer.json")).encode(PROMPT).ids
    both = client.completions.create(
        model="tiny", prompt=[PROMPT, "a bubble"], max_tokens=5, temperature=0, echo=True
    )
    alone = client.completions.create(model="tiny", prompt=[tokens], max_tokens=5, temperature=0)
    assert both.choices[0].text == PROMPT + alone.choices[0].text
    assert both.choices[1].index == 1 and both.choices[1].text.startswith("a bubble")


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


BAD: list[tuple[dict[str, Any] | bytes, int, str | None]] = [
    (b"{", 400, None),
    (b"\xff\xfe", 400, None),
    (b"[]", 400, None),
    ({"prompt": "a"}, 400, "model"),
    ({"model": "other", "prompt": "a"}, 404, "model"),
    ({"model": "tiny"}, 400, "prompt"),
    ({"model": "tiny", "prompt": ""}, 400, "prompt"),
    ({"model": "tiny", "prompt": [-1]}, 400, "prompt"),
    ({"model": "tiny", "prompt": [384]}, 400, "prompt"),
    ({"model": "tiny", "prompt": {"a": 1}}, 400, "prompt"),
    ({"model": "tiny", "prompt": "a", "max_tokens": -3}, 400, "max_tokens"),
    ({"model": "tiny", "prompt": "a", "max_tokens": 300}, 400, "prompt"),
    ({"model": "tiny", "prompt": "a " * 400}, 400, "prompt"),
    ({"model": "tiny", "prompt": "a", "n": 0}, 400, "n"),
    ({"model": "tiny", "prompt": "a", "n": 1000}, 400, "n"),
    ({"model": "tiny", "prompt": "a", "n": 17}, 400, "n"),
    ({"model": "tiny", "prompt": ["a"] * 10, "n": 20}, 400, "n"),
    ({"model": "tiny", "prompt": "a", "temperature": 3}, 400, "temperature"),
    ({"model": "tiny", "prompt": "a", "top_p": 0}, 400, "top_p"),
    ({"model": "tiny", "prompt": "a", "stop": ["a"] * 17}, 400, "stop"),
    ({"model": "tiny", "prompt": "a", "stop": ""}, 400, "stop"),
    ({"model": "tiny", "prompt": "a", "suffix": "b"}, 400, "suffix"),
    (b'{"model":"tiny","prompt":"' + b"a" * (10 << 20) + b'"}', 413, None),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_input_is_an_error_in_openai_s_form(served: Door, case: int) -> None:
    body, status, param = BAD[case]
    found, answer = served.post("/v1/completions", body)
    assert found == status, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == param and answer["error"]["message"]
    assert served.at_rest()


def test_an_unknown_url_is_an_error_in_openai_s_form(served: Door) -> None:
    status, answer = served.post("/v1/embeddings", {"model": "tiny"})
    assert status == 404 and "Unknown request URL" in answer["error"]["message"]


def test_a_client_that_disconnects_leaves_nothing(served: Door) -> None:
    before = served.metric("requests_total")
    body = json.dumps(
        {"model": "tiny", "prompt": PROMPT, "max_tokens": 200, "n": 8, "stream": True, "temperature": 2}
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", served.port)) as link:
            link.sendall(head + body)
            assert link.recv(100).startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", served.port)) as link:
        link.sendall(head + body[:10])  # and one that never completes its body
    wait_until(lambda: served.metric("requests_total") == before + 4, what="all requests to end")
    wait_until(served.at_rest, what="no block to be left")


def test_requests_that_would_wait_too_long_are_refused(served: Door) -> None:
    before = served.metric("rejected_total")
    status, answer = served.post("/v1/completions", {"model": "tiny", "prompt": ["a"] * 13})
    assert status == 429
    assert answer["error"]["type"] == "rate_limit_error"
    assert served.metric("rejected_total") == before + 1
    assert served.post("/v1/completions", {"model": "tiny", "prompt": ["a"] * 12})[0] == 200


def test_a_killed_worker_is_replaced_and_sigterm_answers_what_runs(place: Path, reference: Any) -> None:
    with door(place / "tiny", place / "log2", "--drain", "300") as found:
        (killed,) = children(found.process.pid)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: found.metric("worker_restarts_total") >= 1, what="the end to be noticed")
        wait_until(lambda: found.metric("workers") == 1, what="another worker")
        workers = children(found.process.pid)
        with openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
            stream = client.completions.create(
                model="tiny", prompt=PROMPT, max_tokens=150, temperature=0, stream=True, stream_options={"include_usage": True}
            )  # fmt: skip
            first = next(iter(stream))
            assert first.choices
            found.process.send_signal(signal.SIGTERM)
            rest = list(stream)
        assert rest[-1].usage is not None
        assert rest[-1].usage.completion_tokens
        assert found.process.wait(300) == 0
        assert not any(Path(f"/proc/{one}").exists() for one in workers)
        assert "stopping" in found.log.read_text()
