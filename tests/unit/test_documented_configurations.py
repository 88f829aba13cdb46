"""The configurations that the documentation and the examples show are read as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

import playproof as pp
from playproof.config import parse_configuration

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_pages_configurations_are_read() -> None:
    aggregated, ordinary, drafts, pair = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(parse_configuration(aggregated.encode()).deployment, pp.Deployment)
    # The second and third show one section each.
    whole = msgspec.yaml.decode(aggregated)
    read = parse_configuration(msgspec.yaml.encode({**whole, **msgspec.yaml.decode(ordinary)}))
    assert read.load == pp.Load(concurrency=64, max_virtual_time_seconds=300.0)
    whole["engine"] |= msgspec.yaml.decode(drafts)["engine"]
    read = parse_configuration(msgspec.yaml.encode(whole))
    rates = (0.8, 0.6, 0.4)
    assert read.deployment.speculation == pp.Speculation(num_speculative_tokens=3, acceptance_rates=rates)
    deployment = parse_configuration(pair.encode()).deployment
    assert isinstance(deployment, pp.Disaggregated)
    assert (deployment.prefill.workers, deployment.decode.workers) == (2, 4)
    assert deployment.transfer == pp.Transfer(bytes_per_token=98304, bandwidth_gb_per_second=50)


def test_the_pages_python_makes_a_deployment() -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Disaggregated" in block]
    deployment = eval(code, {"playproof": pp})
    assert isinstance(deployment, pp.Disaggregated)
    assert deployment.to_spec().decode is not None
