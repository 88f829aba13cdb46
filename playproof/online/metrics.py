"""The mock worker's `/metrics`: Prometheus text with vLLM's names, so that routers and dashboards find what they read.

Seconds are those of the worker's clock. What a simulated engine does not have (LoRA, GPU memory) is left
out, and so is what needs the instant of an admission (queue and prefill times).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from playproof_kernel.runs.live_engine import Counters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# vLLM's own bounds, seconds.
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        reached = 0
        for bound, count in zip((*map(float, self.bounds), "+Inf"), self.counts, strict=True):
            reached += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {reached}'
        yield f"{name}_sum{{{labels}}} {self.sum}"
        yield f"{name}_count{{{labels}}} {reached}"


class Metrics:
    """What one mock worker counts.

    Parameters
    ----------
    model : str
        The model's name, a label of every series.
    block_size : int
        Tokens of a block, for the series that describes the cache.
    reason : str
        Why answers end that have all their tokens.
    """

    def __init__(self, model: str, block_size: int = 0, reason: str = "length") -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self._prompt = self._generation = self._finished = self._aborted = 0
        self._block_size, self._reason = block_size, reason
        self._ttft, self._itl, self._e2e = _Histogram(_TTFT), _Histogram(_ITL), _Histogram(_E2E)
        self._tpot, self._decode = _Histogram(_ITL), _Histogram(_E2E)
        self._prompts, self._outputs, self._most = _Histogram(_TOKENS), _Histogram(_TOKENS), _Histogram(_TOKENS)
        self._n, self._max_tokens = _Histogram(_CHOICES), _Histogram(_TOKENS)

    def generated(self, tokens: int) -> None:
        """Count generated tokens."""
        self._generation += tokens

    def computed(self, prompt: int) -> None:
        """Count the tokens of a prompt that was computed."""
        self._prompt += prompt

    def first_token(self, seconds: float) -> None:
        """Count a first token that took so long since its request arrived."""
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """Count a later token that took so long since the one before."""
        self._itl.observe(seconds)

    def asked(self, n: int, output: int, choices: int) -> None:
        """Count a request of a client, which has so many answers to each of its prompts, of so many tokens."""
        for _ in range(choices):
            self._n.observe(n)
            self._max_tokens.observe(output)

    def finished(self, seconds: float, decode_seconds: float, prompt: int, output: int) -> None:
        """Count a request that has all its tokens, and took so long, of it from its first token to its last."""
        self._finished += 1
        self._e2e.observe(seconds)
        self._decode.observe(decode_seconds)
        self._prompts.observe(prompt)
        self._outputs.observe(output)
        self._most.observe(output)
        if output > 1:
            self._tpot.observe(decode_seconds / (output - 1))

    def aborted(self) -> None:
        """Count a request whose client hung up."""
        self._aborted += 1

    def text(self, counters: Counters) -> str:
        """Return all series, with those that the engine itself counts."""
        labels = self._labels
        usage = counters.used_blocks / counters.blocks
        simple = (
            ("num_requests_running", "gauge", "Requests in the running batch.", counters.running),
            ("num_requests_waiting", "gauge", "Requests that wait for a seat.", counters.waiting),
            ("kv_cache_usage_perc", "gauge", "Share of the KV blocks in use; 1 is all.", usage),
            ("prefix_cache_queries", "counter", "Prompt tokens looked up in the cache.", counters.queried_tokens),
            ("prefix_cache_hits", "counter", "Prompt tokens found in the cache.", counters.cached_tokens),
            ("num_preemptions", "counter", "Requests that lost their seat.", counters.preemptions),
            ("prompt_tokens", "counter", "Prompt tokens computed or found in the cache.", self._prompt),
            ("generation_tokens", "counter", "Generated tokens.", self._generation),
            ("external_prefix_cache_queries", "counter", "Tokens looked up in a cache of others: none is there.", 0),
            ("external_prefix_cache_hits", "counter", "Tokens found there.", 0),
            ("mm_cache_queries", "counter", "Items looked up in the cache of pictures: none is there.", 0),
            ("mm_cache_hits", "counter", "Items found there.", 0),
            ("corrupted_requests", "counter", "Requests whose numbers went wrong.", 0),
        )
        lines: list[str] = []
        for name, kind, text, value in simple:
            lines += _head(name, kind, text)
            lines.append(f"vllm:{name}{'_total' if kind == 'counter' else ''}{{{labels}}} {float(value)}")
        lines += _head("request_success", "counter", "Requests that ended, by reason.")
        for reason, count in ((self._reason, self._finished), ("abort", self._aborted)):
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}')
        histograms = (
            ("time_to_first_token_seconds", "From arrival to the first token.", self._ttft),
            ("inter_token_latency_seconds", "From one token to the next.", self._itl),
            ("e2e_request_latency_seconds", "From arrival to the last token.", self._e2e),
            ("request_decode_time_seconds", "From the first token to the last.", self._decode),
            ("request_time_per_output_token_seconds", "The same by token, without the first.", self._tpot),
            ("request_prompt_tokens", "Tokens of prompts.", self._prompts),
            ("request_generation_tokens", "Tokens of answers.", self._outputs),
            ("request_max_num_generation_tokens", "Tokens of the longest answer to a prompt.", self._most),
            ("request_params_n", "Answers asked for.", self._n),
            ("request_params_max_tokens", "Tokens asked for.", self._max_tokens),
        )
        lines += _head("engine_sleep_state", "gauge", "1 for the state that the engine is in.")
        for state, on in (("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)):
            lines.append(f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {on}')
        lines += _head("cache_config_info", "gauge", "The KV cache as it is set up.")
        config = f'block_size="{self._block_size}",num_gpu_blocks="{counters.blocks}"'
        lines.append(f"vllm:cache_config_info{{{labels},{config}}} 1.0")
        for name, text, histogram in histograms:
            lines += _head(name, "histogram", text)
            lines += histogram.lines(f"vllm:{name}", labels)
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    suffix = "_total" if kind == "counter" else ""
    return [f"# HELP vllm:{name}{suffix} {text}", f"# TYPE vllm:{name}{suffix} {kind}"]
