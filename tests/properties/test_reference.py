"""The ledger of the executable specification is the kernel's, every column of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st
from ledgers import columns
from loading import loading_cases
from playproof_kernel import simulate
from playproof_reference import replay
from playproof_reference.ledger import ledger_of
from playproof_spec.certificate import prove
from playproof_spec.deployment import DeploymentSpec, LoadSpec
from playproof_spec.graph import Graph
from strategies import canceled, deployments, disaggregated, graphs, loads, optioned_deployments, sglang_deployments


def same(graph: Graph, deployment: DeploymentSpec, load: LoadSpec) -> None:
    ours = columns(simulate(prove(graph), deployment, load))
    theirs = columns(ledger_of(replay(graph, deployment, load)))
    for name in ours:
        assert ours[name] == theirs[name], name


@given(graphs(), deployments | optioned_deployments() | sglang_deployments | disaggregated(), loads, st.booleans())
def test_ledgers_are_equal(graph: Graph, deployment: DeploymentSpec, load: LoadSpec, apart: bool) -> None:
    same(graph, deployment, replace(load, play_scope=apart))


@given(st.data(), graphs(), deployments | sglang_deployments | disaggregated(), loads)
def test_ledgers_of_canceled_runs_are_equal(
    data: st.DataObject, graph: Graph, deployment: DeploymentSpec, load: LoadSpec
) -> None:
    load = data.draw(canceled(graph, load))
    event(f"cancellations: {bool(load.cancellations)}")
    same(graph, deployment, load)


@given(loading_cases())
def test_ledgers_with_host_memory_are_equal(case: tuple[Graph, DeploymentSpec, LoadSpec]) -> None:
    same(*case)
