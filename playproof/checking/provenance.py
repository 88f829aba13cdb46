"""What the report says of where it came from: graph, settings, certificate, other kinds of runs, pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from playproof_spec.findings import finding

from playproof.checking.run import Run
from playproof.checking.settings import AsJson, Deployment, as_json

SCHEMA = "playproof.report.v1"
# What names a deployment and changes nothing of its run.
LABELS = ("model", "hardware")
Settings = Mapping[str, Any] | AsJson | None


def check_provenance(run: Run, deployment: Settings, load: Settings) -> None:
    """Compare what the report repeats of its trace and its settings; `deployment` and `load` are those given."""
    report = run.report
    if report is None:
        run.tally.skip("no report is given", ["run-settings"])
        return
    _equal(run, "schema", report.get("schema"), SCHEMA)
    _equal(run, "valid", report.get("valid"), True)
    for name, given in (("deployment", deployment), ("load", load)):
        _check_settings(run, name, given)
    _check_graph(run)
    _check_reading(run)
    # What belongs to other kinds of runs is null.
    for name, there in (
        ("agentic_snapshots", run.controlled),
        ("agentic_phases", run.controlled and run.load.warmup),
        ("agentic_profile", run.controlled and run.load.profile is not None),
        ("agentic_play_outcomes", not run.ordinary),
        ("online", run.online is not None),
    ):
        if not there:
            _equal(run, name, report.get(name), None)
    if run.deployment is not None and run.online is None:
        _check_hosts(run, run.deployment)


def _equal(run: Run, field: str, found: object, wanted: object, message: str = "the report is of another run") -> None:
    good = found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
    run.tally.fact(
        "run-settings",
        good,
        lambda: finding(
            "run-settings", message, where=run.report_at(field), found=repr(found), wanted=repr(wanted)[:200]
        ),
    )


def _check_settings(run: Run, name: str, given: Settings) -> None:
    """Compare the report's deployment or load with the one that is given, field by field."""
    assert run.report is not None
    told = run.report.get(name)
    if given is None or (told is None and name == "deployment"):
        return
    wanted = as_json(given)
    if not isinstance(wanted, Mapping):
        return  # that it cannot be read is told where it is read
    mine = told if isinstance(told, Mapping) else {}
    for field in sorted(wanted.keys() | mine.keys()):
        if field not in LABELS:
            _equal(run, f"{name}.{field}", mine.get(field), wanted.get(field))


def _check_graph(run: Run) -> None:
    assert run.report is not None
    graph, told = run.graph, run.report.get("agentic_graph")
    if run.ordinary:
        _equal(run, "agentic_graph", told, None)
        _equal(run, "agentic_lanes", run.report.get("agentic_lanes"), None)
    else:
        values = told if isinstance(told, Mapping) else {}
        wanted = {
            "block_size": graph.block_size,
            "node_count": graph.node_count,
            "play_count": len(graph.plays),
            "source": {"digest": graph.source.digest, "format": graph.source.format},
            "source_models": sorted(graph.models),
        }
        for name, value in wanted.items():
            _equal(run, f"agentic_graph.{name}", values.get(name), value)
        _equal(run, "agentic_lanes", run.report.get("agentic_lanes"), run.load.agentic_lanes)
        _equal(run, "agentic_qualification", run.report.get("agentic_qualification"), "functional_only")
        named = graph.facts.get("input_format", graph.source.format)
        _equal(run, "agentic_input_format", run.report.get("agentic_input_format"), named)
        projected = run.report.get("agentic_model_projection")
        models = projected.get("source_models") if isinstance(projected, Mapping) else None
        _equal(run, "agentic_model_projection.source_models", models, sorted(graph.models))
    certificate = run.report.get("certificate")
    counts = certificate if isinstance(certificate, Mapping) else {}
    sizes = {"plays": len(graph.plays), "nodes": graph.node_count, "edges": graph.edge_count}
    for name, size in sizes.items():
        _equal(run, f"certificate.{name}", counts.get(name), size)


def _check_reading(run: Run) -> None:
    """Compare what the reader of the trace decided and counted."""
    assert run.report is not None
    facts = msgspec.json.decode(msgspec.json.encode(dict(run.graph.facts)))
    told = run.report.get("reading")
    mine = told if isinstance(told, Mapping) else {}
    for name, fact in facts.items():
        if name.startswith("weka_"):
            _equal(run, name, run.report.get(name), fact)
        else:
            _equal(run, f"reading.{name}", mine.get(name), fact)


# Host pools ---------------------------------------------------------------------------------------------------------

COUNTED = ("lookups", "hits", "stores", "loads", "stored_bytes", "loaded_bytes", "deferrals", "retries")


class _HostWorker(msgspec.Struct):
    role: str
    worker_idx: int
    lookups: int
    hits: int
    stores: int
    loads: int
    stored_bytes: int
    loaded_bytes: int
    deferrals: int
    retries: int


class _HostPool(msgspec.Struct):
    scope: str
    capacity_blocks: int
    resident_blocks: int
    used_blocks: int
    evictions: int
    lookups: int
    hits: int
    stores: int
    loads: int
    stored_bytes: int
    loaded_bytes: int
    deferrals: int
    retries: int
    workers: list[_HostWorker]


def _check_hosts(run: Run, deployment: Deployment) -> None:
    """Pools are those of the deployment, hold no more than they may, and count what their workers do."""
    assert run.report is not None
    told = run.report.get("host_pools")
    hosted = [role for role in deployment.roles if role.host]
    if not hosted:
        _equal(run, "host_pools", told, None)
        _equal(run, "g2_domains", run.report.get("g2_domains"), None)
        return
    try:
        pools = msgspec.convert(told, list[_HostPool])
    except (msgspec.ValidationError, RecursionError) as error:
        _equal(run, "host_pools", str(error), "a list of pools")
        return
    served = [(role.name, worker) for role in hosted for worker in range(role.workers)]
    _equal(run, "host_pools", [(w.role, w.worker_idx) for pool in pools for w in pool.workers], served)
    shared = [
        {name: getattr(pool, name) for name in ("capacity_blocks", "resident_blocks", "used_blocks")}
        for pool in pools
        if pool.scope == "cluster_shared"
    ]
    _equal(run, "g2_domains", run.report.get("g2_domains"), shared or None)
    for number, pool in enumerate(pools):
        _check_host_pool(run, deployment, f"host_pools[{number}]", pool)


def _check_host_pool(run: Run, deployment: Deployment, field: str, pool: _HostPool) -> None:
    roles = {role.name: role for role in deployment.roles}
    for worker in pool.workers:
        role = roles.get(worker.role)
        _equal(run, f"{field}.scope", pool.scope, role.host if role is not None else None)
        _equal(run, f"{field}.capacity_blocks", pool.capacity_blocks, role.host_blocks if role is not None else 0)
    for name in COUNTED:
        total = sum(getattr(worker, name) for worker in pool.workers)
        _equal(run, f"{field}.{name}", getattr(pool, name), total)
    order = 0 <= pool.resident_blocks <= pool.used_blocks <= pool.capacity_blocks
    sizes = (pool.resident_blocks, pool.used_blocks, pool.capacity_blocks)
    _equal(run, f"{field}.used_blocks", order, True, f"{sizes} are not resident, used and all blocks")
    for name in ("hits", "loads"):
        value = getattr(pool, name)
        _equal(run, f"{field}.{name}", 0 <= value <= pool.lookups, True, f"{value} {name} in {pool.lookups} lookups")
