"""The mock worker as its clients see it: the OpenAI package, clients that hang up, read slowly, or write nonsense."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlparse

import openai
import pytest

from playproof.online import wire

# However busy the machine, an answer comes within this; where something hangs, none does.
WATCHDOG_S = 120.0

WORDS = "It was a bright cold day in April, and the clocks were striking thirteen. "


@pytest.fixture
def client(served: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)


def post(url: str, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    place = urlparse(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WATCHDOG_S)
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def get(url: str, path: str) -> tuple[int, str, bytes]:
    place = urlparse(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WATCHDOG_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("content-type", ""), response.read()
    finally:
        connection.close()


def counters(url: str) -> dict[str, int]:
    counted: dict[str, int] = json.loads(get(url, "/playproof/counters")[2])
    return counted


def until(url: str, within_s: float = WATCHDOG_S, **wanted: int) -> dict[str, int]:
    """Wait for counters to be as wanted."""
    deadline = time.monotonic() + within_s
    while True:
        now = counters(url)
        if all(now[name] == value for name, value in wanted.items()):
            return now
        assert time.monotonic() < deadline, f"{now} never became {wanted}"
        time.sleep(0.02)


# The OpenAI package -------------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list().data] == ["mock"]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="mock", prompt=WORDS, max_tokens=5)
    assert answer.choices[0].text == " 0 1 2 3 4"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    # A token is four bytes.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (-(-len(WORDS) // 4), 5)


def test_completions_streamed(client: openai.OpenAI) -> None:
    """The second time the prompt is in the cache, but for its last block; each token comes once, in order."""
    prompt = [*range(1000, 1050)]
    for cached in (0, 48):
        chunks = list(
            client.completions.create(
                model="mock", prompt=prompt, max_tokens=7, stream=True, stream_options={"include_usage": True}
            )
        )
        *tokens, last = chunks
        assert "".join(chunk.choices[0].text for chunk in tokens) == " 0 1 2 3 4 5 6"
        assert [chunk.choices[0].finish_reason for chunk in tokens] == [None] * 6 + ["length"]
        assert not last.choices
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (50, 7, 57)
        assert last.usage.prompt_tokens_details is not None
        assert last.usage.prompt_tokens_details.cached_tokens == cached


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": WORDS}], max_completion_tokens=3
    )
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == " 0 1 2"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_chat_streamed(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="mock",
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": WORDS}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == " 0 1 2 3"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_a_conversation_that_goes_on_finds_its_beginning_in_the_cache(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": WORDS * 8}, {"role": "user", "content": "Which month?"}]
    client.chat.completions.create(model="mock", messages=messages, max_tokens=1)
    messages += [{"role": "assistant", "content": "April."}, {"role": "user", "content": "Which year?"}]
    answer = client.chat.completions.create(model="mock", messages=messages, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 144


def test_namespaces_share_nothing(client: openai.OpenAI) -> None:
    cached = []
    for salt in ("one", "two", "one"):
        answer = client.completions.create(
            model="mock", prompt=list(range(2000, 2040)), max_tokens=1, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, 0, 32]


def test_errors_as_the_package_sees_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.completions.create(model="another", prompt="x")
    with pytest.raises(openai.BadRequestError, match="context is 2,000 tokens, and the prompt has 2,000") as raised:
        client.completions.create(model="mock", prompt=[0] * 2000)
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="does not fit into the worker's KV cache"):
        client.completions.create(model="mock", prompt=[0] * 1100)
    with pytest.raises(openai.InternalServerError, match="outgrew"):
        client.completions.create(model="mock", prompt=[5] * 1000, max_tokens=500)
    with pytest.raises(openai.APIError, match="outgrew"):
        list(client.completions.create(model="mock", prompt=[5] * 1000, max_tokens=500, stream=True))


# Requests that nobody should send -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"[]", 400, "Expected `object`"),
        (b'{"model": "mock"}', 400, "prompt"),
        (b'{"model": "mock", "prompt": ""}', 400, "empty"),
        (b'{"model": "mock", "prompt": []}', 400, "empty"),
        (b'{"model": "mock", "prompt": "x", "max_tokens": -1}', 400, "max_tokens is between"),
        (b'{"model": "mock", "prompt": "x", "max_tokens": 10000001}', 400, "between 0 and 10,000,000, not 10,000,001"),
        (b'{"model": "mock", "prompt": "x", "max_tokens": 1.5}', 400, "Expected `int | null`"),
        (b'{"model": "mock", "prompt": [1, -1]}', 400, "token ids are between"),
        (b'{"model": "mock", "prompt": [4294967296]}', 400, "token ids are between"),
        (b'{"model": "mock", "prompt": [99999999999999999999]}', 400, ""),
        (b'{"model": "mock", "prompt": [1, "x"]}', 400, "not some of both"),
        (b'{"model": "mock", "prompt": ["x", [1]]}', 400, "not some of both"),
        (b'{"model": "mock", "prompt": [[1], []]}', 400, "empty"),
        (b'{"model": "mock", "prompt": "x", "n": 0}', 400, "n is between 1 and 256, not 0"),
        (b'{"model": "mock", "prompt": ["x", "y"], "n": 129}', 400, "at most 256 answers, not 258"),
        (b'{"model": "mock", "prompt": "x", "best_of": 2}', 400, "best_of is not supported"),
        (b'{"model": "mock", "prompt": "x", "suffix": "y"}', 400, "suffix is not supported"),
        (b'{"model": "mock", "prompt": "x", "logprobs": 21}', 400, "logprobs is between 0 and 20"),
        (b'{"model": "mock", "prompt": "\xff"}', 400, ""),
        (b"[" * 100_000, 400, ""),
    ],
)
def test_malformed_requests(served: str, body: bytes, status: int, message: str) -> None:
    answered, answer = post(served, "/v1/completions", body)
    assert answered == status
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert message in answer["error"]["message"]


def test_a_picture_is_refused(served: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": "x"}}]
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": content}]}).encode()
    status, answer = post(served, "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert "image_url" in answer["error"]["message"]


def test_a_body_over_the_stated_size(served: str) -> None:
    """One that says so is refused before it comes, one that does not as soon as it is too large."""
    place = urlparse(served)
    status, answer = post(served, "/v1/completions", b"{}", **{"content-length": str(wire.MAX_BODY_BYTES + 1)})
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    with socket.create_connection((place.hostname, place.port), timeout=WATCHDOG_S) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        part = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
        answered = b""
        try:
            for _ in range(wire.MAX_BODY_BYTES // (1 << 20) + 2):
                sock.sendall(part)
            answered = sock.recv(1 << 16)
        except ConnectionError:  # it hung up while we were writing
            answered = answered or b"HTTP/1.1 413"
    assert answered.startswith(b"HTTP/1.1 413")
    assert counters(served)["running"] == 0


def test_unknown_places_have_the_same_shape(served: str) -> None:
    for path, status in (("/v1/embeddings", 404), ("/v1/models", 405)):
        answered, answer = post(served, path, b"{}")
        assert (answered, answer["error"]["type"]) == (status, "invalid_request_error")


def test_health_and_metrics(served: str, client: openai.OpenAI) -> None:
    assert get(served, "/health")[0] == 200
    before = _series(served)
    client.completions.create(model="mock", prompt=list(range(3000, 3040)), max_tokens=4)
    after = _series(served)

    def rise(name: str, labels: str = "") -> float:
        series = f'vllm:{name}{{engine="0",model_name="mock"{labels}}}'
        return after[series] - before[series]

    assert rise("prompt_tokens_total") == rise("prefix_cache_queries_total") == 40
    assert rise("generation_tokens_total") == 4
    assert rise("prefix_cache_hits_total") == 0
    assert rise("request_success_total", ',finished_reason="length"') == 1
    assert rise("time_to_first_token_seconds_count") == rise("e2e_request_latency_seconds_count") == 1
    # A worker that is late hears of two tokens at once, which have no gap.
    assert 1 <= rise("inter_token_latency_seconds_count") <= 3
    assert 0.01 <= rise("time_to_first_token_seconds_sum") < WATCHDOG_S
    assert rise("time_to_first_token_seconds_bucket", ',le="+Inf"') == 1
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f'vllm:{name}{{engine="0",model_name="mock"}}' in after


def _series(url: str) -> dict[str, float]:
    status, kind, text = get(url, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_no_token_waits_for_an_acknowledgement(served: str) -> None:
    """On a connection that is kept, the answer's first bytes and its first token come together."""
    place = urlparse(served)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=WATCHDOG_S)
    # Nagle's algorithm and a delayed acknowledgement would make it 40 ms, every time; a busy machine does so sometimes.
    for number in range(300):
        body = json.dumps({"model": "mock", "prompt": [4000 + number] * 20, "max_tokens": 2, "stream": True})
        connection.request("POST", "/v1/completions", body.encode(), {"content-type": "application/json"})
        response = connection.getresponse()
        began = time.monotonic()
        assert b'" 0"' in response.readline()
        took = time.monotonic() - began
        response.read()
        if number > 0 and took < 0.02:
            break
    else:
        pytest.fail("each token waited for an acknowledgement")
    connection.close()


