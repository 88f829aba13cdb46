"""How an online replay is run, and what it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from playproof_spec.findings import Findings, Where, finding, shown

from playproof.deployment import AnyDeployment, Deployment, Disaggregated, KvRouter, Load

# Wall time. No answer is waited for longer than the silence, none takes longer than the whole.
CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 600.0
REQUEST_TIMEOUT_S = 3600.0
# Connections open at once; a request that finds none free waits for one, and is that much late.
MAX_CONNECTIONS = 1024
# By how much the client may be late at the 99th percentile, before its figures are not the server's. In the replay's
# time, as the latencies that it spoils: at a time scale of 10 that is a tenth of it on the wall.
LATENESS_BOUND_MS = 20.0
# What is under way when admission ends gets this long, in the driver's time.
DRAIN_SECONDS = 30.0
# The variable that holds the key of the endpoints. A key on a command line would be seen by everybody on the machine.
API_KEY = "PLAYPROOF_API_KEY"


class OnlineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an online replay is run.

    Attributes
    ----------
    endpoints : tuple of str
        Servers, between which requests go round: ``http://host:port``, with or without ``/v1``. Without any, mock
        workers of the deployment are started on loopback.
    model : str or None
        The model's name at the endpoints; None takes the first that they serve.
    vocabulary : int or None
        Token ids stay below it; None takes `prompts.REAL_VOCABULARY` with endpoints, and more with mock workers.
    time_scale : float
        How many seconds of the driver's clock, and of the mock workers', pass in one of wall time.
    duration_seconds : float or None
        When admission ends, in the driver's time, from its start or from the barrier.
    drain_seconds : float
        What is under way then gets this long, in the driver's time.
    connect_timeout_seconds, silence_timeout_seconds, request_timeout_seconds : float
        Wall time for a connection to be made; without a byte; for a request as a whole.
    max_connections : int
    connections_wanted : int or None
        What `max_connections` was before the system's limit of open files cut it down; None where it did not.
    lateness_bound_ms : float
        See `LATENESS_BOUND_MS`.
    """

    endpoints: tuple[str, ...] = ()
    model: str | None = None
    vocabulary: int | None = None
    time_scale: float = 1.0
    duration_seconds: float | None = None
    drain_seconds: float = DRAIN_SECONDS
    connect_timeout_seconds: float = CONNECT_TIMEOUT_S
    silence_timeout_seconds: float = SILENCE_TIMEOUT_S
    request_timeout_seconds: float = REQUEST_TIMEOUT_S
    max_connections: int = MAX_CONNECTIONS
    connections_wanted: int | None = None
    lateness_bound_ms: float = LATENESS_BOUND_MS

    def __post_init__(self) -> None:
        positive = {
            "time_scale": self.time_scale,
            "connect_timeout_seconds": self.connect_timeout_seconds,
            "silence_timeout_seconds": self.silence_timeout_seconds,
            "request_timeout_seconds": self.request_timeout_seconds,
            "max_connections": self.max_connections,
            "lateness_bound_ms": self.lateness_bound_ms,
        }
        if self.duration_seconds is not None:
            positive["duration_seconds"] = self.duration_seconds
        for name, value in positive.items():
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} is above 0, not {value}")
        if not 0 <= self.drain_seconds < float("inf"):
            raise ValueError(f"drain_seconds is 0 or more, not {self.drain_seconds}")
        for endpoint in self.endpoints:
            _check_url(endpoint)
        if self.vocabulary is not None and not 2 <= self.vocabulary <= 1 << 32:
            raise ValueError(f"a vocabulary has between 2 and 2^32 ids, not {self.vocabulary}")


def _check_url(url: str) -> None:
    """Refuse what is no URL of a server, before anything is started. What is said has no credentials in it.

    Raises
    ------
    ValueError
    """
    wanted = "http://host:port or https://host:port, with or without a path"
    if "@" in url:
        raise ValueError(
            f"an endpoint holds no credentials, unlike the one of {shown(url.rpartition('@')[2])}: everybody on this "
            f"machine sees a command line. {API_KEY} is read from the environment"
        )
    try:
        parts = urlsplit(url if url.isprintable() and " " not in url else "")
    except ValueError as error:
        raise ValueError(f"an endpoint is {wanted}, not {shown(url)} ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"an endpoint is {wanted}, not {shown(url) or 'nothing'}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"an endpoint's port is between 1 and 65535, unlike that of {shown(url)}")
    if parts.query or parts.fragment:
        raise ValueError(f"an endpoint is {wanted}, and has neither ? nor # in it, unlike {shown(url)}")


# Settings of a worker that a mock worker cannot have, with what to say of them. A line a setting.
_UNSUPPORTED_OF_WORKERS: Mapping[str, str] = {
    "host_offload": "host offload (G2) is not supported online",
}


def unsupported(deployment: AnyDeployment, load: Load, places: Mapping[str, Where], *, mock: bool) -> Findings:
    """Say what of a deployment and a load online replay does not have.

    Parameters
    ----------
    deployment : Deployment or Disaggregated
    load : Load
    places : mapping of str to Where
        Where the settings stand: `Configuration.places`.
    mock : bool
        Whether the deployment is to be served by mock workers; endpoints are what they are.
    """
    findings = Findings()

    def refuse(where: Where, message: str, found: str, wanted: str, hint: str) -> None:
        findings.add(finding("config-unsupported", message, where=where, found=found, wanted=wanted, hint=hint))

    if mock and isinstance(deployment, Disaggregated):
        message = "prefill/decode is not supported online: a mock worker is one aggregated engine"
        refuse(places["mode"], message, "disaggregated", "aggregated", "Choose mode: aggregated.")
    if mock and deployment.speculation is not None:
        message = "speculation is not supported online: its draws are numbered by requests that a server does not see"
        where = Where(file=places["mode"].file, field="engine.speculation")
        refuse(where, message, "a speculation", "none", "Remove the speculation.")
    if mock and isinstance(deployment.router, KvRouter):
        message = "kv_router is not supported online: KV events do not leave a mock worker"
        where = Where(file=places["mode"].file, field="engine.router.policy")
        refuse(where, message, "kv_router", "round_robin", "Choose policy: round_robin.")
    for name, message in _UNSUPPORTED_OF_WORKERS.items():
        if mock and isinstance(deployment, Deployment) and getattr(deployment, name, None):
            where = Where(file=places["mode"].file, field=f"engine.workers.aggregated.kv_cache.{name}")
            refuse(where, message, name, "none", f"Remove {name}.")
    if load.max_virtual_time_seconds is not None:
        message = "max_virtual_time_seconds is not supported online"
        found, hint = f"{load.max_virtual_time_seconds:g}", "End the replay with --duration."
        refuse(places["max_virtual_time_seconds"], message, found, "none", hint)
    return findings
