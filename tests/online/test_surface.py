"""What people probe of a server that says it speaks the OpenAI API, beyond one prompt and one answer."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import openai
import pytest
from mock_thread import mock_thread

import playproof as pp

WATCHDOG_S = 120.0
DEPLOYMENT = pp.Deployment(
    blocks=256, block_size=16, context_length=2000, model="org/mock", timing=pp.FixedTiming(prefill_ms=2, decode_ms=1)
)
NAME = "org/mock"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with mock_thread(DEPLOYMENT) as (url, _):
        yield url


@pytest.fixture
def client(served: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)


def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    place = urlparse(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WATCHDOG_S)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        said = response.read()
        kind = response.getheader("content-type", "")
        return response.status, json.loads(said) if "json" in kind else said.decode(), response.headers
    finally:
        connection.close()


# Places --------------------------------------------------------------------------------------------------------------


def test_one_model(served: str, client: openai.OpenAI) -> None:
    """Its name may have a slash in it."""
    assert client.models.retrieve(NAME).id == NAME
    status, model, _ = ask(served, "GET", f"/v1/models/{NAME}")
    assert (status, model["max_model_len"], model["root"]) == (200, 2000, NAME)
    status, answer, _ = ask(served, "GET", "/v1/models/other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_a_request_may_leave_out_the_model(served: str) -> None:
    assert ask(served, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[1]["model"] == NAME


def test_places_without_a_model(served: str) -> None:
    assert ask(served, "GET", "/version")[1] == {"version": pp.__version__}
    assert [ask(served, method, "/ping")[0] for method in ("GET", "POST")] == [200, 200]
    assert ask(served, "GET", "/load")[1] == {"server_load": 0}


def test_tokenize(served: str) -> None:
    """Four bytes a token, the last what is left; and back again."""
    status, answer, _ = ask(served, "POST", "/tokenize", {"prompt": "abcdé", "return_token_strs": True})
    ids = [int.from_bytes(part, "little") for part in (b"abcd", "é".encode())]
    assert (status, answer) == (
        200,
        {"count": 2, "max_model_len": 2000, "tokens": ids, "token_strs": ["abcd", "é"]},
    )
    assert ask(served, "POST", "/detokenize", {"tokens": ids})[1] == {"prompt": "abcdé"}
    messages = [{"role": "user", "content": "Hello there"}]
    counted = ask(served, "POST", "/tokenize", {"model": NAME, "messages": messages})[1]["count"]
    body = {"model": NAME, "messages": messages, "max_tokens": 1}
    assert ask(served, "POST", "/v1/chat/completions", body)[1]["usage"]["prompt_tokens"] == counted
    for wrong in ({}, {"prompt": "x", "messages": messages}, {"prompt": "x", "model": "other"}, {"prompt": 5}):
        assert ask(served, "POST", "/tokenize", wrong)[0] in (400, 404)
    assert ask(served, "POST", "/detokenize", {"tokens": [-1]})[0] == 400


def test_request_ids_come_back(served: str) -> None:
    body = {"model": NAME, "prompt": "x", "max_tokens": 1}
    _, answer, headers = ask(served, "POST", "/v1/completions", body, **{"x-request-id": "mine-7"})
    assert (answer["id"], headers["x-request-id"]) == ("cmpl-mine-7", "mine-7")
    _, text, headers = ask(served, "POST", "/v1/completions", {**body, "stream": True}, **{"x-request-id": "mine-8"})
    assert headers["x-request-id"] == "mine-8"
    assert '"id":"cmpl-mine-8"' in text
    for odd in ("x" * 129, "\xe9"):
        _, answer, headers = ask(served, "POST", "/v1/completions", body, **{"x-request-id": odd})
        assert headers["x-request-id"] is None
        assert answer["id"].removeprefix("cmpl-").isdigit()


# Several answers -----------------------------------------------------------------------------------------------------


def test_several_prompts_and_answers(client: openai.OpenAI) -> None:
    """Choices go by prompt and then by answer; a prompt counts once, however often it is answered."""
    answer = client.completions.create(model=NAME, prompt=["abcd" * 5, "efgh"], n=2, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {" 0 1 2"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)
    ids = client.completions.create(model=NAME, prompt=[[1, 2, 3], [4]], max_tokens=1)
    assert ids.usage is not None
    assert (len(ids.choices), ids.usage.prompt_tokens) == (2, 4)


def test_several_answers_streamed(client: openai.OpenAI) -> None:
    texts, reasons = [""] * 4, [0] * 4
    stream = client.completions.create(
        model=NAME,
        prompt=["abcd", "efgh"],
        n=2,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] += choice.finish_reason == "length"
    assert texts == ["".join(f" {i}" for i in range(20))] * 4
    assert reasons == [1] * 4
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (2, 80)


def test_chats_have_several_answers(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(model=NAME, messages=messages, n=3, max_tokens=2)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(i, " 0 1") for i in range(3)]
    roles = [0] * 3
    stream = client.chat.completions.create(model=NAME, messages=messages, n=3, max_tokens=2, stream=True)
    for chunk in stream:
        for choice in chunk.choices:
            roles[choice.index] += choice.delta.role == "assistant"
    assert roles == [1] * 3


def test_answers_to_one_prompt_share_its_blocks(served: str) -> None:
    body = {"model": NAME, "prompt": [77] * 40, "max_tokens": 1, "cache_salt": "shared"}
    first = ask(served, "POST", "/v1/completions", body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    again = ask(served, "POST", "/v1/completions", {**body, "n": 4})[1]["usage"]
    assert (first, again["prompt_tokens_details"]["cached_tokens"], again["prompt_tokens"]) == (0, 32, 40)


def test_salts_of_any_length(served: str) -> None:
    """A long one is kept by its digest, which as a salt of its own is another."""
    long = "s" * 5000
    digest = "#" + hashlib.blake2b(long.encode(), digest_size=16).hexdigest()
    cached = []
    for salt in (long, long, long + "t", digest, digest, "short", "short"):
        body = {"model": NAME, "prompt": [78] * 40, "max_tokens": 1, "cache_salt": salt}
        usage = ask(served, "POST", "/v1/completions", body)[1]["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32, 0, 0, 32, 0, 32]


def test_one_of_several_prompts_that_does_not_fit_refuses_all(served: str) -> None:
    small = {"model": NAME, "prompt": [[1] * 20, [2] * 2000], "max_tokens": 1}
    status, answer, _ = ask(served, "POST", "/v1/completions", small)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


# What an answer carries -----------------------------------------------------------------------------------------------


def test_echo(client: openai.OpenAI) -> None:
    assert client.completions.create(model=NAME, prompt="abcdé", echo=True, max_tokens=2).choices[0].text == "abcdé 0 1"
    assert client.completions.create(model=NAME, prompt=[7, 8], echo=True, max_tokens=1).choices[0].text == " 7 8 0"
    stream = client.completions.create(model=NAME, prompt="abcdé", echo=True, max_tokens=2, stream=True)
    assert [choice.text for chunk in stream for choice in chunk.choices] == ["abcdé", " 0", " 1"]


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    """One for each token, its place in the text, and nothing known of the very first token of a prompt."""
    answer = client.completions.create(model=NAME, prompt="abcdefgh", max_tokens=12, logprobs=2, echo=True)
    text, logprobs = answer.choices[0].text, answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["abcd", "efgh", *(f" {i}" for i in range(12))]
    assert logprobs.token_logprobs == [None, *[0.0] * 13]
    assert logprobs.text_offset is not None
    assert [text[at:].startswith(token) for at, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)] == [
        True
    ] * 14
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[2] == {" 0": 0.0}


def test_logprobs_of_a_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(model=NAME, prompt="abcd", max_tokens=102, logprobs=0, stream=True)
    text, offsets = "", []
    for chunk in stream:
        choice = chunk.choices[0]
        assert choice.logprobs is not None
        assert choice.logprobs.text_offset == [len(text)]
        assert choice.logprobs.top_logprobs is None
        offsets += choice.logprobs.text_offset
        text += choice.text
    # Ten tokens of two characters, ninety of three, and then the first of four.
    assert (offsets[10], offsets[100], offsets[101]) == (20, 290, 294)


def test_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(
        model=NAME, messages=messages, logprobs=True, top_logprobs=3, max_completion_tokens=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(token.token, token.logprob, token.bytes) for token in logprobs.content] == [
        (" 0", 0.0, [32, 48]),
        (" 1", 0.0, [32, 49]),
    ]
    assert [top.token for top in logprobs.content[0].top_logprobs] == [" 0"]
    stream = client.chat.completions.create(model=NAME, messages=messages, logprobs=True, max_tokens=2, stream=True)
    tokens = [
        token.token
        for chunk in stream
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or ()
    ]
    assert tokens == [" 0", " 1"]


def test_usage_as_it_goes(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(model=NAME, prompt="abcd", max_tokens=5, stream=True, stream_options=options)
    usages = [chunk.usage for chunk in stream]
    counted = [usage.completion_tokens for usage in usages if usage is not None]
    assert len(counted) == len(usages)
    assert counted == sorted(counted)
    assert counted[-1] == 5
    assert counted[0] >= 1


def test_the_reason_of_an_end_is_chosen() -> None:
    with mock_thread(DEPLOYMENT, reason="stop") as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": "Hello"}]
        whole = client.chat.completions.create(model=NAME, messages=messages, max_tokens=2)
        assert whole.choices[0].finish_reason == "stop"
        chunks = list(client.chat.completions.create(model=NAME, messages=messages, max_tokens=2, stream=True))
        assert chunks[-1].choices[0].finish_reason == "stop"
        text = ask(url, "GET", "/metrics")[1]
        assert 'vllm:request_success_total{engine="0",model_name="org/mock",finished_reason="stop"} 2.0' in text


def test_no_tokens_are_an_answer_too(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="abcdefgh", max_tokens=0, echo=True, logprobs=1)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("abcdefgh", "length")


# Metrics -------------------------------------------------------------------------------------------------------------


def test_metrics_count_requests_by_what_they_asked() -> None:
    with mock_thread(DEPLOYMENT) as (url, _):
        body = {"model": NAME, "prompt": [5] * 40, "max_tokens": 7, "n": 2}
        assert ask(url, "POST", "/v1/completions", body)[0] == 200
        lines = ask(url, "GET", "/metrics")[1].splitlines()
    series = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = 'engine="0",model_name="org/mock"'

    def of(name: str, more: str = "") -> float:
        return float(series[f"vllm:{name}{{{labels}{more}}}"])

    assert of("request_prompt_tokens_sum") == 80
    assert of("request_generation_tokens_sum") == 14
    assert of("request_generation_tokens_bucket", ',le="5.0"') == 0
    assert of("request_generation_tokens_bucket", ',le="10.0"') == 2
    assert of("request_params_n_sum") == 4
    assert of("request_params_max_tokens_count") == 2
    assert of("request_decode_time_seconds_sum") >= 2 * 0.006
    assert of("request_time_per_output_token_seconds_count") == 2
    assert of("cache_config_info", ',block_size="16",num_gpu_blocks="256"') == 1
    for name in ("external_prefix_cache_queries_total", "mm_cache_hits_total", "corrupted_requests_total"):
        assert of(name) == 0
    # Each series has its help and its type once.
    heads = [line for line in lines if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
