"""The OpenAI API as a mock worker reads it: requests and what they ask of an engine, and how errors are written.

Sampling parameters, stop words and whatever else only changes the text of an answer are read over: a simulated engine
has no text. What stands in a prompt counts in it, tools and their calls too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from playproof.online.prompts import TOKEN_IDS, chat_text, text_tokens, token_texts, tokens_text

T = TypeVar("T")

# 16 MiB: more than a million token ids.
MAX_BODY_BYTES = 1 << 24
# Tokens where a request does not say: OpenAI's default for completions, and one for chats that ends.
COMPLETION_TOKENS, CHAT_TOKENS = 16, 256
MAX_OUTPUT_TOKENS = 10_000_000
# Answers to one request, alternatives beside a token, and characters of a salt that is kept as it is.
MAX_CHOICES, MAX_LOGPROBS, MAX_SALT = 256, 20, 64


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
    continuous_usage_stats: bool = False


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    cache_salt: str | None = None


class CompletionRequest(_Common, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = None
    best_of: int | None = None
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: str | None = None


class ChatRequest(_Common, frozen=True, kw_only=True):
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: Any = None
    functions: Any = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None
    tools: Any = None
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its token ids, and the text that each of them is."""

    tokens: npt.NDArray[np.uint32]
    text: str | None

    def pieces(self) -> list[str]:
        """Return the text of each token: of a text its four bytes each, of ids their numbers."""
        if self.text is None:
            return [f" {token}" for token in self.tokens.tolist()]
        return token_texts(self.text)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one request asks of the engine.

    Attributes
    ----------
    prompts : tuple of Prompt
        Each is answered `n` times; a choice's number is that of its prompt times `n`, plus that of the answer.
    output : int
        Tokens of each answer.
    logprobs : int or None
        How many alternatives are named beside each token; None without any logprobs.
    """

    kind: Literal["completion", "chat"]
    prompts: tuple[Prompt, ...]
    n: int
    output: int
    namespace: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    logprobs: int | None

    @property
    def choices(self) -> list[Prompt]:
        """The prompt of each choice."""
        return [prompt for prompt in self.prompts for _ in range(self.n)]


_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_CHAT = msgspec.json.Decoder(ChatRequest)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise Refused(400, message, param=path.strip("`.") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


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
    request: CompletionRequest | ChatRequest
    request = _decoded(_COMPLETION, body) if kind == "completion" else _decoded(_CHAT, body)
    _check_model(request.model, model)
    if isinstance(request, CompletionRequest):
        _refuse_variants(request)
        prompts = _prompts(request.prompt)
        name, wanted, default = "max_tokens", request.max_tokens, COMPLETION_TOKENS
        echo, logprobs = bool(request.echo), request.logprobs
    else:
        prompts = (_conversation(request.messages, request.tools, request.functions),)
        name, wanted, default = "max_completion_tokens", request.max_completion_tokens, CHAT_TOKENS
        if wanted is None:
            name, wanted = "max_tokens", request.max_tokens
        echo, logprobs = False, (request.top_logprobs or 0) if request.logprobs else None
    output = default if wanted is None else wanted
    _check_bounds(request, prompts, name, output, logprobs, context)
    options = request.stream_options or StreamOptions()
    return Wanted(
        kind=kind,
        prompts=prompts,
        n=request.n or 1,
        output=output,
        namespace=_namespace(request.cache_salt or ""),
        stream=bool(request.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        echo=echo,
        logprobs=logprobs,
    )


def _check_model(named: str | None, model: str) -> None:
    if named is not None and named != model:
        raise Refused(404, f"the model {named!r} is not served here", param="model", code="model_not_found")


def _check_bounds(
    request: CompletionRequest | ChatRequest,
    prompts: tuple[Prompt, ...],
    name: str,
    output: int,
    logprobs: int | None,
    context: int,
) -> None:
    if not 0 <= output <= MAX_OUTPUT_TOKENS:
        raise Refused(400, f"{name} is between 0 and {MAX_OUTPUT_TOKENS:,}, not {output:,}", param=name)
    if request.n is not None and not 1 <= request.n <= MAX_CHOICES:
        raise Refused(400, f"n is between 1 and {MAX_CHOICES}, not {request.n:,}", param="n")
    if len(prompts) * (request.n or 1) > MAX_CHOICES:
        message = f"a request has at most {MAX_CHOICES} answers, not {len(prompts) * (request.n or 1):,}"
        raise Refused(400, message, param="prompt")
    if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
        where = "logprobs" if isinstance(request, CompletionRequest) else "top_logprobs"
        raise Refused(400, f"{where} is between 0 and {MAX_LOGPROBS}, not {logprobs:,}", param=where)
    for prompt in prompts:
        if not len(prompt.tokens):
            where = "prompt" if isinstance(request, CompletionRequest) else "messages"
            raise Refused(400, "the prompt is empty", param=where)
        if len(prompt.tokens) >= context:
            message = f"the model's context is {context:,} tokens, and the prompt has {len(prompt.tokens):,}"
            raise Refused(400, message, param="prompt", code="context_length_exceeded")


def _namespace(salt: str) -> str:
    """Return a salt as it is kept: what is long is kept by its digest, and none is another's digest."""
    if len(salt) <= MAX_SALT and not salt.startswith("#"):
        return salt
    return "#" + hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _refuse_variants(request: CompletionRequest) -> None:
    """Refuse what would change what an answer is."""
    if request.best_of not in (None, 1, request.n):
        raise Refused(400, "best_of is not supported by a simulated engine, unless it is n", param="best_of")
    if request.suffix:
        raise Refused(400, "suffix is not supported by a simulated engine", param="suffix")


