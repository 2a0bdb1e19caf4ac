"""`patchctl cluster` where there is no cluster, and where there is no ray. No raylet is started here."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path

import pytest
from distribution import Made, make_distribution

WITHOUT_RAY = importlib.util.find_spec("ray") is None
FAKE = "__version__ = '2.48.0'\n"  # enough for what is asked before a cluster is joined


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("addresses"))


@pytest.mark.skipif(not WITHOUT_RAY, reason="this Python has ray")
@pytest.mark.parametrize("args", [("verify",), ("status",), ("apply", "--profile", "full")], ids=lambda a: a[0])
def test_without_ray_one_error_says_what_to_install(made: Made, args: tuple[str, ...]) -> None:
    done = made.patchctl("cluster", *args, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["exit_code"]) == (2, 2)
    assert sys.executable in error["what"] and f"{sys.executable} -m pip install ray==" in error["hint"]
    assert "Traceback" not in done.stderr


@pytest.fixture
def with_ray(tmp_path: Path) -> dict[str, str]:
    """An environment in which `import ray` works: addresses are looked at before ray is asked for anything."""
    from distribution import REPO

    if not WITHOUT_RAY:
        return {}
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(FAKE)
    return {"PYTHONPATH": f"{REPO}:{tmp_path}"}


@pytest.mark.parametrize(
    "address", ["nonsense", "host:port", "http://localhost:1", "a b:1", "localhost", "::1:5", "localhost:99999"]
)
def test_what_is_no_address(made: Made, with_ray: dict[str, str], address: str) -> None:
    done = made.patchctl("cluster", "status", "--address", address, env=with_ray)
    assert done.returncode == 2, done.stderr
    assert "is not the address of a Ray cluster" in done.stderr and "HOST:PORT" in done.stderr


def test_nobody_listens(made: Made, with_ray: dict[str, str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = made.patchctl("cluster", "status", "--address", f"localhost:{port}", "--json", env=with_ray)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == error["exit_code"] == 3
    assert {"place": f"127.0.0.1 port {port}", "reason": "connection refused"} in error["tried"]


def test_a_host_that_nobody_knows(made: Made, with_ray: dict[str, str]) -> None:
    done = made.patchctl("cluster", "status", "--address", "no-such-host.invalid:6379", env=with_ray)
    assert done.returncode == 3, done.stderr
    assert "tried no-such-host.invalid:6379" in done.stderr


def test_a_wrong_profile_or_recipe_needs_no_cluster(made: Made, with_ray: dict[str, str]) -> None:
    for args in (("--profile", "fool"), ("--recipe", "full/none")):
        done = made.patchctl("cluster", "verify", "--address", "localhost:1", *args, env=with_ray)
        assert done.returncode == 2, done.stderr
