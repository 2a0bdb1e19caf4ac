"""The only module that uses Ray: joins a cluster as a driver and runs one task pinned to each node, with a time limit.

Starts, stops or changes nothing in the cluster. Tasks request no CPU, so that busy nodes answer too, and are not
retried: what happened to a task is the answer.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from patchctl.cluster import task
from patchctl.cluster.facts import NodeFacts, Request, facts_of
from patchctl.errors import SourceUnavailable, Tried, WrongUse
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

CLIENT = "ray://"
AUTO = "auto"
_CONNECT_SECONDS = 5.0
_LAST_PORT = 65535
_POLL_SECONDS = 0.5
_ASKED_AT_ONCE = 64
_RUN_ON_A_NODE = "run patchctl on a node of the cluster, or name its client port: --address ray://HOST:10001"


@dataclass(frozen=True)
class ClusterNode:
    """A raylet as the cluster reports it. `title` is its name, with part of its id if not unique."""

    id: str
    title: str
    address: str
    port: int
    alive: bool
    reason: str


@dataclass(frozen=True)
class NoAnswer:
    """Why a node gave no answer. dead: no raylet; silent: timed out; broken: its task or patchctl failed."""

    kind: Literal["dead", "silent", "broken"]
    what: str


Answer = NodeFacts | NoAnswer


class Cluster:
    """A joined cluster."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray = ray
        self.address = address
        self.version = str(ray.__version__)

    def nodes(self) -> list[ClusterNode]:
        """Return every node that the cluster knows, by title. A node that rejoined is listed once, as alive."""
        rows = self._ray.nodes()
        names = [_name(r) for r in rows if r["Alive"]]
        there = {(_name(r), r["NodeManagerAddress"]) for r in rows if r["Alive"]}
        found = []
        for row in rows:
            name, address = _name(row), row["NodeManagerAddress"]
            if row["Alive"] or (name, address) not in there:
                title = name if names.count(name) < 2 else f"{name} ({row['NodeID'][:8]})"
                reason = one_line(str(row.get("DeathReasonMessage") or "")) or "the cluster lost it"
                found.append(ClusterNode(row["NodeID"], title, address, row["NodeManagerPort"], row["Alive"], reason))
        return sorted(found, key=lambda n: (n.title, n.id))

    def put(self, data: bytes) -> Any:
        """Put data into the object store once; nodes copy it from each other."""
        return self._ray.put(data)

    def ask(
        self, requests: Mapping[ClusterNode, Request], payload: Any, progress: Progress, *, bundle: Any = None
    ) -> dict[ClusterNode, Answer]:
        """Return each node's answer, waiting until all have answered or timed out.

        `payload` and `bundle` are returned by `put`.
        """
        pinned = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        self._ray.cloudpickle.register_pickle_by_value(task)
        remote = self._ray.remote(num_cpus=0, max_retries=0)(task.answer)
        end = time.monotonic()
        waiting: dict[Any, ClusterNode] = {}
        for node, request in requests.items():
            end = max(end, time.monotonic() + request.seconds)
            strategy = pinned(node_id=node.id, soft=False)
            options = {"scheduling_strategy": strategy, "name": f"patchctl cluster {request.verb}"}
            waiting[remote.options(**options).remote(payload, request.as_json(), bundle)] = node
        answers: dict[ClusterNode, Answer] = {}
        lost: dict[ClusterNode, NoAnswer] = {}
        while waiting and time.monotonic() < end:
            progress.note(f"{len(requests) - len(waiting)} of {len(requests)} nodes answered")
            done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_POLL_SECONDS)
            for ref in done:
                node = waiting.pop(ref)
                try:
                    told = self._ray.get(ref)
                    broken = None if "facts" in told else NoAnswer("broken", one_line(str(told["broken"])))
                    answers[node] = broken or facts_of(told["facts"])
                except Exception as error:  # whatever Ray raises for a failed task concerns this node only
                    what = f"its task failed: {type(error).__name__}: {one_line(str(error))}"
                    lost[node] = NoAnswer("broken", what)
        for ref, node in waiting.items():
            with contextlib.suppress(Exception):  # the node, and so the task to cancel, may be gone
                self._ray.cancel(ref, force=True)
            lost[node] = NoAnswer("silent", f"no answer in {requests[node].seconds:.0f} s")
        answers.update(self._judged(lost))
        return {node: answers[node] for node in requests}

    def _judged(self, lost: Mapping[ClusterNode, NoAnswer]) -> dict[ClusterNode, Answer]:
        """Find out which of the nodes without an answer have died.

        The cluster notices a death up to half a minute late; the raylet's port tells at once, except for a host that
        is gone, which takes a connection timeout, so all are checked in parallel.
        """
        if not lost:
            return {}
        now = {n.id: n for n in self.nodes()}
        inside = not self.address.startswith(CLIENT)  # from outside, raylets are hidden behind the client's port
        with ThreadPoolExecutor(min(len(lost), _ASKED_AT_ONCE)) as pool:
            reasons = list(pool.map(lambda node: _gone(node, now.get(node.id), inside), lost))
        return {
            node: answer if why is None else NoAnswer("dead", f"it died during the run: {why}")
            for (node, answer), why in zip(lost.items(), reasons, strict=True)
        }


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("NodeName") or row["NodeManagerAddress"])