def _prompts(prompt: str | list[int | str | list[int]]) -> tuple[Prompt, ...]:
    """Return the prompts of a completion: one text, ids of one, texts, or ids of each."""
    if isinstance(prompt, str):
        return (Prompt(text_tokens(prompt), prompt),)
    if all(isinstance(one, str) for one in prompt) and prompt:
        return tuple(Prompt(text_tokens(one), one) for one in prompt if isinstance(one, str))
    if all(isinstance(one, list) for one in prompt) and prompt:
        return tuple(Prompt(_ids(one), None) for one in prompt if isinstance(one, list))
    if all(isinstance(one, int) for one in prompt):
        return (Prompt(_ids(prompt), None),)
    raise Refused(400, "prompts are texts, or lists of token ids, and not some of both", param="prompt")


def _ids(ids: Sequence[object]) -> npt.NDArray[np.uint32]:
    try:
        tokens = np.array(ids, dtype=np.int64)
    except OverflowError:
        raise _no_token() from None
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= TOKEN_IDS):
        raise _no_token()
    return tokens.astype(np.uint32)


def _no_token() -> Refused:
    return Refused(400, f"token ids are between 0 and {TOKEN_IDS - 1:,}", param="prompt")


def _conversation(messages: list[_Message], tools: Any, functions: Any = None) -> Prompt:
    """Return a chat as the prompt that it is: all of it that a template would write, so tools and their calls too."""
    parts: list[tuple[str, str]] = [
        (name, _json(value)) for name, value in (("tools", tools), ("functions", functions)) if value
    ]
    for message in messages:
        parts.append((message.role, _content(message)))
        for name, said in (("name", message.name), ("reasoning", message.reasoning_content)):
            if said:
                parts.append((name, said))
        for name, called in (("tool_calls", message.tool_calls), ("function_call", message.function_call)):
            if called:
                parts.append((name, _json(called)))
        if message.tool_call_id:
            parts.append(("tool_call_id", message.tool_call_id))
    text = chat_text(parts)
    return Prompt(text_tokens(text), text)


def _json(value: Any) -> str:
    """Return a value in one form, however it was spaced."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise Refused(400, "tools are nested too deeply", param="messages") from None


def _content(message: _Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.type != "text":
            raise Refused(400, f"content of type {part.type!r} is not supported", param="messages")
    return "".join(part.text for part in message.content)


def tokenized(body: bytes, model: str, context: int) -> dict[str, Any]:
    """Answer `/tokenize`.

    Raises
    ------
    Refused
    """
    request = _decoded(_TOKENIZE, body)
    _check_model(request.model, model)
    if (request.prompt is None) == (request.messages is None):
        raise Refused(400, "either prompt or messages is to be tokenized", param="prompt")
    if request.messages is not None:
        prompt = _conversation(request.messages, request.tools)
    else:
        text = request.prompt or ""
        prompt = Prompt(text_tokens(text), text)
    tokens = prompt.tokens.tolist()
    strings = prompt.pieces() if request.return_token_strs else None
    return {"count": len(tokens), "max_model_len": context, "tokens": tokens, "token_strs": strings}


def detokenized(body: bytes, model: str) -> dict[str, Any]:
    """Answer `/detokenize`.

    Raises
    ------
    Refused
    """
    request = _decoded(_DETOKENIZE, body)
    _check_model(request.model, model)
    return {"prompt": tokens_text(_ids(request.tokens))}
