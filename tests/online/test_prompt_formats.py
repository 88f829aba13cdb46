"""Prompts as ids, as text and as chats: what is sent, how servers count it, what they reuse of it, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import HEAD, Connection, fake_server
from hypothesis import assume, given
from hypothesis import strategies as st
from online_runs import lines_of, replay, trace_of
from playproof_spec.graph import Graph
from playproof_spec.sketch import sketch

import playproof as pp
from playproof.cli import main
from playproof.online import MissingExtra, calibration, tokenizer
from playproof.online.counted import Offsets
from playproof.online.options import PromptFormat
from playproof.online.prompts import Encoding, Numbers, text_tokens
from playproof.online.replay import UnusableEndpoint
from playproof.online.stream import Answer, Reading
from playproof.online.texts import MARK, WORDS, Indistinct, Texts, Wording, counted_text, member_of
from playproof.online.tokenizer import UnusableTokenizer, wording_of

ROOT = Path(__file__).resolve().parents[2]
V2 = str(ROOT / "examples" / "v2" / "corpus.jsonl")
FORMATS = list(PromptFormat)
LONGEST = 1000

# A worker that has room for all that a test sends it, so that nothing is evicted.
ROOMY = pp.Deployment(
    blocks=400,
    block_size=16,
    max_sequences=8,
    context_length=2000,
    model="mock",
    timing=pp.FixedTiming(prefill_ms=10, decode_ms=2),
)


# Properties ----------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw prompts over few hash ids, some of them neighbours and some at the end of what 64 bits hold."""
    size = draw(st.integers(1, 9))
    ids = st.one_of(st.integers(0, 12), st.integers(2**64 - 3, 2**64 - 1), st.integers(0, 2**64 - 1))
    rows = []
    for node in range(draw(st.integers(1, 6))):
        own = draw(st.lists(ids, min_size=1, max_size=5))
        length = (len(own) - 1) * size + draw(st.integers(1, size))
        rows.append({"request_id": f"r{node}", "input_length": length, "hash_ids": own})
    return sketch(rows, block_size=size)


WORDINGS = st.builds(
    Wording,
    st.sampled_from([WORDS, WORDS[:2], WORDS[:7]]),
    st.integers(1, 12),
    st.integers(1, 12),
)


def texts_of(graph: Graph, wording: Wording) -> Texts:
    try:
        return Texts(graph, wording, chat=False)
    except Indistinct:
        assume(False)
        raise


def in_common(a: Sequence[Any], b: Sequence[Any]) -> int:
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


@given(graphs())
def test_hash_ids_are_numbered_in_their_order(graph: Graph) -> None:
    """And by nothing else, so that no matter who sends first the same is sent."""
    everything = np.unique(np.concatenate([graph.hash_ids(node) for node in range(graph.node_count)])).tolist()
    numbers = Numbers(graph)
    rank: dict[int, int] = {}
    for node in range(graph.node_count):
        for label, number in zip(graph.hash_ids(node).tolist(), numbers.of(node), strict=True):
            assert rank.setdefault(label, number) == number
    assert numbers.distinct == len(rank) == len(everything)
    assert [rank[label] for label in everything] == list(range(len(everything)))


@given(graphs(), WORDINGS)
def test_prompts_share_their_text_as_far_as_their_hash_ids(graph: Graph, wording: Wording) -> None:
    """From the first letter and no further than into the first few words of the first block that is another one."""
    texts, size = texts_of(graph, wording), graph.block_size
    said = [texts.text(node).split(" ")[1:] for node in range(graph.node_count)]
    for a in range(graph.node_count):
        for b in range(a):
            shared = in_common(graph.hash_ids(a).tolist(), graph.hash_ids(b).tolist())
            least = min(int(graph.input_length[a]), int(graph.input_length[b]))
            common = in_common(said[a], said[b])
            assert common >= wording.words_of(min(shared * size, least))
            if (shared + 1) * size <= least:  # the block that differs is whole in both
                assert common < wording.words_of((shared + 1) * size)