def _gone(node: ClusterNode, now: ClusterNode | None, reachable: bool) -> str | None:
    """Return why a node has died, or None. `reachable`: raylet ports can be checked from here."""
    if now is not None and not now.alive:
        return now.reason
    reason = _refuses(node.address, node.port) if reachable else None
    return None if reason is None else f"its raylet at {node.address}:{node.port} is gone ({reason})"


def own_paths() -> list[str]:
    """Return what Ray adds to every worker's sys.path because this driver runs here, unlike the training."""
    return [os.path.dirname(os.path.realpath(sys.argv[0])), os.path.abspath(os.curdir)]


@contextmanager
def joined(address: str) -> Iterator[Cluster]:
    """Join the cluster for the block.

    Raises WrongUse without ray or with a version other than the cluster's; SourceUnavailable, with the places tried,
    if nothing is there.
    """
    ray = _ray()
    tried = _reach(address)
    # Ray 2.60 prints the deaths of raylets to standard output despite log_to_driver=False; that belongs to the result
    # only.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="patchctl")
        except Exception as error:
            raise _refused(address, ray, error, tried) from error
        try:
            yield Cluster(ray, address)
        finally:
            ray.shutdown()


def _ray() -> Any:
    # Turns off advice for Ray's users and usage statistics.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would retry for ten minutes where something else listens.
    os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise WrongUse(
            f"`patchctl cluster` needs ray, which {sys.executable} cannot import ({one_line(str(error))})",
            hint=f"install the cluster's version, `{sys.executable} -m pip install ray==VERSION`, or "
            "run patchctl with the Python that has it: PYTHON -m patchctl cluster ...",
        ) from error


def _reach(address: str) -> list[Tried]:
    """Return the places behind an address, after checking that something listens at one of them."""
    if address == AUTO:
        return [Tried(AUTO, "RAY_ADDRESS is not set, and no Ray is running on this machine")]
    found = re.fullmatch(r"(?:ray://)?(?:\[([0-9A-Fa-f:.]+)\]|([^:/\[\]\s]+)):(\d{1,5})", address)
    if found is None or int(found[3]) > _LAST_PORT:
        raise WrongUse(
            f"{one_line(address)!r} is not the address of a Ray cluster",
            hint="use --address HOST:PORT as `ray start` prints it, ray://HOST:10001, or auto for a cluster on this machine",
        )
    host, port = found[1] or found[2], int(found[3])
    try:
        places = sorted({str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except (OSError, OverflowError) as error:
        raise _nothing(address, [Tried(f"{host}:{port}", one_line(str(error)))]) from error
    reasons = [(place, _refuses(place, port)) for place in places]
    tried = [Tried(f"{place} port {port}", reason or "something listens") for place, reason in reasons]
    if all(reason is not None for _, reason in reasons):
        raise _nothing(address, tried)
    return tried


def _refuses(host: str, port: int) -> str | None:
    """Return why connecting fails, or None."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return one_line(error.strerror or str(error)).lower()
    return None


def _nothing(address: str, tried: list[Tried]) -> SourceUnavailable:
    hint = "check that it is up (`ray status --address A`), that this is its head's address, and that the port is open from here"
    return SourceUnavailable(f"no Ray cluster at {one_line(address)}", tried, hint=hint)


def _refused(address: str, ray: Any, error: Exception, tried: list[Tried]) -> Exception:
    """Convert an error of ray.init."""
    text = str(error)
    if type(error).__name__ == "AuthenticationError":
        hint = "the cluster requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, as on its nodes"
        return WrongUse(f"the Ray cluster at {one_line(address)} refused authentication", hint=hint)
    if "ersion mismatch" in text or "was started with" in text:
        return WrongUse(
            f"the cluster runs another Ray or Python: {one_line(text)}",
            hint=f"this is ray {ray.__version__} and Python {sys.version.split()[0]}: run patchctl with the cluster's own "
            "Python, PYTHON -m patchctl cluster ...",
        )
    if address != AUTO:
        tried = [*tried, Tried(address, f"{type(error).__name__}: {one_line(text)}")]
    return SourceUnavailable(f"cannot join the Ray cluster at {one_line(address)}", tried, hint=_RUN_ON_A_NODE)
