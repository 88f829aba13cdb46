"""The configurations that the documentation and the examples show are read as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import playproof as pp
from playproof.config import parse_configuration

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_pages_configurations_are_read() -> None:
    aggregated, bounds, ordinary, drafts, pair = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    deployment = parse_configuration(aggregated.encode()).deployment
    assert isinstance(deployment, pp.Deployment)
    assert deployment.host_offload == pp.HostOffload(
        num_host_blocks=4096, bytes_per_token=98304, d2h_bandwidth_gbps=32, h2d_bandwidth_gbps=32
    )
    # The next ones show one section each.
    whole = msgspec.yaml.decode(aggregated)
    read = parse_configuration(msgspec.yaml.encode({**whole, **msgspec.yaml.decode(bounds)}))
    assert read.sla == pp.Sla(ttft_ms=500, itl_ms=50)
    assert len(read.notes) == 2
    read = parse_configuration(msgspec.yaml.encode({**whole, **msgspec.yaml.decode(ordinary)}))
    assert read.load == pp.Load(concurrency=64, max_virtual_time_seconds=300.0)
    whole["engine"] |= msgspec.yaml.decode(drafts)["engine"]
    # The page says so: speculation and host memory exclude one another.
    with pytest.raises(pp.InvalidDeployment, match="exclude one another"):
        parse_configuration(msgspec.yaml.encode(whole))
    del whole["engine"]["workers"]["aggregated"]["kv_cache"]["host_offload"]
    read = parse_configuration(msgspec.yaml.encode(whole))
    rates = (0.8, 0.6, 0.4)
    assert read.deployment.speculation == pp.Speculation(num_speculative_tokens=3, acceptance_rates=rates)
    roles = parse_configuration(pair.encode()).deployment
    assert isinstance(roles, pp.Disaggregated)
    assert (roles.prefill.workers, roles.decode.workers) == (2, 4)
    assert roles.transfer == pp.Transfer(bytes_per_token=98304, bandwidth_gb_per_second=50)


def test_the_pages_python_makes_a_deployment() -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Disaggregated" in block]
    deployment = eval(code, {"playproof": pp})
    assert isinstance(deployment, pp.Disaggregated)
    assert deployment.to_spec().decode is not None
