"""An online replay as a whole: refuse what cannot be, start mock workers if none are given, drive, report."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import msgspec
import numpy as np
import numpy.typing as npt
from playproof_kernel.runs.controlled_ledger import ControlledLedger
from playproof_kernel.runs.cuts import InvalidSnapshot
from playproof_kernel.runs.live_driver import LiveDriver
from playproof_kernel.runs.live_engine import Counters
from playproof_spec.certificate import ProvenGraph
from playproof_spec.clock import clock_finding
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.ledger import Ledger

from playproof.deployment import AnyDeployment, Deployment, InvalidDeployment, Load
from playproof.fit import fit, misoffered
from playproof.online import calibration, processes
from playproof.online.client import Client, cause_of, session
from playproof.online.clock import Clock
from playproof.online.descriptors import with_descriptors
from playproof.online.driver import Observed, OnlineDriver, Progress
from playproof.online.options import API_KEY, OnlineOptions, PromptFormat, contradictions, unsupported
from playproof.online.prompts import CHATS, MOCK_VOCABULARY, REAL_VOCABULARY, Encoding, Prompts
from playproof.online.report import OnlineControlledReport, OnlineReport, Setting
from playproof.online.server import DEFAULT_MODEL
from playproof.online.signals import Holding, holding
from playproof.online.stream import Answer, shown
from playproof.online.texts import Indistinct, Texts, Wording
from playproof.online.tokenizer import UnusableTokenizer, wording_of

Int64 = npt.NDArray[np.int64]
Keep = Callable[[OnlineReport | OnlineControlledReport], object]

# Wall time for an endpoint to name its models, and bytes that it may take for that.
MODELS_S, MAX_MODELS_BYTES = 60.0, 1 << 24
# How often mock workers are looked after.
WATCH_S = 0.2


class UnusableEndpoint(Exception):
    """An endpoint that cannot be asked what it serves; the message names it and says why."""


def replay_online(
    trace: ProvenGraph,
    deployment: AnyDeployment,
    load: Load,
    options: OnlineOptions,
    places: Mapping[str, Where],
    *,
    per_request: bool = True,
    progress: Progress | None = None,
    keep: Keep | None = None,
) -> OnlineReport | OnlineControlledReport:
    """Replay a proven trace on the wall clock.

    Parameters
    ----------
    trace : ProvenGraph
    deployment : Deployment or Disaggregated
        What mock workers are; looked over when endpoints are given.
    load : Load
    options : OnlineOptions
    places : mapping of str to Where
        Where the settings stand, for findings.
    per_request : bool
        Keep every request.
    progress : callable, optional
        Called now and then with (requests over, requests in all).
    keep : callable, optional
        Called with the report as soon as it is made, before mock workers are stopped: from the beginning of the run
        until it returns, SIGINT and SIGTERM do not interrupt (the first ends admission, the second what is under way).

    Raises
    ------
    InvalidDeployment
        When the load does not belong to the kind of trace, or online replay does not have a setting.
    MissingExtra
        When a tokenizer is given and ``playproof[tokenizer]`` is not installed.
    UnusableEndpoint
        When no model is given and an endpoint does not say which it serves, or how many tokens words are.
    WorkerFault
        When a mock worker does not start.
    """
    mock = not options.endpoints
    findings = _looked_over(trace, deployment, load, options, places)
    served = deployment if mock and isinstance(deployment, Deployment) else Deployment(workers=len(options.endpoints))
    wording, prompts = _written(trace, options, findings)
    try:
        driver = LiveDriver(trace, load.to_spec(), workers=served.workers, capture=per_request)
    except InvalidSnapshot as refused:
        findings.extend(refused.findings)
        raise InvalidDeployment(findings) from None
    driver.warm_up()
    options = with_descriptors(options)
    with holding() as held, _endpoints(served, options) as (endpoints, workers):
        run = _Run(trace, driver, wording, prompts, load, options, endpoints, workers, per_request, progress, held)
        observed, ledger = asyncio.run(run.run(served.model or DEFAULT_MODEL if mock else options.model))
        served = msgspec.structs.replace(served, model=served.model if mock else run.model)
        setting = Setting(tuple(endpoints), run.model, mock, options, run.wording)
        report = _report(trace, ledger, served, load, setting, observed, findings, per_request)
        if keep is not None:
            keep(report)
    return report


def _looked_over(
    trace: ProvenGraph, deployment: AnyDeployment, load: Load, options: OnlineOptions, places: Mapping[str, Where]
) -> Findings:
    """Return what is to be said of a replay before it begins; refuse what cannot be."""
    mock = not options.endpoints
    findings = contradictions(options)
    findings.extend(misoffered(trace.graph, deployment, load, places))
    findings.extend(unsupported(deployment, load, places, mock=mock))
    if mock and not findings.errors:
        findings.extend(fit(trace.graph, deployment, load))
    elif not findings.errors:
        # How long servers take nobody knows; the trace's own times must be on the clock.
        problem = clock_finding(trace.graph, [], speedup=load.speedup, lanes=load.lanes)
        if problem is not None:
            findings.add(problem)
    if findings.errors:
        raise InvalidDeployment(findings)
    return findings


def _written(trace: ProvenGraph, options: OnlineOptions, findings: Findings) -> tuple[Wording | None, Prompts]:
    """Return how prompts are written: the words of text, None for ids.

    Raises
    ------
    InvalidDeployment
    MissingExtra
    """
    mock, form = not options.endpoints, options.prompt_format
    if form == PromptFormat.ids:
        return None, Encoding(trace.graph, options.vocabulary or (MOCK_VOCABULARY if mock else REAL_VOCABULARY))
    try:
        wording = Wording() if options.tokenizer is None else wording_of(options.tokenizer)
        return wording, Texts(trace.graph, wording, chat=form == PromptFormat.chat)
    except UnusableTokenizer as error:
        findings.add(error.finding)
    except Indistinct as error:
        findings.add(
            finding(
                "config-combination",
                str(error),
                where=Where(field="--prompt-format"),
                found=f"{form} with blocks of {trace.graph.block_size} tokens",
                wanted="blocks that have as many words as it takes to tell them apart",
                because="Prompts of text would share blocks that the trace tells apart.",
                hint="Choose --prompt-format ids, or give a tokenizer with more words, --tokenizer.",
            )
        )
    raise InvalidDeployment(findings)


def _report(
    trace: ProvenGraph,
    ledger: Ledger | ControlledLedger,
    deployment: Deployment,
    load: Load,
    setting: Setting,
    observed: Observed,
    findings: Findings,
    per_request: bool,
) -> OnlineReport | OnlineControlledReport:
    if isinstance(ledger, ControlledLedger):
        return OnlineControlledReport(trace, ledger, deployment, load, findings=findings, per_request=per_request).of(
            setting, observed
        )
    return OnlineReport(trace, ledger, deployment, load, findings=findings, per_request=per_request).of(
        setting, observed
    )


@contextlib.contextmanager
def _endpoints(
    deployment: Deployment, options: OnlineOptions
) -> Iterator[tuple[list[str], list[processes.WorkerProcess]]]:
    """Give the roots of the servers, and the mock workers, which are started where no servers are given."""
    if options.endpoints:
        yield [endpoint.rstrip("/").removesuffix("/v1") for endpoint in options.endpoints], []
        return
    manner = processes.Manner(scale=options.time_scale)
    with processes.workers(deployment, deployment.workers, manner=manner) as started:
        yield [worker.url for worker in started], started


@dataclasses.dataclass(slots=True)
class _Run:
    """One run in its event loop."""

    trace: ProvenGraph
    driver: LiveDriver
    wording: Wording | None
    prompts: Prompts
    load: Load
    options: OnlineOptions
    endpoints: list[str]
    workers: list[processes.WorkerProcess]
    per_request: bool
    progress: Progress | None
    held: Holding
    model: str = ""
    before: list[Counters] | None = None

    @property
    def mock(self) -> bool:
        """Whether the servers are mock workers of the deployment."""
        return bool(self.workers)

    async def run(self, model: str | None) -> tuple[Observed, Ledger | ControlledLedger]:
        """Drive the run with `model`, or whichever the endpoints serve; return what was seen, and the ledger."""
        key = None if self.mock else os.environ.get(API_KEY)
        self.model = model or await self._served_model(key)
        finite = self.load.snapshot_seed is None
        await self._calibrate(key)
        prompts = self.prompts
        client = Client(self.endpoints, self.model, self.options, key, path=prompts.path, besides=prompts.besides)
        try:
            driver = OnlineDriver(
                self.driver,
                prompts,
                client,
                Clock(self.options.time_scale),
                self.options,
                self.trace.graph.input_length,
                finite=finite,
                per_request=self.per_request,
                at_barrier=self._count_before if self.mock and not finite else None,
                progress=self.progress,
            )
            # From here on a signal ends the run, and not the program: see `keep`.
            self.held.begin()
            deaths: list[str] = []
            watch = asyncio.create_task(self._watch(driver, deaths))
            try:
                observed = await driver.run()
            finally:
                watch.cancel()
        finally:
            await client.close()
        observed = dataclasses.replace(observed, deaths=tuple(deaths))
        ledger = observed.ledger
        if self.mock:
            ledger = with_work(ledger, self.before, await self._counters())
        return observed, ledger

    async def _calibrate(self, key: str | None) -> None:
        """Learn how servers count words, where neither a tokenizer says so nor they are mock workers.

        Raises
        ------
        UnusableEndpoint
        """
        if self.wording is None or self.mock or self.options.tokenizer is not None:
            return
        chat = self.prompts.path == CHATS
        try:
            async with session(self.options, key) as asking:
                self.wording = await calibration.calibrated(
                    asking, self.endpoints, self.prompts.path, self.model, self.wording
                )
            self.prompts = Texts(self.trace.graph, self.wording, chat=chat)
        except (calibration.Uncountable, Indistinct) as error:
            raise UnusableEndpoint(str(error)) from None

    async def _watch(self, driver: OnlineDriver, deaths: list[str]) -> None:
        """End the run when a mock worker ends."""
        while not deaths and self.workers:
            deaths += [f"{worker.url}: {worker.death}" for worker in self.workers if worker.death is not None]
            if deaths:
                driver.lose_worker()
            await asyncio.sleep(WATCH_S)

    async def _served_model(self, key: str | None) -> str:
        """Return the first model that the endpoints serve, which must be the same everywhere.

        Raises
        ------
        UnusableEndpoint
        """
        models: dict[str, str] = {}
        async with session(self.options, key) as asking:
            for endpoint in self.endpoints:
                url = f"{endpoint}/v1/models"
                try:
                    async with asyncio.timeout(MODELS_S), asking.get(url, allow_redirects=False) as response:
                        body = await response.content.read(MAX_MODELS_BYTES)
                        while more := await response.content.read(MAX_MODELS_BYTES - len(body)):
                            body += more
                        if response.status != 200:
                            raise UnusableEndpoint(f"{url} answered {response.status}: name a model with --model")
                    models[endpoint] = msgspec.json.decode(body, type=_Models).data[0].id
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
                    raise UnusableEndpoint(f"{url} names no model: name one with --model") from None
                except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
                    raise UnusableEndpoint(f"{url}: {cause_of(error, Answer())}") from None
        if len(set(models.values())) > 1:
            served = ", ".join(f"{endpoint}: {shown(model)}" for endpoint, model in models.items())
            raise UnusableEndpoint(f"the endpoints serve different models ({served}): name one with --model")
        return next(iter(models.values()))

    async def _count_before(self) -> None:
        self.before = await self._counters()

    async def _counters(self) -> list[Counters] | None:
        """Return what the mock workers have counted, or None if one of them is gone."""
        counters = []
        async with session(self.options, None) as asking:
            for endpoint in self.endpoints:
                try:
                    async with asking.get(f"{endpoint}/playproof/counters") as response:
                        counters.append(msgspec.json.decode(await response.read(), type=Counters))
                except (OSError, TimeoutError, msgspec.DecodeError, aiohttp.ClientError):
                    return None
        return counters


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


# What mock workers count of a ledger's columns by worker.
_COLUMNS = ("passes", "busy_ns", "prefill_tokens", "decode_tokens", "preemptions", "evictions")


def with_work(
    ledger: Ledger | ControlledLedger, before: list[Counters] | None, after: list[Counters] | None
) -> Ledger | ControlledLedger:
    """Return the ledger with what mock workers did since `before`; as it is if that is not known."""
    if after is None:
        return ledger

    def column(name: str) -> Int64:
        values = np.array([getattr(counters, name) for counters in after], np.int64)
        return values - (0 if before is None else np.array([getattr(counters, name) for counters in before], np.int64))

    columns: dict[str, Any] = {name: column(name) for name in _COLUMNS}
    return dataclasses.replace(ledger, **columns)
