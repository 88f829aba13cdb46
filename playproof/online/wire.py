"""The OpenAI API as a mock worker speaks it: what is read of requests, and how answers and errors are written.

Sampling parameters, stop words, tools and whatever else only changes the text are read over: a simulated engine has no
text. What would change how many answers there are, or what they carry, is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from playproof.online.prompts import TOKEN_IDS, chat_text, text_tokens

# 16 MiB: more than a million token ids.
MAX_BODY_BYTES = 1 << 24
# Tokens where a request does not say: OpenAI's default for completions, and one for chats that ends.
COMPLETION_TOKENS, CHAT_TOKENS = 16, 256
MAX_OUTPUT_TOKENS = 10_000_000


class Refused(Exception):
    """A request that gets an answer of the API's error shape."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> bytes:
        """Return the answer's body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    cache_salt: str | None = None


class CompletionRequest(_Common, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = None
    best_of: int | None = 1
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None


class ChatRequest(_Common, frozen=True, kw_only=True):
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one request asks of the engine."""

    kind: Literal["completion", "chat"]
    tokens: npt.NDArray[np.uint32]
    output: int
    namespace: str
    stream: bool
    include_usage: bool


_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_CHAT = msgspec.json.Decoder(ChatRequest)


def read(kind: Literal["completion", "chat"], body: bytes, model: str, context: int) -> Wanted:
    """Read a request.

    Parameters
    ----------
    kind : {"completion", "chat"}
    body : bytes
    model : str
        The model served.
    context : int
        Tokens that a prompt stays below.

    Raises
    ------
    Refused
    """
    try:
        request: CompletionRequest | ChatRequest = (_COMPLETION if kind == "completion" else _CHAT).decode(body)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise Refused(400, message, param=path.strip("`.") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if request.model != model:
        raise Refused(404, f"the model {request.model!r} is not served here", param="model", code="model_not_found")
    _refuse_variants(request)
    if isinstance(request, CompletionRequest):
        tokens, wanted = _prompt(request.prompt), request.max_tokens
        name, default = "max_tokens", COMPLETION_TOKENS
    else:
        tokens = text_tokens(chat_text((message.role, _content(message)) for message in request.messages))
        completion = request.max_completion_tokens
        wanted, name = (
            (request.max_tokens, "max_tokens") if completion is None else (completion, "max_completion_tokens")
        )
        default = CHAT_TOKENS
    output = default if wanted is None else wanted
    if not 0 <= output <= MAX_OUTPUT_TOKENS:
        raise Refused(400, f"{name} is between 0 and {MAX_OUTPUT_TOKENS:,}, not {output:,}", param=name)
    if not len(tokens):
        raise Refused(400, "the prompt is empty", param="prompt" if kind == "completion" else "messages")
    if len(tokens) >= context:
        message = f"the model's context is {context:,} tokens, and the prompt has {len(tokens):,}"
        raise Refused(400, message, param="prompt", code="context_length_exceeded")
    options = request.stream_options or StreamOptions()
    return Wanted(kind, tokens, output, request.cache_salt or "", bool(request.stream), options.include_usage)


def _refuse_variants(request: CompletionRequest | ChatRequest) -> None:
    """Refuse what would change the number of answers or what they carry."""
    unusual: dict[str, Any] = {"n": request.n not in (None, 1)}
    if isinstance(request, CompletionRequest):
        unusual |= {
            "best_of": request.best_of not in (None, 1),
            "echo": bool(request.echo),
            "logprobs": request.logprobs is not None,
            "suffix": request.suffix is not None,
        }
    else:
        unusual["logprobs"] = bool(request.logprobs)
    for name, refused in unusual.items():
        if refused:
            raise Refused(400, f"{name} is not supported by a simulated engine", param=name)


def _prompt(prompt: str | list[int | str | list[int]]) -> npt.NDArray[np.uint32]:
    one: str | Sequence[int | str | list[int]] = prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        one = prompt[0]  # a batch of one
    if isinstance(one, str):
        return text_tokens(one)
    try:
        tokens = np.array(one, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        raise Refused(400, "several prompts in one request are not supported", param="prompt") from None
    if tokens.ndim != 1:
        raise Refused(400, "several prompts in one request are not supported", param="prompt")
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= TOKEN_IDS):
        raise Refused(400, f"token ids are between 0 and {TOKEN_IDS - 1:,}", param="prompt")
    return tokens.astype(np.uint32)


def _content(message: _Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.type != "text":
            raise Refused(400, f"content of type {part.type!r} is not supported", param="messages")
    return "".join(part.text for part in message.content)


# Answers --------------------------------------------------------------------------------------------------------------


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    """Return the usage of a request."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Writer:
    """Writes the answer to one request. The text of token i is its number, so that a lost or doubled one shows.

    Parameters
    ----------
    wanted : Wanted
    model : str
    number : int
        Of the request; makes its id.
    """

    def __init__(self, wanted: Wanted, model: str, number: int) -> None:
        self._chat = wanted.kind == "chat"
        self._created = int(time.time())
        self._model = model
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{number}"
        head = msgspec.json.encode(self._head("chat.completion.chunk" if self._chat else "text_completion"))[:-1]
        text = b'{"content":"' if self._chat else b'"'
        key = b'"delta":' if self._chat else b'"text":'
        self._before = b"data: " + head + b',"choices":[{"index":0,' + key + text
        self._after = (b'"}' if self._chat else b'"') + b',"logprobs":null,"finish_reason":'
        self._chunk_head = head

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def tokens(self, begin: int, end: int, *, last: bool) -> bytes:
        """Return the events of tokens `begin` to `end`; `last` if the answer ends with them."""
        parts = []
        if self._chat and begin == 0:
            delta = b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            parts += [b"data: ", self._chunk_head, delta, b'"logprobs":null,"finish_reason":null}]}\n\n']
        for i in range(begin, end):
            reason = b'"length"}]}\n\n' if last and i == end - 1 else b"null}]}\n\n"
            parts += [self._before, b" %d" % i, self._after, reason]
        if last and begin == end:
            parts += [self._before, self._after, b'"length"}]}\n\n']
        return b"".join(parts)

    def end(self, counted: dict[str, Any] | None) -> bytes:
        """Return the last events of a stream: the usage, if it is wanted, and the end."""
        if counted is None:
            return b"data: [DONE]\n\n"
        tail = b',"choices":[],"usage":' + msgspec.json.encode(counted) + b"}\n\n"
        return b"data: " + self._chunk_head + tail + b"data: [DONE]\n\n"

    def whole(self, output: int, counted: dict[str, Any]) -> bytes:
        """Return the answer to a request that is not streamed."""
        text = "".join(f" {i}" for i in range(output))
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        kind = "chat.completion" if self._chat else "text_completion"
        return msgspec.json.encode({**self._head(kind), "choices": [choice], "usage": counted})