@given(graphs(), WORDINGS)
def test_prompts_are_as_long_as_the_wording_can_tell(graph: Graph, wording: Wording) -> None:
    """Off by half a word at most, but for one whose tokens are less than half a word: it has one all the same."""
    texts, a_word = texts_of(graph, wording), Fraction(wording.tokens, wording.per)
    for node in range(graph.node_count):
        length, words = int(graph.input_length[node]), texts.text(node).count(" ")
        assert abs(words * a_word - length) <= a_word / 2 or (words == 1 and length < a_word / 2)


@given(graphs())
def test_for_a_mock_worker_a_word_is_a_token(graph: Graph) -> None:
    texts = texts_of(graph, Wording())
    for node in range(graph.node_count):
        assert len(text_tokens(texts.text(node))) == graph.input_length[node]


@given(graphs(), WORDINGS, st.booleans())
def test_a_prompt_is_json_that_needs_no_backslash(graph: Graph, wording: Wording, chat: bool) -> None:
    try:
        texts = Texts(graph, wording, chat=chat)
    except Indistinct:
        assume(False)
    for node in range(graph.node_count):
        body = json.loads(b"{%s}" % texts.member(node))
        assert texts.text(node) == (body["messages"][0]["content"] if chat else body["prompt"])


def test_words() -> None:
    """Three letters, none twice, and what servers count first is none of them."""
    assert len(set(WORDS)) == len(WORDS) > 100
    assert all(re.fullmatch("[a-z]{3}", word) for word in (*WORDS, MARK))
    assert MARK not in WORDS
    assert counted_text(("a", "b"), 4) == " yet a b a"


def test_a_prompt_by_hand() -> None:
    """Three words tell nine blocks apart by two of them, the least digit first: 7 is 1 + 2 × 3."""
    graph = sketch(
        [
            {"request_id": "a", "input_length": 12, "hash_ids": [100, 107, 108]},
            {"request_id": "b", "input_length": 30, "hash_ids": [100, 101, 102, 103, 104, 105, 106, 107]},
        ],
        block_size=4,
    )
    texts = Texts(graph, Wording(("x", "y", "z")), chat=True)
    assert texts.text(0) == " x x x x" + " y z y z" + " z z z z"
    assert texts.text(1)[-12:] == " x z x z y z"
    # A word of one and a half tokens: 12 of them are 8 words, of which a block has 3, 2 and 3.
    halves = Texts(graph, Wording(("x", "y", "z"), 3, 2), chat=False)
    assert halves.text(0) == " x x x" + " y z" + " z z z"
    assert halves.member(0) == b'"prompt":" x x x y z z z z"'


# Against a mock worker that is asked as any server is ---------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_replay_completes_and_reuses_what_the_trace_shares(form: PromptFormat, served: str, tmp_path: Path) -> None:
    report = replay(trace_of(tmp_path, plays=2, requests=3), served, prompt_format=form)
    lines, figures = lines_of(report), report.to_dict()
    assert {line["terminal_status"] for line in lines.values()} == {"completed"}
    # The template stands before a prompt and moves its blocks by what fits into the next one, so all of them are found.
    assert {name: line["first_admission_reused_input_tokens"] for name, line in lines.items()} == {
        "p0r0": 0, "p0r1": 32, "p0r2": 64, "p1r0": 0, "p1r1": 32, "p1r2": 64,
    }  # fmt: skip
    # `<|user|>⏎` and `⏎` are ten bytes, two and a half tokens.
    added = 3 if form == PromptFormat.chat else 0
    prompts = figures["online"]["prompts"]
    assert prompts == {
        "format": str(form),
        "tokenizer": None,
        "tokens_per_word": None if form == PromptFormat.ids else 1.0,
        "tokens_added": None if form == PromptFormat.ids else added,
        "counted": 6,
        "counted_tokens": 2 * (32 + 64 + 96) + 6 * added,
        "trace_tokens": 2 * (32 + 64 + 96),
        "share_off": 6 * added / 384,
        "least_off": added,
        "median_off": added,
        "most_off": added,
    }
    warned = figures["online"]["warnings"]
    assert warned == (["the server counts 402 tokens in prompts that have 384 in the trace: they are off by 4.7%, each "
                       "by itself"] if added else [])  # fmt: skip


