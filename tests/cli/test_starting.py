"""To begin with: configurations that are read as they stand, their schema, the demo, completion, what is shipped."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from playproof.commands.starting import copy_examples
from playproof.config import DEFAULT_CONFIGURATION, parse_configuration
from playproof.deployment import Disaggregated, InvalidDeployment
from playproof.schema import configuration_schema
from playproof.starting import configuration

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
CHOICES = list(itertools.product((False, True), repeat=3))


def read(text: str) -> Any:
    return parse_configuration(text.encode())


@pytest.mark.parametrize(("disaggregated", "sglang", "ordinary"), CHOICES)
def test_what_init_writes_is_read_as_it_stands(disaggregated: bool, sglang: bool, ordinary: bool) -> None:
    text = configuration(disaggregated=disaggregated, sglang=sglang, ordinary=ordinary, paths='"a", "b c"')
    found = read(text)
    assert isinstance(found.deployment, Disaggregated) == disaggregated
    assert found.deployment.backend == ("sglang" if sglang else "vllm")
    assert (found.load.concurrency is not None) == ordinary
    assert [str(path) for path in found.paths] == ["a", "b c"]
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("disaggregated", "sglang", "ordinary"), CHOICES)
def test_what_it_only_offers_is_read_too(disaggregated: bool, sglang: bool, ordinary: bool) -> None:
    text = configuration(disaggregated=disaggregated, sglang=sglang, ordinary=ordinary)
    offered = re.sub(r"^( *)# ( *)(?=[a-z_]+: ?)", r"\1\2", text, flags=re.MULTILINE)
    assert offered.count("\n") == text.count("\n")
    assert offered.count("#") < text.count("#")
    found = read(offered)
    assert found.sla is not None
    assert found.deployment.model == "any label"


def test_init_writes_refuses_and_overwrites(said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    code, out, _ = said("init", str(EXAMPLES / "weka"), "--out", "conf/my file.yaml", "--disaggregated")
    assert (code, out) == (0, "written conf/my file.yaml; next: playproof replay --config 'conf/my file.yaml'\n")
    code, _, err = said(*shlex.split(out.partition("next: playproof ")[2]))
    assert (code, err) == (0, "")
    code, _, err = said("init", "--out", "conf/my file.yaml")
    assert (code, "exists; --force" in err) == (2, True)
    assert said("init", "--out", "conf/my file.yaml", "--force", "--sglang")[0] == 0
    assert "backend: sglang" in (tmp_path / "conf" / "my file.yaml").read_text()
    code, out, _ = said("init", "--ordinary", "--out", "-")
    assert (code, out) == (0, configuration(ordinary=True))


# The schema ---------------------------------------------------------------------------------------------------------


def allowed(text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(configuration_schema()).is_valid(yaml.safe_load(text)))


def configurations() -> list[str]:
    pages = (ROOT / "docs" / "configuration.md").read_text()
    whole = re.findall(r"```yaml\n(traffic.*?)```", pages, re.DOTALL)[:1]
    files = [*EXAMPLES.glob("*.yaml"), *sorted(ROOT.glob("tests/goldens/*/config.yaml"))[::9]]
    written = [configuration(disaggregated=pair, sglang=sglang, ordinary=plain) for pair, sglang, plain in CHOICES]
    switched = DEFAULT_CONFIGURATION.decode() + "  speculation: false\n  kv_transfer: null\nexecution: false\n"
    return [*(path.read_text() for path in files), *whole, *written, DEFAULT_CONFIGURATION.decode(), switched]


def test_the_schema_is_one_and_takes_what_the_reader_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(configuration_schema())
    texts = configurations()
    assert len(texts) > 20
    for text in texts:
        read(text)
        assert allowed(text), text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mode: aggregated", "mode: agregated"),
        ("blocks: 160", "blocks: 0"),
        ("blocks: 160", "block: 160"),
        ("blocks: 160", "blocks: '160'"),
        ("type: fixed, blocks", "type: auto, blocks"),
        ("prefix_caching: true", "prefix_caching: 1"),
        ("prefix_caching: true", "g3_offload: {}"),
        ("engine:", "engines:"),
        ("policy: round_robin", "policy: random"),
        ("agentic_lanes: 3", "agentic_lanes: 3.5"),
        ("agentic_lanes: 3", "agentic_snapshot: {seed: -1}"),
        ("format: auto", "format: weka2"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(old: str, new: str) -> None:
    text = (EXAMPLES / "deployment.yaml").read_text()
    changed = text.replace(old, new, 1)
    assert changed != text
    with pytest.raises(InvalidDeployment):
        read(changed)
    assert not allowed(changed)


def test_the_schema_is_printed(said: Any) -> None:
    code, out, _ = said("schema")
    assert (code, json.loads(out)) == (0, configuration_schema())


# The demo, the doors, and what is shipped ---------------------------------------------------------------------------


def test_the_demo_runs_and_keeps_what_was_changed(said: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    code, out, _ = said("demo", "--out", str(folder))
    assert code == 0
    assert "proven: 5 plays" in out
    assert "plays completed            5 of 5" in out
    assert (folder / "report" / "requests.jsonl").is_file()
    following = [shlex.split(line) for line in out.splitlines() if line.startswith("  playproof ")]
    assert [said(*command[1:])[0] for command in following] == [0, 0]
    changed = folder / "examples" / "deployment.yaml"
    changed.write_text(changed.read_text().replace("replicas: 2", "replicas: 3"))
    assert "3 vLLM workers" in said("demo", "--out", str(folder))[1]


def test_the_examples_are_copied_whole(tmp_path: Path) -> None:
    copy_examples(tmp_path)
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.is_file()}
    assert copied == {name for name in wanted if not name.endswith((".py", ".pyc"))}


def test_completion_is_offered(said: Any) -> None:
    code, out, _ = said("--help")
    assert (code, "--install-completion" in out, "--show-completion" in out) == (0, True, True)


def test_the_package_is_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "playproof", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("playproof ")


@pytest.mark.parametrize("command", ["replay", "validate", "inspect", "check", "fuzz", "serve"])
def test_help_keeps_its_brackets(said: Any, command: str) -> None:
    code, out, _ = said(command, "--help")
    shown = " ".join(out.replace("│", " ").split())
    assert code == 0
    assert "\\[" not in shown
    assert not re.search(r" \.(\s|$)", shown)
    for kept in {"replay": ["[default: the one they serve]."], "fuzz": ["[default: a fresh one]."]}.get(command, []):
        assert kept in shown


def test_what_others_run_is_well_formed(said: Any) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "playproof validate"
    assert all(re.search(hook["files"], name) for name in ("a.jsonl", "b/c.json", "d.jsonl.gz", "e.json.zst"))
    assert not re.search(hook["files"], "a.yaml")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = action["runs"]["steps"]
    assert all("uses" in step or step["shell"] == "bash" for step in steps)
    # What a caller says reaches the shell through the environment alone.
    assert not any("${{ inputs" in step.get("run", "") for step in steps)
    docker = (ROOT / "Dockerfile").read_text()
    for command in re.findall(r"playproof (warm .*?)(?: \\|$)", docker, re.MULTILINE):
        names = [argument for argument in shlex.split(command) if argument.startswith("examples/")]
        assert all((ROOT / name).exists() for name in names)
        assert said("warm", "--help")[0] == 0


def test_the_actions_script_keeps_the_verdict(tmp_path: Path) -> None:
    steps = {step.get("name"): step for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]}
    # One that leaves with what its first argument says.
    (tmp_path / "playproof").write_text('#!/bin/sh\necho \'{"version": "2.1.0"}\'\nexit "$2"\n')
    (tmp_path / "playproof").chmod(0o755)
    for paths, code in (("0 a", 0), ("1 b", 1), ("2 c", 2), ("70 *", 70)):
        output = tmp_path / "output"
        output.write_text("")
        environment = os.environ | {
            "PATHS": paths,
            "ARGUMENTS": "--strict",
            "SARIF": str(tmp_path / "a.sarif"),
            "GITHUB_OUTPUT": str(output),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        }
        script = steps["Validate"]["run"]
        done = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=environment, capture_output=True, check=False)
        assert done.returncode == (code if code > 1 else 0), done.stderr
        assert f"code={code}" in output.read_text()
        if code < 2:
            assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"


def test_the_project_says_where_it_is_and_ships_its_examples() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {"Homepage", "Documentation", "Changelog"} <= set(project["project"]["urls"])
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"examples": "playproof/examples"}
    (rule,) = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", re.sub(rule["pattern"], rule["replacement"].replace("\\1", r"\1"), readme))
    assert links
    assert all(link.startswith(("https://", "#")) for link in links)
    assert all((ROOT / link.partition("#")[0]).exists() for link in re.findall(r"\]\((?!https)([^)#]+)", readme))
