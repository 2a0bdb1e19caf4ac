"""`patchctl install` of the real upstreams into a fresh environment, with the real package index: names, versions,
places, entry points; and, where there is a torch, vllm imported from there. tests/cli/test_install.py has everything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from pins import import_name
from trees import REPO, Trees

TORCH_PYTHON = "PATCHCTL_TORCH_PYTHON"
# The names that pip has them by. vllm's own build for no device of its own adds +empty to its version.
DISTRIBUTIONS = {
    "verl": "verl",
    "vllm": "vllm",
    "vllm-ascend": "vllm-ascend",
    "megatron-lm": "megatron-core",
    "mindspeed": "mindspeed",
}
ASK = """
import importlib.metadata as m, importlib.util as u, json, sys
del sys.path[0]
found = {n: [m.version(n), u.find_spec(p).origin] for n, p in zip(sys.argv[1::2], sys.argv[2::2])}
plugins = [f"{e.name} = {e.value}" for e in m.entry_points(group="vllm.platform_plugins")]
print(json.dumps({"found": found, "plugins": plugins}))
"""
IMPORT = "import importlib.metadata as m, vllm; print(m.version('vllm'), vllm.__version__, vllm.__file__)"


@pytest.fixture(scope="module")
def workspace(trees: Trees) -> Path:
    folder = trees.path("verl").parent
    if not (folder / ".patchctl" / "state.json").is_file():
        pytest.skip(f"{folder} is no workspace of patchctl's")
    return folder


def run(*line: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(line, env=env, cwd=REPO, capture_output=True, text=True, timeout=timeout, check=False)


def patchctl(*args: str) -> dict[str, Any]:
    done = run(sys.executable, "-m", "patchctl", "--root", str(REPO), *args, "--json")
    if done.returncode == 3 and "setup.py needs" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr}")
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def environment(folder: Path) -> str:
    """A fresh environment of the interpreter that has torch, where there is one, without torch."""
    torch_python = os.environ.get(TORCH_PYTHON)
    if torch_python is None:
        venv.create(folder, with_pip=True, symlinks=True)
    else:
        done = run(torch_python, "-m", "venv", str(folder))
        assert done.returncode == 0, done.stderr
    return str(folder / "bin" / "python")


def version(trees: Trees, upstream: str) -> str:
    """What pip has to call it: the pin's version, or where no index has it the one that its setup.py gives itself."""
    if trees.stack(upstream).pin.sdist is not None:
        return trees.version(upstream) + ("+empty" if upstream == "vllm" else "")
    (own,) = re.findall(
        r"^__version__ = ['\"](.+)['\"]$", (trees.path(upstream) / "setup.py").read_text(), re.MULTILINE
    )
    return str(own)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copied", "editable"])
def test_a_fresh_environment_has_the_patched_packages(workspace: Path, trees: Trees, how: str, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    options = ("--editable",) if how == "editable" else ()
    data = patchctl("install", "--workspace", str(workspace), "--python", python, *options)
    names = [t["upstream"] for t in data["trees"]]
    assert names and set(names) | set(data["passed_by"]) == set(DISTRIBUTIONS)
    line = [text for name in names for text in (DISTRIBUTIONS[name], import_name(name))]
    told = json.loads(run(python, "-c", ASK, *line).stdout)
    for name in names:
        found_version, place = told["found"][DISTRIBUTIONS[name]]
        top = workspace / name if how == "editable" else tmp_path / "env"
        assert found_version == version(trees, name) and Path(place).is_relative_to(top)
        assert place.endswith(f"{import_name(name).replace('.', '/')}/__init__.py")
    if "vllm-ascend" in names:
        assert told["plugins"] == ["ascend = vllm_ascend:register"]
    status = patchctl("status", "--workspace", str(workspace), "--python", python)
    assert all(i["ours"] for t in status["trees"] for i in t["imports"])
    if "vllm" in names:
        _import_vllm(python, trees.version("vllm"))


def _import_vllm(python: str, version: str) -> None:
    """With what vllm itself needs lent from the environment that has it, vllm starts, and knows its version."""
    torch_python = os.environ.get(TORCH_PYTHON)
    if torch_python is None:
        return
    lent = run(torch_python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout
    (site,) = Path(python).parents[1].glob("lib/python3*/site-packages")
    (site / "lent.pth").write_text(lent)
    done = run(python, "-c", IMPORT)
    assert done.returncode == 0, done.stderr[-3000:]
    installed, own, place = done.stdout.splitlines()[-1].split()
    assert (installed, own) == (f"{version}+empty", version)
    assert "site-packages" in place or "/vllm/vllm/" in place
