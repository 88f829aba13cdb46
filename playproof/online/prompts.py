"""Prompts as token ids: how the driver writes a trace's blocks as ids, and how a mock worker reads text.

**Blocks to ids.** A trace says which blocks of two prompts are the same, by their hash ids, and nothing of their text.
The corpus' distinct hash ids are numbered from 0 as they occur. A block whose number is below the vocabulary is that
number, over and over; a greater number is written in base `vocabulary`, least digit first, its digits over and over. So
different blocks are different tokens, equal ones equal, and prompts share what the trace says that they share; a prompt
has exactly as many tokens as the trace says.

**Text to ids.** A mock worker has no tokenizer. A token is four bytes of UTF-8, the last one what is left, its id those
bytes read as a little-endian number: about what tokenizers make of English, and equal beginnings stay equal.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from playproof_spec.graph import Graph

Uint32 = npt.NDArray[np.uint32]

# Every id of a token is below: it fits four bytes.
TOKEN_IDS = 1 << 32
# The ids that a mock worker takes are all its own. Real models have fewer: a vocabulary that most of them exceed.
MOCK_VOCABULARY = 1 << 31
REAL_VOCABULARY = 32_000
BYTES_PER_TOKEN = 4


class Encoding:
    """How the prompts of one corpus are written.

    Parameters
    ----------
    graph : Graph
    vocabulary : int
        Ids are below it; at least 2, and enough that a block's tokens can tell all blocks apart.

    Raises
    ------
    ValueError
        When they are not enough.
    """

    def __init__(self, graph: Graph, vocabulary: int = MOCK_VOCABULARY) -> None:
        self._graph = graph
        self._vocabulary = vocabulary
        self._size = graph.block_size
        self._numbers: dict[int, int] = {}
        # Runs overlap, so this is a bound; what is interned is less.
        distinct = int(graph.run_count.sum())
        self._digits, reach = 1, vocabulary
        while reach < distinct and self._digits < self._size:
            self._digits += 1
            reach *= vocabulary
        if reach < distinct:
            raise ValueError(
                f"{distinct:,} blocks of {self._size} tokens cannot be told apart with a vocabulary of {vocabulary:,}"
            )

    def tokens(self, node: int) -> Uint32:
        """Return the token ids of the prompt of `node`."""
        blocks = [self._block(number) for number in self._numbers_of(node)]
        return np.concatenate([np.zeros(0, np.uint32), *blocks])[: int(self._graph.input_length[node])]

    def text(self, node: int) -> bytes:
        """Return the same as the inside of a JSON array."""
        length = int(self._graph.input_length[node])
        numbers = self._numbers_of(node)
        whole = length // self._size
        parts = [self._json(number) for number in numbers[:whole]]
        rest = length - whole * self._size
        if rest:
            last = self._block(numbers[whole])[:rest]
            parts.append(b",".join(b"%d" % token for token in last.tolist()))
        return b",".join(parts)

    def _numbers_of(self, node: int) -> list[int]:
        """Return the number of each block of a prompt."""
        known = self._numbers
        return [known.setdefault(label, len(known)) for label in self._graph.hash_ids(node).tolist()]

    def _block(self, number: int) -> Uint32:
        digits = []
        for _ in range(self._digits):
            digits.append(number % self._vocabulary)
            number //= self._vocabulary
        return np.resize(np.array(digits, np.uint32), self._size)

    def _json(self, number: int) -> bytes:
        if self._digits == 1:
            token = b"%d" % number
            return (token + b",") * (self._size - 1) + token
        return b",".join(b"%d" % token for token in self._block(number).tolist())


def text_tokens(text: str) -> Uint32:
    """Return the token ids of a text.

    Examples
    --------
    >>> text_tokens("abcde").tolist()
    [1684234849, 101]
    """
    data = text.encode("utf-8", "surrogatepass")
    padded = data + b"\0" * (-len(data) % BYTES_PER_TOKEN)
    return np.frombuffer(padded, "<u4").astype(np.uint32)


def token_texts(text: str) -> list[str]:
    """Return the text of each token of a text; what is not whole there is marked, as tokenizers do."""
    data = text.encode("utf-8", "surrogatepass")
    return [data[at : at + BYTES_PER_TOKEN].decode("utf-8", "replace") for at in range(0, len(data), BYTES_PER_TOKEN)]


def tokens_text(tokens: Uint32) -> str:
    """Return the text that `text_tokens` made these ids of, as far as they are such.

    Examples
    --------
    >>> tokens_text(text_tokens("abcde"))
    'abcde'
    """
    return tokens.astype("<u4").tobytes().rstrip(b"\0").decode("utf-8", "replace")


def chat_text(messages: Iterable[tuple[str, str]]) -> str:
    """Return a conversation of (role, content) as the text that it is read as."""
    return "".join(f"<|{role}|>\n{content}\n" for role, content in messages)