def test_mock_workers_of_a_replay_take_chats(tmp_path: Path) -> None:
    """They are not asked how they count, so nothing but the trace reaches them."""
    report = replay(trace_of(tmp_path), deployment=ROOMY, prompt_format=PromptFormat.chat)
    figures = report.to_dict()
    assert figures["completed_requests"] == 4
    assert figures["committed_prefill_tokens"] == 2 * (32 + 3 + 64 + 3 - 32)


# What is sent --------------------------------------------------------------------------------------------------------


def serving(count: Any, kept: list[tuple[str, str]] | None = None) -> Any:
    """Make a server that counts the words of a prompt as it is told, and keeps what was sent to it."""

    def answer(connection: Connection) -> None:
        body = connection.body
        if kept is not None:
            kept.append((connection.path, json.dumps(body)))
        chat = connection.path == "/v1/chat/completions"
        text = body["messages"][0]["content"] if chat else body["prompt"]
        tokens = count(len(text) if isinstance(text, list) else text.count(" "))
        usage = {"prompt_tokens": tokens, "completion_tokens": int(body["max_tokens"])}
        if not body.get("stream"):
            connection.status("200 OK", json.dumps({"choices": [], "usage": usage}).encode())
            return
        connection.send(HEAD)
        if chat:
            connection.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            for i in range(int(body["max_tokens"])):
                name = ("reasoning_content", "reasoning", "content")[min(i, 2)]
                connection.event({"choices": [{"index": 0, "delta": {name: f" {i}"}, "finish_reason": None}]})
            connection.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        else:
            connection.tokens(int(body["max_tokens"]), finish=True)
        connection.event({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}}})
        connection.done()

    return answer


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_sent_depends_on_the_trace_alone(form: PromptFormat, tmp_path: Path) -> None:
    """Byte by byte, whoever goes first: one play after another, or all at once."""
    trace, sent = trace_of(tmp_path, plays=3, requests=2), []
    for lanes in (1, None, None):
        kept: list[tuple[str, str]] = []
        with fake_server(serving(lambda words: words, kept)) as url:
            report = replay(trace, url, load=pp.Load(lanes=lanes), prompt_format=form)
        assert report.to_dict()["completed_requests"] == 6
        sent.append(sorted(kept))
    assert sent[0] == sent[1] == sent[2]
    assert len(sent[0]) == (6 if form == PromptFormat.ids else 8)
    paths = {path for path, _ in sent[0]}
    assert paths == {"/v1/chat/completions" if form == PromptFormat.chat else "/v1/completions"}


