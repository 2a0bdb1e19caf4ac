"""verl 0.6.0 and megatron-core 0.12.1 as the package index has them, installed by a real pip and a real uv, and patched in
site-packages by the one command of docs/install.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, run_patchctl
from on_disk import snapshot
from packages import Env, false_lines, listed
from pins import oldest

pytestmark = pytest.mark.heavy("installs with pip into environments of its own")

PACKAGES = {"verl": "verl", "megatron-lm": "megatron_core"}
DAPO = {"data_rebalance_dapo", "skip_old_log_prob_dapo"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def patchctl(cache: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a verb on a workspace of this repository's distribution; its JSON. Sources come from the package index."""

    def run(verb: str, *args: str) -> dict[str, Any]:
        line = (f"--root={REPO}", f"--cache={cache}", verb, "--json", "--workspace", str(tmp_path / "ws"), *args)
        done = run_patchctl(*line, home=tmp_path / "home", env={"PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""})
        if done.returncode == 3 and "cannot be reached" in done.stderr:
            pytest.skip("the package index cannot be reached")
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_both_are_patched_where_they_are_installed(
    patchctl: Callable[..., dict[str, Any]], tmp_path: Path, installer: str
) -> None:
    env = Env(tmp_path / "env", installer)
    env.install("verl==0.6.0", "megatron-core==0.12.1")
    before, shared = snapshot(env.site), snapshot(env.cache)
    done = patchctl(
        "apply", "--profile", "qwen3-235b", "--release", oldest(), "--site-packages", env.python, "--skip-unavailable"
    )
    for upstream in PACKAGES:
        tree = done["trees"][upstream]
        assert (tree["kind"], tree["folder"], tree["form"]) == ("into", str(env.site), "sdist")
        assert tree["locked"] is True
    reasons = {o["feature"]: o["reason"] for o in done["trees"]["verl"]["left_out"]}
    assert set(reasons) >= DAPO
    assert all("not in the package" in reasons[f] and "recipe/dapo/dapo_ray_trainer.py" in reasons[f] for f in DAPO)
    assert {done["trees"][u]["kind"] for u in done["trees"] if u not in PACKAGES} == {"managed"}
    for name in PACKAGES.values():
        assert false_lines(env.site, name) == []
    changed = {p for p, s in snapshot(env.site).items() if before.get(p) != s and p.endswith(".py")}
    assert len(changed) > 20 and changed <= listed(env.site, "verl") | listed(env.site, "megatron_core")
    assert snapshot(env.cache) == shared
    status = patchctl("status")
    assert status["clean"] is True
    patchctl("verify")
    assert (
        patchctl("apply", "--profile", "qwen3-235b", "--release", oldest(), "--skip-unavailable", "--offline")[
            "changed"
        ]
        == []
    )
    patchctl("revert")
    assert snapshot(env.site) == before and snapshot(env.cache) == shared