# Clients that behave badly ------------------------------------------------------------------------------------------


def open_stream(url: str, prompt: list[int], output: int) -> socket.socket:
    body = json.dumps({"model": "mock", "prompt": prompt, "max_tokens": output, "stream": True}).encode()
    place = urlparse(url)
    sock = socket.create_connection((place.hostname, place.port), timeout=WATCHDOG_S)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def test_hanging_up_cancels_and_frees_the_blocks(served: str) -> None:
    """One hangs up while it runs, one while it waits for its prompt: nothing is computed for either any more."""
    before, output = counters(served)["passes"], 1700
    running = open_stream(served, [7] * 200, output)
    assert running.recv(1000).startswith(b"HTTP/1.1 200")
    busy = until(served, running=1)
    assert busy["used_blocks"] >= 13
    running.close()
    until(served, running=0, waiting=0, used_blocks=0)
    early = open_stream(served, [8] * 200, output)
    early.close()
    idle = until(served, running=0, waiting=0, used_blocks=0)
    # Each of its tokens, had it stayed, would have taken a pass of 5 ms.
    assert idle["passes"] - before < output
    time.sleep(0.1)
    assert counters(served)["passes"] == idle["passes"]


def test_a_client_that_stops_in_the_middle_of_its_request(served: str) -> None:
    place = urlparse(served)
    with socket.create_connection((place.hostname, place.port), timeout=WATCHDOG_S) as sock:
        sock.sendall(b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"model": ')
    assert get(served, "/health")[0] == 200
    assert until(served, running=0)["waiting"] == 0


def test_a_slow_reader_gets_everything_and_delays_nobody(served: str, client: openai.OpenAI) -> None:
    slow = open_stream(served, [9] * 32, 150)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    # This one has all of its tokens before the other has read one.
    client.completions.create(model="mock", prompt=[10] * 32, max_tokens=20)
    data = b""
    while b"[DONE]" not in data:
        time.sleep(0.01)
        more = slow.recv(2048)
        assert more, "the stream broke"
        data += more
    slow.close()
    events = [line for line in data.replace(b"\r\n", b"\n").split(b"\n") if b'"text"' in line]
    texts = [json.loads(line.partition(b"data: ")[2])["choices"][0]["text"] for line in events]
    assert "".join(texts) == "".join(f" {i}" for i in range(150))


def test_many_streams_at_once_lose_and_double_nothing(served: str, client: openai.OpenAI) -> None:
    """Eight seats and sixty-four blocks for forty requests: they wait, are preempted, and all end whole."""

    def ask(number: int) -> str:
        stream = client.completions.create(
            model="mock", prompt=[100 + number % 10] * (20 + number), max_tokens=30, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    with ThreadPoolExecutor(40) as pool:
        texts = list(pool.map(ask, range(40)))
    assert set(texts) == {"".join(f" {i}" for i in range(30))}
    until(served, running=0, waiting=0, used_blocks=0)
