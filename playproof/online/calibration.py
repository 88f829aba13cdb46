"""How many tokens a server makes of words: asked before a run, by two short requests, of its own usage.

The texts begin with a word that no prompt begins with, so that nothing of a run is in a cache because of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from playproof.online.client import body_of, cause_of, said_of, status_cause
from playproof.online.stream import Answer, shown
from playproof.online.texts import Wording, counted_text, member_of

# Words besides the mark: all of them once, and again so often. A text of it is a few KB.
ROUNDS = 3
# What a word can be: a letter a token, and a space, or several words a token.
MOST_TOKENS, LEAST_TOKENS = 16.0, 0.25
# Wall time for an answer, and bytes of it.
ASK_S, MAX_BYTES = 120.0, 1 << 20


class Uncountable(Exception):
    """A server that does not say how many tokens a prompt has; the message names it and says why."""


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


async def calibrated(
    asking: aiohttp.ClientSession, endpoints: Sequence[str], path: str, model: str, wording: Wording
) -> Wording:
    """Return a wording as servers count it.

    Parameters
    ----------
    asking : ClientSession
    endpoints : sequence of str
        Roots; all must count alike.
    path : str
        Of the completions or of the chats.
    model : str
    wording : Wording
        Its words are counted.

    Raises
    ------
    Uncountable
    """
    words = len(wording.words)
    few, many = 1 + words, 1 + (1 + ROUNDS) * words
    counts: dict[tuple[int, int], str] = {}
    for endpoint in endpoints:
        url = endpoint + path
        less = await _counted(asking, url, path, model, counted_text(wording.words, few))
        more = await _counted(asking, url, path, model, counted_text(wording.words, many))
        if not LEAST_TOKENS <= (more - less) / (many - few) <= MOST_TOKENS or less < 0:
            raise Uncountable(
                f"{url} counts {shown(f'{less:,}')} tokens in {few} words and {shown(f'{more:,}')} in {many}, which "
                "no tokenizer does: give the model's with --tokenizer"
            )
        counts.setdefault((less, more), url)
    if len(counts) > 1:
        said = "; ".join(f"{url}: {less:,} and {more:,}" for (less, more), url in counts.items())
        raise Uncountable(f"the endpoints count {few} and {many} words differently ({said}): replay them one by one")
    ((less, more),) = counts
    tokens, per = more - less, many - few
    added = less - (2 * few * tokens + per) // (2 * per)
    return Wording(wording.words, tokens, per, added)


async def _counted(asking: aiohttp.ClientSession, url: str, path: str, model: str, text: str) -> int:
    """Return the tokens of one prompt, in a request like those of the run, so that a refusal comes before it."""
    body = body_of(model, member_of(text, chat=path.endswith("/chat/completions")), 1, stream=False)
    try:
        async with asyncio.timeout(ASK_S), asking.post(url, data=body, allow_redirects=False) as response:
            if response.status != 200:
                raise Uncountable(f"{url}: {status_cause(response, await said_of(response))}")
            data = await response.content.read(MAX_BYTES)
            while more := await response.content.read(MAX_BYTES - len(data)):
                data += more
            answer = msgspec.json.decode(data, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Uncountable(f"{url} cannot be read: {shown(str(error))}") from None
    except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
        raise Uncountable(f"{url}: {cause_of(error, Answer())}") from None
    if answer.usage is None:
        raise Uncountable(f"{url} does not say how many tokens a prompt has: give the model's tokenizer, --tokenizer")
    return answer.usage.prompt_tokens
