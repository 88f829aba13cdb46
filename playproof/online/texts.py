"""Prompts as text: the blocks of a trace as words, for servers and gateways that do not take token ids.

A word with the space before it is one token: of most tokenizers if it is among `WORDS`, of one's own if a tokenizer was
given, and of a mock worker, whose tokens have four bytes, if it has three letters. What a server makes of them is asked
before a run (`Wording`), and counted in it.

A block's number (`prompts.Numbers`) is written in base of the number of words, least digit first, over and over, as
`prompts.Encoding` does it with ids. Two prompts that share their first hash ids share their text up to there, from the
first letter; two blocks with other hash ids differ within their first few words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playproof_spec.graph import Graph

from playproof.online.prompts import CHATS, COMPLETIONS, Numbers, digits_for

# The commonest English words of three letters. Each is one token of cl100k, of Claude's published tokenizer, and of
# every other that has merged common words with the space before them.
_COMMON = """
the and for are but not you all any can had her was one our out day get has him his how man new now old see two way
who boy did its let put say she too use act add age ago aid air arm art ask bad bag bar bed big bit box bus buy car
cat cup cut dog dry due ear eat egg end eye far few fit fix fly fun gas got guy hit hot ice ill job key law lay led
leg lie lot low map may mix net nor off oil own pay per pop red row run sat sea set sit six sky son sun tax tea ten
tie tip top toy try van via wet why win yes
"""
WORDS = tuple(_COMMON.split())
# Begins what servers are asked to count, and no prompt: what they cache of it is nothing of a run's.
MARK = "yet"
# Tokens that a chat's template may add: a system prompt of its own has some hundreds.
TEMPLATE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Wording:
    """Words, and how many tokens they are.

    Attributes
    ----------
    words : tuple of str
        Letters alone.
    tokens, per : int
        So many tokens are `per` words.
    added : int or None
        Tokens that a server adds to a prompt, for marks and a template; None where it was not asked.
    """

    words: tuple[str, ...] = WORDS
    tokens: int = 1
    per: int = 1
    added: int | None = None

    def words_of(self, tokens: int) -> int:
        """Return how many words `tokens` are, to the nearest."""
        return (2 * tokens * self.per + self.tokens) // (2 * self.tokens)

    @property
    def tokens_per_word(self) -> float:
        """Tokens of a word."""
        return self.tokens / self.per


class Indistinct(ValueError):
    """A block has too few words to tell all blocks apart."""


class Texts:
    """How the prompts of one corpus are written as text.

    A prompt has, to the nearest, as many words as its tokens are, and one at least: by the wording's own measure it is
    off by no more than half a word.

    Parameters
    ----------
    graph : Graph
    wording : Wording
    chat : bool
        Whether a prompt is the message of a user, instead of a text to be completed.

    Raises
    ------
    Indistinct
    """

    def __init__(self, graph: Graph, wording: Wording, *, chat: bool) -> None:
        self._graph = graph
        self._wording = wording
        self._numbers = Numbers(graph)
        self._chat = chat
        self.path = CHATS if chat else COMPLETIONS
        self.besides = TEMPLATE_TOKENS if chat else 0
        self._words = [f" {word}" for word in wording.words]
        # Blocks are not all of the same number of words, where a word is not a token; this is the least.
        least = graph.block_size * wording.per // wording.tokens
        digits = digits_for(self._numbers.distinct, len(self._words), least)
        if digits is None:
            raise Indistinct(
                f"{self._numbers.distinct:,} blocks of {graph.block_size} tokens, which are {least} words, cannot be "
                f"told apart with {len(self._words):,} words"
            )
        self._digits = digits

    def text(self, node: int) -> str:
        """Return the text of the prompt of `node`."""
        words_of, size = self._wording.words_of, self._graph.block_size
        length = int(self._graph.input_length[node])
        whole, parts, begin = max(words_of(length), min(length, 1)), [], 0
        for block, number in enumerate(self._numbers.of(node), 1):
            end = min(words_of(block * size), whole)
            parts.append(self._block(number, end - begin))
            begin = end
        return "".join(parts)

    def member(self, node: int) -> bytes:
        """Return the prompt of `node` as a member of a JSON object."""
        return member_of(self.text(node), chat=self._chat)

    def _block(self, number: int, count: int) -> str:
        base, digits = len(self._words), []
        for _ in range(self._digits):
            digits.append(self._words[number % base])
            number //= base
        rounds, rest = divmod(count, self._digits)
        return "".join(digits) * rounds + "".join(digits[:rest])


def member_of(text: str, *, chat: bool) -> bytes:
    """Return a text of words as the member of a JSON object that it is sent as; nothing in it needs a backslash."""
    if chat:
        return b'"messages":[{"role":"user","content":"%s"}]' % text.encode("ascii")
    return b'"prompt":"%s"' % text.encode("ascii")


def counted_text(words: Sequence[str], count: int) -> str:
    """Return a text of `count` words for a server to count: a mark, then all words in turn."""
    return f" {MARK}" + "".join(f" {words[i % len(words)]}" for i in range(count - 1))
