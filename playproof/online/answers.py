"""The OpenAI API as a mock worker writes it: whole answers and streams of events.

The text of token i is its number, so that a lost or doubled one shows. Logarithms of probabilities are placeholders: a
simulated engine is sure of each token, so each has 0, and is its only alternative.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from playproof.online.wire import Prompt, Wanted

# Tokens whose text is made in one go.
SLICE = 1 << 15


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    """Return the usage of a request."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def texts(begin: int, end: int) -> list[str]:
    """Return the text of tokens `begin` to `end`."""
    return [f" {i}" for i in range(begin, end)]


def _length_before(token: int) -> int:
    """Return how many characters the tokens before `token` have: a space and its digits each."""
    digits, least, total = 1, 0, 0
    while least < token:
        upto = min(token, 10**digits)
        total += (upto - least) * (digits + 1)
        digits, least = digits + 1, upto
    return total


class Writer:
    """Writes the answer to one request.

    Parameters
    ----------
    wanted : Wanted
    model : str
    name : str
        Of the request; makes its id.
    reason : str
        Why an answer ends that has all its tokens.
    """

    def __init__(self, wanted: Wanted, model: str, name: str, reason: str = "length") -> None:
        self._wanted = wanted
        self._chat = wanted.kind == "chat"
        self._created = int(time.time())
        self._model = model
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{name}"
        self._reason = reason
        self._quoted = msgspec.json.encode(reason)
        head = msgspec.json.encode(self._head("chat.completion.chunk" if self._chat else "text_completion"))[:-1]
        text = b'{"content":"' if self._chat else b'"'
        key = b'"delta":' if self._chat else b'"text":'
        self._head_of_chunk = head
        self._before = [
            b'data: %s,"choices":[{"index":%d,%s%s' % (head, index, key, text) for index in range(len(wanted.choices))
        ]
        self._after = (b'"}' if self._chat else b'"') + b',"logprobs":null,"finish_reason":'

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    # Streams ---------------------------------------------------------------------------------------------------------

    def tokens(self, choice: int, begin: int, end: int, *, last: bool, counted: dict[str, Any] | None = None) -> bytes:
        """Return the events of tokens `begin` to `end`.

        Parameters
        ----------
        choice : int
        begin, end : int
        last : bool
            Whether the answer ends with them.
        counted : dict, optional
            The usage that stands in each event.
        """
        if self._wanted.logprobs is not None or counted is not None or (self._wanted.echo and begin == 0):
            return self._slow_tokens(choice, begin, end, last, counted)
        parts: list[bytes] = []
        if self._chat and begin == 0:
            parts.append(self._role(choice))
        before, after = self._before[choice], self._after
        for i in range(begin, end):
            parts += [before, b" %d" % i, after, b"null}]}\n\n"]
        if last and begin < end:
            parts[-1] = self._quoted + b"}]}\n\n"
        elif last:
            parts += [before, after, self._quoted, b"}]}\n\n"]
        return b"".join(parts)

    def _role(self, choice: int) -> bytes:
        delta = b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},' % choice
        return b"".join((b"data: ", self._head_of_chunk, delta, b'"logprobs":null,"finish_reason":null}]}\n\n'))

    def _slow_tokens(self, choice: int, begin: int, end: int, last: bool, counted: dict[str, Any] | None) -> bytes:
        """Return the same events where they carry more than text."""
        parts: list[bytes] = []
        prompt = self._wanted.choices[choice]
        echoed = "".join(prompt.pieces()) if self._wanted.echo else ""
        if begin == 0 and self._chat:
            parts.append(self._role(choice))
        if begin == 0 and self._wanted.echo:
            parts.append(self._event(choice, self._echoed(prompt), None, counted))
        for i in range(begin, end):
            said = self._said(choice, texts(i, i + 1), len(echoed) + _length_before(i))
            parts.append(self._event(choice, said, self._reason if last and i == end - 1 else None, counted))
        if last and begin == end:
            parts.append(self._event(choice, self._said(choice, [], 0), self._reason, counted))
        return b"".join(parts)

    def _event(self, choice: int, said: dict[str, Any], reason: str | None, counted: dict[str, Any] | None) -> bytes:
        value: dict[str, Any] = {"index": choice}
        value |= {"delta": {"content": said["text"]}} if self._chat else {"text": said["text"]}
        value |= {"logprobs": said["logprobs"], "finish_reason": reason}
        more = b"" if counted is None else b',"usage":' + msgspec.json.encode(counted)
        return b'data: %s,"choices":[%s]%s}\n\n' % (self._head_of_chunk, msgspec.json.encode(value), more)

    def end(self, counted: dict[str, Any] | None) -> bytes:
        """Return the last events of a stream: the usage, if it is wanted, and the end."""
        if counted is None:
            return b"data: [DONE]\n\n"
        tail = b',"choices":[],"usage":' + msgspec.json.encode(counted) + b"}\n\n"
        return b"data: " + self._head_of_chunk + tail + b"data: [DONE]\n\n"

    # Whole answers ---------------------------------------------------------------------------------------------------

    def choice(self, number: int, output: int) -> Iterator[dict[str, Any] | None]:
        """Make one choice of an answer that is not streamed: yields None between two slices, and it at the end."""
        parts: list[str] = []
        for begin in range(0, output, SLICE):
            parts.append("".join(texts(begin, min(begin + SLICE, output))))
            yield None
        echoed = self._echoed(self._wanted.choices[number]) if self._wanted.echo else None
        text = "".join([*([echoed["text"]] if echoed else ()), *parts])
        logprobs = None
        if self._wanted.logprobs is not None:
            prompt = self._wanted.choices[number].pieces() if echoed else []
            logprobs = self._logprobs([*prompt, *texts(0, output)], 0, unknown=1 if prompt else 0)
        value: dict[str, Any] = {"index": number, "logprobs": logprobs, "finish_reason": self._reason}
        yield value | ({"message": {"role": "assistant", "content": text}} if self._chat else {"text": text})

    def whole(self, choices: Sequence[dict[str, Any]], counted: dict[str, Any] | None) -> bytes:
        """Return the answer to a request that is not streamed."""
        kind = "chat.completion" if self._chat else "text_completion"
        own = {} if counted is None else {"usage": counted}
        return msgspec.json.encode({**self._head(kind), "choices": choices, **own})

    # Logarithms of probabilities -------------------------------------------------------------------------------------

    def _echoed(self, prompt: Prompt) -> dict[str, Any]:
        pieces = prompt.pieces()
        text = prompt.text if prompt.text is not None else "".join(pieces)
        logprobs = self._logprobs(pieces, 0, unknown=1) if self._wanted.logprobs is not None else None
        return {"text": text, "logprobs": logprobs}

    def _said(self, choice: int, pieces: list[str], offset: int) -> dict[str, Any]:
        logprobs = self._logprobs(pieces, offset) if self._wanted.logprobs is not None else None
        return {"text": "".join(pieces), "logprobs": logprobs}

    def _logprobs(self, pieces: list[str], offset: int, unknown: int = 0) -> dict[str, Any]:
        """Return placeholders for tokens from a place in the text on; of the first `unknown` nothing is known."""
        named = bool(self._wanted.logprobs)
        if self._chat:
            own = [{"token": piece, "logprob": 0.0, "bytes": list(piece.encode())} for piece in pieces]
            return {"content": [{**token, "top_logprobs": [token] if named else []} for token in own]}
        offsets = []
        for piece in pieces:
            offsets.append(offset)
            offset += len(piece)
        known: list[float | None] = [None if i < unknown else 0.0 for i in range(len(pieces))]
        top = [None if i < unknown else {piece: 0.0} for i, piece in enumerate(pieces)] if named else None
        return {"tokens": pieces, "token_logprobs": known, "top_logprobs": top, "text_offset": offsets}
