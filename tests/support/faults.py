"""Streams that break a rule, one a row: what a server sends, how the request has to end, and what is said of it.

A row's name is the fault. `send` answers the first request of a play; `state` and `cause` are how that request has to
end. What only odd servers do, and is an answer all the same, stands here too, as completed.
"""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fake_server import HEAD, Connection

Send = Callable[[Connection], None]

# Tokens that every request of the runs with faults asks for, and its prompt's first and second length.
ASKED, PROMPT = 3, 32
_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row."""

    name: str
    send: Send
    state: str
    cause: str | None


def _choice(text: str | None = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason, **more}]}


def _usage(prompt: Any = PROMPT, output: Any = ASKED, cached: Any = 0) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}}


def _stream(*events: Any, end: bool = True) -> Send:
    """Send events (values, or bytes as they are) as chunks."""

    def send(connection: Connection) -> None:
        connection.send(HEAD)
        for event in events:
            if isinstance(event, bytes):
                connection.chunk(event)
            else:
                connection.event(event)
        if end:
            connection.done()
        else:
            connection.send(b"0\r\n\r\n")

    return send


TOKENS: tuple[Any, ...] = (_choice(" 0"), _choice(" 1"), _choice(" 2", "length"))


def _counted(**counts: Any) -> Send:
    """Send a whole stream whose usage is as said."""
    return _stream(*TOKENS, _usage(**counts))


def _raw(data: bytes, *, close: bool = True) -> Send:
    """Send bytes and close, or keep silent."""

    def send(connection: Connection) -> None:
        connection.send(data)
        if close:
            connection.sock.shutdown(socket.SHUT_RDWR)
        else:
            connection.hang()

    return send


def _status(status: str, body: bytes, kind: str = "application/json", extra: str = "") -> Send:
    return lambda connection: connection.status(status, body, kind=kind, extra=extra)


def _lines(data: bytes) -> Send:
    """Send a body of known length that is these bytes."""
    return _raw(_PLAIN + b"content-length: %d\r\n\r\n" % len(data) + data, close=False)


def _event(value: Any) -> bytes:
    return json.dumps(value).encode()


def _reset(tokens: int) -> Send:
    def send(connection: Connection) -> None:
        connection.send(HEAD)
        connection.tokens(tokens)
        connection.reset()

    return send


def _reset_at_once(connection: Connection) -> None:
    connection.reset()


def _close_at_once(connection: Connection) -> None:
    connection.sock.shutdown(socket.SHUT_RDWR)


def _closed_after(tokens: int) -> Send:
    def send(connection: Connection) -> None:
        connection.send(HEAD)
        connection.tokens(tokens)
        connection.sock.shutdown(socket.SHUT_RDWR)

    return send


def _hang(connection: Connection) -> None:
    connection.hang()


def _hang_after(data: bytes, tokens: int = 0, *, end: bool = False) -> Send:
    def send(connection: Connection) -> None:
        connection.send(data)
        connection.tokens(tokens, finish=end)
        connection.hang()

    return send


def _drip(part: bytes, pause_s: float, head: bytes = HEAD) -> Send:
    """Send something for ever, without pause longer than the silence that is allowed."""

    def send(connection: Connection) -> None:
        connection.send(head)
        while not connection.released.wait(pause_s):
            if head is HEAD:
                connection.chunk(part)
            else:
                connection.send(part)

    return send


def _endless(connection: Connection) -> None:
    connection.send(HEAD)
    for number in range(10_000):
        connection.event(_choice(f" {number}"))


def _flood(part: bytes, times: int) -> Send:
    def send(connection: Connection) -> None:
        connection.send(HEAD)
        for _ in range(times):
            connection.chunk(part)
        connection.hang()

    return send


def _late_first(connection: Connection) -> None:
    """An empty event at once; the first token a while later."""
    connection.send(HEAD)
    connection.event(_choice(""))
    time.sleep(0.3)
    for event in (*TOKENS, _usage()):
        connection.event(event)
    connection.done()


_ONE = (_choice(" 0"),)
_CR = b"".join(b"data: " + _event(event) + b"\r\r" for event in (*TOKENS, _usage())) + b"data: [DONE]\r\r"
_CRLF = _CR.replace(b"\r", b"\r\n")
_BOM = b"\xef\xbb\xbf" + _CR.replace(b"\r", b"\n")
_SPLIT = b'data: {"choices": [{"index": 0,\ndata: "text": " 0 1 2", "finish_reason": "length"}]}\n\ndata:[DONE]\n\n'
_FIELDS = b": hello\nevent: x\nid: 1\nretry: 5\ndata\n\n" + _BOM[3:]
_ZIPPED = gzip.compress(_BOM[3:])
_BOMB = gzip.compress(b": " + b"x" * (1 << 16) + b"\n", 1) * 400

F, C, R = "failed", "completed", "rejected"
_NO_NUMBER, _GAVE_UP = "the usage cannot be: ", "the server gave up: "

TABLE: tuple[Fault, ...] = (
    # What is counted.
    Fault("10^20 tokens", _counted(output=10**20), F, _NO_NUMBER + "completion_tokens is 100,000,000,000,000,000,000"),
    Fault("10^400 tokens", _counted(output=10**400), F, _NO_NUMBER + "completion_tokens is 10,000,000,000"),
    Fault("tokens below zero", _counted(output=-3), F, _NO_NUMBER + "completion_tokens is -3"),
    Fault("a million tokens", _counted(output=10**6), F, "lies between 1 and 19"),
    Fault("no token though some came", _counted(output=0), F, "completion_tokens is 0"),
    Fault("half a token", _counted(output=2.5), F, "cannot be read"),
    Fault("tokens as text", _counted(output="3"), F, "cannot be read"),
    Fault(
        "tokens beyond floats", _stream(*TOKENS, b'data: {"usage":{"prompt_tokens":1e999}}\n\n'), F, "cannot be read"
    ),
    Fault("prompt below zero", _counted(prompt=-1), F, "prompt_tokens is -1"),
    Fault("prompt of 2^40", _counted(prompt=2**40), F, "prompt_tokens is 1,099,511,627,776"),
    Fault("cached beyond the prompt", _counted(cached=33), F, "cached_tokens is 33, and lies between 0 and 32"),
    Fault("cached 2 * 10^8", _counted(cached=2 * 10**8), F, "cached_tokens is 200,000,000"),
    Fault("cached below zero", _counted(cached=-1), F, "cached_tokens is -1"),
    Fault("cached of another prompt", _counted(prompt=10**6, cached=10**6), C, None),
    Fault("cached as a list", _counted(cached=[1]), F, "cannot be read"),
    Fault("usage as a number", _stream(*TOKENS, {"choices": [], "usage": 5}), F, "cannot be read"),
    Fault("usage without a prompt", _stream(*TOKENS, {"usage": {"completion_tokens": 3}}), F, "cannot be read"),
    Fault("fewer tokens", _stream(_choice(" 0", "stop"), _usage(output=1)), C, "fewer tokens came than were asked for"),
    Fault("more tokens", _counted(output=5), C, "more tokens came than were asked for"),
    Fault("usage says less", _counted(output=2), C, "the stream brought 3 tokens, its usage says 2"),
    Fault("no text at all", _stream(_choice("", "length"), _usage()), C, "no event of the stream brought text"),
    Fault("no usage", _stream(*TOKENS), C, "the stream had no usage"),
    Fault("usage and no reason", _stream(*TOKENS[:2], _choice(" 2"), _usage()), C, None),
    # Ends.
    Fault("an end and nothing else", _stream(), F, "neither a finish reason nor a usage"),
    Fault(
        "an end after tokens without a reason", _stream(*_ONE), F, "neither a finish reason nor a usage after 1 token"
    ),
    Fault("no end", _stream(*_ONE, end=False), F, "the stream ended before the answer did after 1 token"),
    Fault("nothing", _stream(end=False), F, "the stream ended before the answer did"),
    Fault("half an event", _stream(*_ONE, b'data: {"cho', end=False), F, "in the middle of an event"),
    Fault(
        "an event without its empty line", _stream(b"data: " + _event(TOKENS[2]), end=False), F, "middle of an event"
    ),
    Fault("usage as it goes, and cut", _stream({**_ONE[0], **_usage()}, end=False), F, "ended before the answer did"),
    Fault("text after the end", _stream(*TOKENS, _choice(" 3"), _usage()), F, "goes on after it gave a reason"),
    Fault(
        "given up by its reason", _stream(*_ONE, _choice("", "abort")), F, _GAVE_UP + "it ended the stream with 'abort'"
    ),
    Fault("an error as its reason", _stream(*_ONE, _choice("", "error")), F, "'error'"),
    Fault("tokens without end", _endless, F, "the stream does not end: 3 tokens were asked for after 20 tokens"),
    Fault("comments without end", _flood(b": " + b"x" * 65_000 + b"\n\n", 400), F, "far longer than 3 tokens need"),
    Fault("a second choice", _stream(_choice(" 0", None, index=1)), F, "the stream has a choice 1"),
    # Errors under all their names.
    Fault("error", _stream(*_ONE, {"error": {"message": "boom"}}), F, _GAVE_UP + "boom after 1 token"),
    Fault("error as text", _stream({"error": "boom"}), F, _GAVE_UP + "boom"),
    Fault("error as a list", _stream({"error": ["boom"]}), F, _GAVE_UP + "['boom']"),
    Fault("object error", _stream({"object": "error", "message": "boom", "code": 500}), F, _GAVE_UP + "boom"),
    Fault("object error, mute", _stream({"object": "error"}), F, _GAVE_UP + "without a reason"),
    Fault("message alone", _stream({"message": "boom"}), F, _GAVE_UP + "boom"),
    Fault("detail alone", _stream({"detail": "boom"}), F, _GAVE_UP + "boom"),
    Fault("colours", _stream({"error": "\x1b[31mred\x07\u202e"}), F, r"\x1b[31mred\x07\u202e"),
    Fault("a long error", _stream({"error": "x" * 100_000}), F, "x" * 200 + "…"),
    # Events.
    Fault("no JSON", _stream(b"data: {broken\n\n"), F, "a chunk of the stream cannot be read"),
    Fault("a list", _stream(b"data: []\n\n"), F, "a chunk of the stream cannot be read"),
    Fault("nested without end", _stream(b'data: {"error":' + b"[" * 100_000 + b"\n\n"), F, "cannot be read"),
    Fault("no UTF-8", _stream(b'data: {"choices":[{"text":"\xff"}]}\n\n'), F, "cannot be read"),
    Fault("choices as text", _stream({"choices": "x"}), F, "cannot be read"),
    Fault("text as a number", _stream({"choices": [{"index": 0, "text": 5}]}), F, "cannot be read"),
    Fault("an endless line", _flood(b"x" * 65_536, 20), F, "a line of the stream is longer than 1,048,576 bytes"),
    Fault("an endless event", _flood(b"data: " + b"x" * 65_000 + b"\n", 20), F, "an event of the stream is longer"),
    Fault("an empty event first", _late_first, C, None),
    Fault("a byte order mark", _lines(_BOM), C, None),
    Fault("lines that end with CR", _lines(_CR), C, None),
    Fault("lines that end with CR LF", _lines(_CRLF), C, None),
    Fault("data in several lines", _lines(_SPLIT), C, "fewer tokens came"),
    Fault("fields and comments", _lines(_FIELDS), C, None),
    # HTTP.
    Fault(
        "429", _status("429 Too Many Requests", b'{"error": {"message": "slow down"}}'), F, "answered 429: slow down"
    ),
    Fault("500 in HTML", _status("500 Oh", b"<html>no</html>", "text/html"), F, "answered 500: <html>no</html>"),
    Fault("503 and empty", _status("503 Busy", b""), F, "the server answered 503: Busy"),
    Fault("401", _status("401 No", b"{}"), F, "PLAYPROOF_API_KEY holds the key"),
    Fault("404", _status("404 Not Found", b'{"detail": "Not Found"}'), F, "the server answered 404: Not Found"),
    Fault("400", _status("400 Bad", b'{"error": {"message": "too long"}}'), R, "the server answered 400: too long"),
    Fault("422", _status("422 Bad", b'{"detail": [{"msg": "no"}]}'), R, "the server answered 422"),
    Fault(
        "307", _status("307 Go", b"", extra="location: http://127.0.0.1:1/\r\n"), F, "it points to http://127.0.0.1:1/"
    ),
    Fault("204", _raw(b"HTTP/1.1 204 Nothing\r\n\r\n"), F, "the server answered 204"),
    Fault("an error nested without end", _status("500 Oh", b"[" * 60_000), F, "the server answered 500: [["),
    Fault("JSON, not a stream", _status("200 OK", b"{}"), F, "application/json instead of a stream"),
    Fault("another protocol", _raw(b"220 mail.example ESMTP\r\n"), F, "not HTTP"),
    Fault("chunks of no size", _raw(HEAD + b"zz\r\nx\r\n"), F, "the answer is not HTTP"),
    Fault("chunks below zero", _raw(HEAD + b"-5\r\nx\r\n"), F, "the answer is not HTTP"),
    Fault("two lengths", _raw(_PLAIN + b"content-length: 5\r\ncontent-length: 7\r\n\r\nhello"), F, "not HTTP"),
    Fault("a length below zero", _raw(_PLAIN + b"content-length: -1\r\n\r\n"), F, "not HTTP"),
    Fault("a body that is short", _raw(_PLAIN + b"content-length: 50\r\n\r\n: x\n\n"), F, "the connection broke"),
    Fault("a header too large", _raw(_PLAIN + b"x: " + b"y" * 70_000 + b"\r\n\r\n"), F, "not HTTP"),
    Fault("zipped without being asked", _raw(_PLAIN + b"content-encoding: gzip\r\n\r\n" + _ZIPPED), C, None),
    Fault("zipped, and is not", _raw(_PLAIN + b"content-encoding: gzip\r\n\r\nhello"), F, "connection broke"),
    Fault(
        "a bomb",
        _raw(_PLAIN + b"content-encoding: gzip\r\n\r\n" + _BOMB, close=False),
        F,
        "far longer than 3 tokens need",
    ),
    # Connections.
    Fault("reset at once", _reset_at_once, F, "the connection broke"),
    Fault("closed at once", _close_at_once, F, "the server closed the connection without an answer"),
    Fault("reset in the middle", _reset(2), F, "the connection broke after 2 tokens"),
    Fault("closed in the middle", _closed_after(2), F, "the connection broke after 2 tokens"),
    Fault("closed in the head", _raw(_PLAIN), F, "the server closed the connection without an answer"),
    # Silence.
    Fault("silent", _hang, F, "the server was silent for too long"),
    Fault("silent in its head", _hang_after(_PLAIN), F, "the server was silent for too long"),
    Fault("silent after its head", _hang_after(HEAD), F, "the server was silent for too long"),
    Fault("silent in the middle", _hang_after(HEAD, 2), F, "was silent for too long after 2 tokens"),
    Fault("silent after its reason", _hang_after(HEAD, 3, end=True), F, "silent for too long after 3"),
    Fault("silent in an error", _raw(b"HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\n", close=False), F, "silent"),
    Fault("heads without end", _drip(b"x-more: 1\r\n", 0.2, _PLAIN), F, "silent for too long"),
    Fault("100 without end", _drip(b"HTTP/1.1 100 Go on\r\n\r\n", 0.2, b""), F, "silent for too long"),
    Fault("comments now and then", _drip(b": on it\n\n", 0.2), F, "the request took too long"),
    Fault("empty events now and then", _drip(b'data: {"choices":[]}\n\n', 0.2), F, "took too long"),
)
