"""Words that are one token each, from a tokenizer.json: with the package `tokenizers`, which is an extra.

What the words of a vocabulary become when they stand beside each other is for the tokenizer to say, so it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playproof_spec.findings import Finding, Where, finding, shown

from playproof.online import MissingExtra
from playproof.online.texts import MARK, Wording

INSTALL = "pip install 'playproof[tokenizer]'"
FLAG = "--tokenizer"
# The largest published ones have about 40 MB.
MAX_BYTES = 1 << 28
# Words with the space before them, as byte-level vocabularies and SentencePiece write it; and as WordPiece has them.
_MARKED, _BARE = re.compile("[Ġ▁]([a-z]{2,12})"), re.compile("([a-z]{2,12})")
# Words that are tried, and taken, those first that the tokenizer learnt first.
MAX_TRIED, MAX_WORDS = 1 << 14, 1 << 12


class UnusableTokenizer(Exception):
    """A tokenizer that no prompts can be made with.

    Attributes
    ----------
    finding : Finding
    """

    def __init__(self, problem: Finding) -> None:
        super().__init__(problem.message)
        self.finding = problem


def wording_of(path: str) -> Wording:
    """Return words that are one token each for a tokenizer.

    Parameters
    ----------
    path : str
        A tokenizer.json, or the folder that it lies in.

    Raises
    ------
    MissingExtra
    UnusableTokenizer
    """
    if find_spec("tokenizers") is None:
        raise MissingExtra(f"{FLAG} needs tokenizers: {INSTALL}")
    file = Path(path)
    if file.is_dir():
        file /= "tokenizer.json"
    wanted = "a tokenizer.json, or its folder"
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _unusable(file, "the file of the tokenizer is too large", f"over {MAX_BYTES:,} bytes", wanted)
        text = file.read_text("utf-8")
    except OSError as error:
        raise _unusable(file, "the tokenizer cannot be read", error.strerror or str(error), wanted) from None
    except UnicodeDecodeError:
        raise _unusable(file, "the tokenizer is no text", "bytes that are no UTF-8", wanted) from None
    words = _words(_loaded(text, file))
    if len(words) < 2:
        raise _unusable(
            file,
            "the tokenizer has no two words that are one token each",
            f"{len(words)} such words",
            "words of small letters",
        )
    return Wording(words=words)


def _loaded(text: str, file: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Rust's panics are no exceptions of the ordinary kind
        wanted = "what tokenizers.Tokenizer reads"
        raise _unusable(file, "the tokenizer cannot be read", shown(str(error)), wanted) from None


def _words(tokenizer: Any) -> tuple[str, ...]:
    """Return words each of which is one token more wherever it is put behind others."""

    def count(texts: list[str]) -> list[int]:
        return [len(encoded.ids) for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]

    tried = list(_candidates(tokenizer))
    twice, four = count([f" {word}" * 2 for word in tried]), count([f" {word}" * 4 for word in tried])
    words = [word for word, two, all_four in zip(tried, twice, four, strict=True) if all_four - two == 2][:MAX_WORDS]
    if len(words) < 2:
        return tuple(words)
    # Beside others they must be what they are beside themselves.
    for order in (words, words[::-1]):
        one, all_of_them = count([f" {order[0]}", "".join(f" {word}" for word in order)])
        if all_of_them - one != len(order) - 1:
            return ()
    return tuple(words)


def _candidates(tokenizer: Any) -> Iterator[str]:
    """Give the words of a vocabulary in the order of their ids, each once."""
    known: set[str] = {MARK}
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    shape = _MARKED if any(_MARKED.fullmatch(token) for token in vocabulary) else _BARE
    for token in sorted(vocabulary, key=lambda token: (vocabulary[token], token)):
        found = shape.fullmatch(token)
        if found is not None and found[1] not in known:
            known.add(found[1])
            yield found[1]
            if len(known) > MAX_TRIED:
                return


def _unusable(file: Path, message: str, found: str, wanted: str) -> UnusableTokenizer:
    hint = f"Give {FLAG} the tokenizer.json of the model that is served, or leave it out."
    where = Where(file=str(file), field=FLAG)
    because = "Prompts are made of words that are one token each for it."
    return UnusableTokenizer(
        finding("config-value", message, where=where, found=found, wanted=wanted, because=because, hint=hint)
    )