def test_a_chat_is_one_message_of_the_user(tmp_path: Path) -> None:
    kept: list[tuple[str, str]] = []
    with fake_server(serving(lambda words: words + 5, kept)) as url:
        report = replay(trace_of(tmp_path, plays=1, requests=1), url, prompt_format=PromptFormat.chat)
    less, more, request = (json.loads(body) for _, body in kept)
    # Servers are asked first, about words that no prompt begins with.
    assert (less["max_tokens"], less["ignore_eos"], "stream" in less) == (1, True, False)
    assert less["messages"][0]["content"].startswith(f" {MARK} {WORDS[0]} {WORDS[1]}")
    assert more["messages"][0]["content"].startswith(less["messages"][0]["content"])
    assert request == {
        "model": "fake",
        "messages": [{"role": "user", "content": " the" * 16 + " and" * 16}],
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # An event that opens the message is no token; what a model thinks is.
    (line,) = report.request_dicts()
    assert (line["output_length"], line["cause"]) == (3, None)
    assert report.to_dict()["online"]["prompts"]["tokens_added"] == 5


@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        ({"content": "a"}, 1),
        ({"reasoning_content": "a"}, 1),
        ({"reasoning": "a"}, 1),
        ({"role": "assistant", "content": ""}, 0),
        ({"content": None, "tool_calls": []}, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_which_events_of_a_chat_bring_a_token(delta: dict[str, Any] | None, tokens: int) -> None:
    reading = Reading(Answer(sent=1), 3, 3)
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    reading.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", 5)
    assert (reading.answer.tokens, reading.answer.first) == (tokens, 5 * tokens)


# How servers count ---------------------------------------------------------------------------------------------------


def test_prompts_are_as_long_as_the_server_counts(tmp_path: Path) -> None:
    """Two tokens a word and seven for the template: 32 tokens are 16 words, and each prompt is seven off."""
    kept: list[tuple[str, str]] = []
    with fake_server(serving(lambda words: 7 + 2 * words, kept)) as url:
        report = replay(trace_of(tmp_path), url, prompt_format=PromptFormat.text)
    prompts = report.to_dict()["online"]["prompts"]
    assert (prompts["tokens_per_word"], prompts["tokens_added"]) == (2.0, 7)
    assert (prompts["least_off"], prompts["median_off"], prompts["most_off"]) == (7, 7, 7)
    assert (prompts["counted_tokens"], prompts["trace_tokens"]) == (192 + 28, 192)
    words = sorted(json.loads(body)["prompt"].count(" ") for _, body in kept if '"stream"' in body)
    assert words == [16, 16, 32, 32]


def test_a_server_that_counts_words_unevenly_is_met_on_the_average(tmp_path: Path) -> None:
    """Four tokens for three words, rounded down: prompts are off by no more than half a word and what is rounded."""
    with fake_server(serving(lambda words: 4 * words // 3)) as url:
        report = replay(trace_of(tmp_path, plays=1, requests=4), url, prompt_format=PromptFormat.chat)
    online = report.to_dict()["online"]
    assert online["prompts"]["tokens_per_word"] == pytest.approx(4 / 3, abs=0.01)
    assert -2 <= online["prompts"]["least_off"] <= online["prompts"]["most_off"] <= 1
    assert report.to_dict()["completed_requests"] == 4


def test_how_far_prompts_are_off() -> None:
    offsets = Offsets()
    assert offsets.figures()["share_off"] is offsets.figures()["median_off"] is None
    for trace, server in ((100, 103), (200, 190), (100, 100), (600, 604)):
        offsets.add(trace, server)
    assert offsets.figures() == {
        "counted": 4,
        "counted_tokens": 997,
        "trace_tokens": 1000,
        "share_off": 0.017,
        "least_off": -10,
        "median_off": 0,
        "most_off": 4,
    }
    assert offsets.differ == 3


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda words: 3, "which no tokenizer does"),
        (lambda words: 100 * words, "which no tokenizer does"),
        (lambda words: 500 - words, "which no tokenizer does"),
        (lambda words: -words, "which no tokenizer does"),
    ],
)
def test_servers_that_do_not_count(count: Any, message: str, tmp_path: Path) -> None:
    with fake_server(serving(count)) as url, pytest.raises(UnusableEndpoint, match=message):
        replay(trace_of(tmp_path), url, prompt_format=PromptFormat.text)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("200 OK", b'{"choices":[]}', "does not say how many tokens a prompt has"),
        ("200 OK", b'{"usage":{"prompt_tokens":"\x1b[31mmany"}}', "cannot be read"),
        ("200 OK", b"[" * 100_000, "cannot be read"),
        ("200 OK", b"", "cannot be read"),
        (
            "400 Bad Request",
            b'{"error":{"message":"not\\u001b[31m"}}',
            r"answered 400: not\\x1b\[31m",
        ),
        ("404 Not Found", b"{}", "answered 404"),
        ("401 Unauthorized", b"{}", "PLAYPROOF_API_KEY holds the key"),
    ],
)
def test_servers_that_do_not_answer_how_they_count(status: str, body: bytes, message: str, tmp_path: Path) -> None:
    with (
        fake_server(lambda connection: connection.status(status, body)) as url,
        pytest.raises(UnusableEndpoint, match=message) as refused,
    ):
        replay(trace_of(tmp_path), url, prompt_format=PromptFormat.chat)
    assert str(refused.value).isprintable()


def test_servers_that_count_differently_are_not_one_deployment(tmp_path: Path) -> None:
    with (
        fake_server(serving(lambda words: words)) as one,
        fake_server(serving(lambda words: words + 1)) as other,
        pytest.raises(UnusableEndpoint, match=r"count .* words differently"),
    ):
        replay(trace_of(tmp_path), one, other, prompt_format=PromptFormat.text)


def test_words_of_too_many_tokens_leave_blocks_that_are_alike(tmp_path: Path) -> None:
    """Sixteen tokens a word: a block is one word, and there are more blocks than words."""
    with (
        fake_server(serving(lambda words: 16 * words)) as url,
        pytest.raises(UnusableEndpoint, match=r"which are 1 words, cannot be told apart with 1\d\d words"),
    ):
        replay(trace_of(tmp_path, plays=12, requests=6), url, prompt_format=PromptFormat.text)


