"""The same raylets in more states: busy, stopped, edited, without sources; and addresses where there is no cluster."""

from __future__ import annotations

import http.server
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from distribution import write_files
from raylets import Raylets
from test_raylets import HELLO, NAMES, Nodes, differences, make_nodes, states

pytestmark = pytest.mark.slow

# Takes every CPU of the cluster, says so, and keeps them until it is ended.
_BUSY = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
class Busy:
    def ready(self): return True

held = [Busy.remote() for _ in range(4)]
ray.get([h.ready.remote() for h in held])
print("busy", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def nodes(ray_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Raylets(ray_python) as raylets:
        yield make_nodes(raylets, tmp_path_factory.mktemp("nodes"))


def test_nothing_was_applied(nodes: Nodes) -> None:
    found = nodes.json("status", code=1)
    assert {rule for rule, _ in differences(found)} >= {"not-applied"}


def test_a_dry_run_writes_nothing(nodes: Nodes) -> None:
    found = nodes.json("apply", "--profile", "full", "--dry-run")
    assert states(found) == {"a": "would-change", "b": "would-change", "c": "would-change", "d": "shared"}
    assert not any(nodes.workspace(name).exists() for name in NAMES)


def test_a_bundle_goes_through_the_object_store(nodes: Nodes) -> None:
    """Caches are empty and the upstreams are gone: what is applied comes out of the bundle."""
    bundle = nodes.folder / "full.bundle.tar"
    nodes.made.good("bundle", "create", "--profile", "full", "--out", str(bundle))
    for name in NAMES:
        subprocess.run(["rm", "-rf", str(nodes.folder / f"cache-{name}")], check=True)
    away = nodes.made.origins.rename(nodes.made.origins.with_name("away"))
    try:
        found = nodes.json("apply", "--profile", "full", "--offline", code=3)
        assert states(found)["a"] == "failed"
        assert not any(nodes.workspace(name).exists() for name in NAMES)
        found = nodes.json("apply", "--profile", "full", "--bundle", str(bundle))
    finally:
        away.rename(nodes.made.origins)
    assert states(found) == {"a": "applied", "b": "applied", "c": "applied", "d": "shared"}
    found = nodes.json("apply", "--profile", "full", "--bundle", str(bundle))
    assert states(found) == {"a": "unchanged", "b": "unchanged", "c": "unchanged", "d": "shared"}


def test_a_busy_cluster_answers(nodes: Nodes) -> None:
    command = [nodes.raylets.python, "-c", _BUSY, nodes.raylets.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"RAY_AUTH_MODE": "disabled"}) as busy:
        try:
            assert busy.stdout is not None and busy.stdout.readline() == "busy\n"
            found = nodes.json("verify", code=1)
        finally:
            busy.kill()
    assert differences(found) == {("package-differs", "c")}


def test_through_the_client_port(nodes: Nodes) -> None:
    if nodes.raylets.client is None:
        pytest.skip("this ray has no client: pip install 'ray[client]'")
    found = nodes.json("verify", "--recipe", "full/loud", code=1, address=nodes.raylets.client)
    assert differences(found) == {("package-differs", "c")}


def test_too_few_nodes(nodes: Nodes) -> None:
    assert ("nodes-missing", "") in differences(nodes.json("status", "--nodes", "5", code=1))
    found = nodes.json("apply", "--profile", "plain", "--nodes", "5", code=1)
    assert (found["missing"], states(found)["a"]) == ("4 of 5 nodes are up", "held-back")


def test_another_recipe_is_another_environment(nodes: Nodes) -> None:
    found = nodes.json("status", "--recipe", "full/quiet", code=1)
    assert ("environment-differs", "a b c d") in differences(found)


def test_edits_on_one_node_stop_all(nodes: Nodes) -> None:
    write_files(nodes.workspace("b"), {HELLO: "mine = 1\n"})
    found = nodes.json("apply", "--profile", "plain", code=5)
    assert states(found) == {"a": "held-back", "b": "failed", "c": "held-back", "d": "held-back"}
    assert "GREETER_POLITE" in (nodes.workspace("a") / HELLO).read_text()
    found = nodes.json("apply", "--profile", "plain", "--stash")
    assert found["nodes"][1]["stashed"]["greeter"].startswith("patchctl-stash")
    for name in NAMES:
        assert "GREETER_POLITE" not in (nodes.workspace(name) / HELLO).read_text()


def test_a_node_that_hangs(nodes: Nodes) -> None:
    import signal

    nodes.raylets.kill("c", signal.SIGSTOP)
    began = time.monotonic()
    found = nodes.json("status", "--timeout", "10", code=1)
    nodes.raylets.kill("c", signal.SIGCONT)
    assert states(found)["c"] == "silent" and ("node-silent", "c") in differences(found)
    assert time.monotonic() - began < 40


def test_a_cluster_of_another_version(nodes: Nodes) -> None:
    """The cluster says of itself, in its own store, that another Ray started it; Ray's own check reads that."""
    forge = (
        "import json, sys, ray; from ray.experimental import internal_kv as kv; from ray._private import ray_constants as c\n"
        "ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')\n"
        "at = dict(namespace=c.KV_NAMESPACE_CLUSTER) if hasattr(c, 'KV_NAMESPACE_CLUSTER') else dict(namespace='cluster')\n"
        "have = json.loads(kv._internal_kv_get('CLUSTER_METADATA', **at)); have['ray_version'] = '2.9.9'\n"
        "kv._internal_kv_put('CLUSTER_METADATA', json.dumps(have), overwrite=True, **at)\n"
    )
    subprocess.run(
        [nodes.raylets.python, "-c", forge, nodes.raylets.address], check=True, env={"RAY_AUTH_MODE": "disabled"}
    )
    done = nodes.run("status")
    assert done.returncode == 2
    assert "2.9.9" in done.stderr and "Traceback" not in done.stderr and "PYTHON -m patchctl cluster" in done.stderr


def test_something_else_listens_there(nodes: Nodes) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = nodes.run("status", address=f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert str(server.server_port) in done.stderr
