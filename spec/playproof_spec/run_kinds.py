"""What a check of a run may find: one code a rule of `playproof.checking`, in the order of its rules."""

from __future__ import annotations

from playproof_spec.kinds import Kind, Severity

# Where one of these holds, either the file was changed, or the run was not what it says it was.
_CHANGED = "Replay the trace again and compare; if the files are as playproof wrote them, report it as a fault of ours."


def _kind(code: str, title: str, because: str, example: str, hint: str = _CHANGED) -> Kind:
    return Kind(code, Severity.ERROR, title, because, hint, example)


CHECKING: tuple[Kind, ...] = (
    _kind(
        "run-file",
        "a file that is no report, or has no lines",
        "Nothing can be checked of it.",
        "`playproof check trace.jsonl --trace trace.jsonl`",
        "Name the report.json or the requests.jsonl that `playproof replay --out DIR --per-request` wrote.",
    ),
    _kind(
        "run-digest",
        "a digest of the report that is not that of what it names",
        "Report, lines, trace and configuration are not of one run, or one of them was changed since.",
        "a requests.jsonl of which a line was edited",
        "Check files that one run wrote, with the trace and the configuration of that run.",
    ),
    _kind(
        "run-settings",
        "a report of another deployment, load or trace",
        "What holds of a run depends on all three.",
        "the report of a run on 8 lanes, checked with a configuration of 4",
        "Check it with the configuration and the trace of that run, or leave --config out: the report has its own.",
    ),
    _kind(
        "run-line",
        "a line that is no record of a request",
        "What it says of its request cannot be known.",
        'a line without terminal_status, or with "input_length": -1',
    ),
    _kind(
        "run-extra",
        "a line of no request, or of one that has another line",
        "Each request of the trace runs once; under the run controls, once in each play instance that has it.",
        "the same line twice",
    ),
    _kind(
        "run-missing",
        "a request without a line",
        "Its conditions were met, and its play had not failed: it must have been sent.",
        "a requests.jsonl that lost its last line",
    ),
    _kind(
        "run-order",
        "lines out of order",
        "Lines stand play after play, in execution order, and within a play in the order of its file.",
        "two lines exchanged",
    ),
    _kind(
        "run-identity",
        "a line that contradicts the trace",
        "Play, session, model, lengths and ids are the trace's.",
        "input_length: 512 of a request whose prompt has 500 tokens",
    ),
    _kind(
        "run-clock",
        "an instant that the clock does not have",
        "The clock counts whole nanoseconds.",
        "dispatched_at_ms: 0.0000001",
    ),
    _kind(
        "run-edge",
        "a request that starts before one of its edges lets it",
        "An edge fires at its source's dispatch or successful end, and then its delay has to pass.",
        "a join that starts 1 ms before its last child has ended",
    ),
    _kind(
        "run-floor",
        "a request that starts before its floor, or before its play",
        "A floor is the earliest start that the trace gives; with lanes, plays start one after another.",
        "a root with not_before_ms: 100 that starts at 90 ms",
    ),
    _kind(
        "run-late",
        "a request that starts later than it could",
        "A request is sent at the very instant at which its last condition is met; nothing else holds it back.",
        "a root with floor 0, dispatched at 1 ms",
    ),
    _kind(
        "run-failure",
        "a request that starts after its play has failed",
        "The first failure of a play skips all that has not been sent by then.",
        "a second turn although the first one was rejected",
    ),
    _kind(
        "run-lane",
        "lanes that are not as the load says",
        "A lane holds one play at a time, and takes the next of one queue at the instant at which that one settles.",
        "two plays of one lane side by side",
    ),
    _kind(
        "run-stamp",
        "instants that are missing, too many, or out of order",
        "Dispatch, admission, first and last token and end come in this order, and each where it must.",
        "a first token before its request was admitted",
    ),
    _kind(
        "run-latency",
        "a latency that is not the difference of its instants",
        "TTFT, TTST, TPOT and E2E are made of the line's own instants.",
        "ttft_ms: 40 with a first token 41 ms after the dispatch",
    ),
    _kind(
        "run-tokens",
        "an answer of the wrong length",
        "A completed request has as many tokens as it asked for, or as the context has room for; no other has more.",
        "output_length: 11 of a request for 10 tokens",
    ),
    _kind(
        "run-ending",
        "a request that does not end as it must",
        "What fits completes; what never fits is refused, or fails when it outgrows the pool.",
        "a prompt longer than the context that completed",
    ),
    _kind(
        "run-admission",
        "an admission history that does not count",
        "Admissions are numbered, of the deployment's pools, and between dispatch and end.",
        "readmission_count: 1 with one admission",
    ),
    _kind(
        "run-reuse",
        "an amount of reuse that cannot be",
        "Whole blocks are found, never more than the prompt and never its last token, and tiers add up.",
        "70 tokens found on blocks of 64",
    ),
    _kind(
        "run-reuse-source",
        "reuse of what nothing had computed",
        "Blocks in a cache were computed there before, by a request that begins alike, in the same namespace.",
        "the first request of all finds 64 tokens in cache",
    ),
    _kind(
        "run-worker",
        "a worker that is not there",
        "Workers of a role are numbered from 0; who is refused at once reaches none.",
        "decode_worker_idx: 2 of two workers",
    ),
    _kind(
        "run-placement",
        "a request out of turn",
        "Round robin gives the n-th request of a role to worker n modulo their number.",
        "two requests in a row on the first of two workers",
    ),
    _kind(
        "run-seats",
        "more sequences at once than a worker runs",
        "max_sequences bounds the running requests of a worker.",
        "two requests at once on a worker with max_sequences: 1",
    ),
    _kind(
        "run-pool",
        "more blocks than a worker has",
        "What the requests at work there hold for sure does not fit into its pool.",
        "two prompts of 60 blocks each, both decoding, in a pool of 100",
    ),
    _kind(
        "run-service",
        "a token that comes too soon",
        "A prompt takes a pass for each of its chunks, a token takes a pass, and passes take their time.",
        "a first token 10 ms after the admission, where a prefill takes 40",
    ),
    _kind(
        "run-handoff",
        "a handoff whose steps are out of order",
        "A source is held before its KV moves, room is reserved before that, and the source is let go after it.",
        "destination_activated_ms before source_held_ms",
    ),
    _kind(
        "run-decode",
        "a request that completes without decoding",
        "In prefill/decode nothing completes at prefill: it is admitted to decode first.",
        "a completed request without an admission to decode",
    ),
    _kind(
        "run-snapshot",
        "a snapshot that seed and trace do not give",
        "Cuts are drawn from seed, graph digest, play and lane; history, delays and primers follow.",
        "t_star_ms that is not the one drawn",
    ),
    _kind(
        "run-phase",
        "preparation that is not what the cuts ask for",
        "Primers and warmups of each lane run one after another, and the barrier waits for all of them.",
        "a barrier before the last warmup has ended",
    ),
    _kind(
        "run-profile",
        "a profile that does not keep its deadlines or counts",
        "Nothing starts after the cutoff, nothing runs on after the grace, and timers move only when all is idle.",
        "a request dispatched after the cutoff",
    ),
    _kind(
        "run-outcome",
        "a play whose outcome is not that of its requests",
        "Status, lane, ends and failure of a play follow from its lines.",
        "status: completed of a play with a failed request",
    ),
    _kind(
        "run-figure",
        "a figure of the report that is not that of the lines",
        "Counts, sums, latencies, throughputs, reuse and work follow from the lines, or are bounded by them.",
        "completed_requests: 57 with 56 completed lines",
    ),
)