def test_a_server_that_takes_no_ids_is_told_of_the_other_formats(tmp_path: Path) -> None:
    with fake_server(lambda connection: connection.status("500 Oops", b'{"error":"no ids"}')) as url:
        report = replay(trace_of(tmp_path), url)
    (warning,) = report.to_dict()["online"]["warnings"]
    assert "--prompt-format text or chat" in warning


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--tokenizer", "t.json"], 1, "a tokenizer has no effect on prompts that are token ids"),
        (["--vocabulary", "100", "--prompt-format", "chat"], 1, "a vocabulary bounds token ids, and none are sent"),
        (["--prompt-format", "words"], 2, "'ids', 'text', 'chat'"),
    ],
)
def test_options_that_exclude_one_another(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", V2, "--online", *arguments]) == code
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in told
    assert "Traceback" not in told


@pytest.mark.parametrize("flag", ["--prompt-format=chat", "--tokenizer=t.json"])
def test_offline_has_no_prompts(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", V2, flag]) == 2
    assert "belongs to --online" in capsys.readouterr().err


def test_a_format_that_is_none() -> None:
    with pytest.raises(ValueError, match="prompt_format is ids or text or chat, not words"):
        pp.OnlineOptions(prompt_format="words")  # type: ignore[arg-type]


def test_blocks_too_short_to_tell_apart_are_refused() -> None:
    graph = sketch(
        [{"request_id": "a", "input_length": 200, "hash_ids": list(range(200))}],
        block_size=1,
    )
    with pytest.raises(Indistinct, match="200 blocks of 1 tokens, which are 1 words, cannot be told apart"):
        Texts(graph, Wording(), chat=False)
    Encoding(graph, 200)


def test_too_short_blocks_are_a_finding(tmp_path: Path) -> None:
    lines = (tmp_path / "trace.jsonl", trace_of(tmp_path, plays=12, requests=6))[0].read_text().splitlines()
    head = json.loads(lines[0]) | {"block_size": 1}
    rows = [json.loads(line) for line in lines[1:]]
    for row in rows:
        row["input_length"] = len(row["hash_ids"])
    (tmp_path / "ones.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [head, *rows]))
    with pytest.raises(pp.InvalidDeployment) as refused:
        replay(pp.load(tmp_path / "ones.jsonl"), "http://127.0.0.1:1", prompt_format=PromptFormat.text)
    (problem,) = [item for item in refused.value.findings.items if item.code == "config-combination"]
    assert (problem.found, problem.where.field) == ("text with blocks of 1 tokens", "--prompt-format")


# Tokenizers ----------------------------------------------------------------------------------------------------------


class Encoded:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class SmallTokenizer:
    """As `tokenizers.Tokenizer`, with words and what some of them become together."""

    def __init__(self, vocabulary: Sequence[str], merged: str = "(?!)") -> None:
        self._vocabulary = vocabulary
        self._merged = merged

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        assert not with_added_tokens
        return {token: i for i, token in enumerate(self._vocabulary)}

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Encoded]:
        assert not add_special_tokens
        # A mark at the beginning, as some tokenizers have it even so, and what is merged is one token less.
        known = {token.lstrip("Ġ▁") for token in self._vocabulary}
        lengths = [
            1 + sum(1 if word in known else len(word) for word in text.split()) - len(re.findall(self._merged, text))
            for text in texts
        ]
        return [Encoded([0] * length) for length in lengths]


def test_words_of_a_vocabulary() -> None:
    """Small letters alone, each once, in the order of their ids; not the mark, and not what it merges with itself."""
    vocabulary = ["<s>", "Ġzulu", "▁alpha", "zulu", "Ġbo", "Ġc", "er", "Ġ", "Ġyet", "Ġdo", "Ġé", "ĠCaps", "▁zulu"]
    assert tokenizer._words(SmallTokenizer(vocabulary, "do do")) == ("zulu", "alpha", "bo")
    # WordPiece has no marks at the beginnings of words, and others in them.
    assert tokenizer._words(SmallTokenizer(["[CLS]", "zulu", "##ing", "bo"])) == ("zulu", "bo")


def test_words_that_become_others_beside_each_other_are_not_used() -> None:
    assert tokenizer._words(SmallTokenizer(["Ġone", "Ġtwo", "Ġthree"])) == ("one", "two", "three")
    assert tokenizer._words(SmallTokenizer(["Ġone", "Ġtwo", "Ġthree"], "two three")) == ()
    assert tokenizer._words(SmallTokenizer(["Ġone", "Ġtwo", "Ġthree"], "three two")) == ()
    assert tokenizer._words(SmallTokenizer(["1", "2"])) == ()


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tokenizer, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'playproof\[tokenizer\]'"):
        wording_of("t.json")
    assert main(["replay", V2, "--online", "--prompt-format", "text", "--tokenizer", "t.json"]) == 2
    assert "pip install 'playproof[tokenizer]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message", "found"),
    [
        (None, "the tokenizer cannot be read", "No such file or directory"),
        (b"\xff", "the tokenizer is no text", "bytes that are no UTF-8"),
        (b"1234567890123456789012345678901", "the file of the tokenizer is too large", "over 30 bytes"),
        (b"{}", "the tokenizer cannot be read", "rules"),
        (b"[1, 2]", "the tokenizer has no two words that are one token each", "1 such words"),
    ],
)
def test_tokenizers_that_cannot_be_used(
    content: bytes | None, message: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the package is: where it breaks, and where nothing comes of it."""

    def loaded(text: str, file: Path) -> Any:
        if text == "{}":
            raise tokenizer._unusable(file, "the tokenizer cannot be read", "rules", "")
        return SmallTokenizer(["Ġone", "2"])

    monkeypatch.setattr(tokenizer, "find_spec", lambda name: object())
    monkeypatch.setattr(tokenizer, "_loaded", loaded)
    monkeypatch.setattr(tokenizer, "MAX_BYTES", 30)
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UnusableTokenizer) as refused:
        wording_of(str(tmp_path))
    problem = refused.value.finding
    assert (problem.message, problem.found) == (message, found)
    assert problem.where.file == str(tmp_path / "tokenizer.json")
    with pytest.raises(pp.InvalidDeployment):
        replay(trace_of(tmp_path), "http://127.0.0.1:1", prompt_format=PromptFormat.chat, tokenizer=str(tmp_path))


def test_with_a_tokenizer_the_server_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playproof.online.replay.wording_of", lambda path: Wording(("alpha", "beta", "gamma")))
    kept: list[tuple[str, str]] = []
    with fake_server(serving(lambda words: words + 40, kept)) as url:
        report = replay(trace_of(tmp_path), url, prompt_format=PromptFormat.chat, tokenizer="t.json")
    assert len(kept) == 4
    figures = report.to_dict()
    prompts = figures["online"]["prompts"]
    assert (prompts["tokenizer"], prompts["tokens_per_word"], prompts["tokens_added"]) == ("t.json", 1.0, None)
    assert (prompts["least_off"], prompts["most_off"]) == (40, 40)
    # A template of 40 tokens is more than marks are: what a chat's server found in cache is believed all the same.
    assert figures["online"]["requests_without_cached_tokens"] == 0


def test_a_real_tokenizer(tmp_path: Path) -> None:
    """Byte-level BPE, trained here on the words and some that are longer: prompts are exactly as long for it."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra playproof[tokenizer] is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([" ".join((*WORDS, "however", "through"))] * 3, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    wording = wording_of(str(tmp_path))
    assert len(wording.words) > 50
    assert MARK not in wording.words
    graph = trace_of(tmp_path, plays=3, requests=3).graph
    texts = Texts(graph, wording, chat=False)
    for node in range(graph.node_count):
        assert len(made.encode(texts.text(node)).ids) == graph.input_length[node]
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(UnusableTokenizer, match="the tokenizer cannot be read"):
        wording_of(str(tmp_path))


def test_a_calibration_needs_no_more_than_two_requests() -> None:
    """All words in turn, so that each counts as often as any other."""
    few, many = 1 + len(WORDS), 1 + (1 + calibration.ROUNDS) * len(WORDS)
    assert (many - few) % len(WORDS) == 0
    assert len(member_of(counted_text(WORDS, many), chat=True)) < LONGEST * 4
