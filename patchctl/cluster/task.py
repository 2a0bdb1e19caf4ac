"""Runs in a Ray worker: looks at what this worker and a process spawned from it would import, then starts patchctl.

patchctl is sent with the task and runs in its own process. The module is pickled by value, since nodes need not have
patchctl: it uses only the standard library.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Run in the worker and in the spawned process. Finds packages as `import` would, with editable finders, without
# importing them: vllm and torch_npu take seconds and fail without a device.
_LOOK = """
import importlib.metadata, importlib.util

def place_of(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    places = list(spec.submodule_search_locations or []) if spec else []
    return (spec.origin or (places[0] if places else None)) if spec else None, None

def version_of(name):
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None

send({name: [*place_of(name), version_of(distribution)] for name, distribution in packages.items()})
"""
# -I keeps PYTHONPATH and user site-packages out of patchctl's own process; they are only inspected.
_START = "import sys; sys.path.insert(0, sys.argv[1]); from patchctl.__main__ import node; node()"
# What a spawned process may take of the node's time: its imports take a minute on a loaded host.
_SPAWN_SHARE = 0.5


def answer(payload: bytes, request: dict[str, Any], bundle: bytes | None) -> dict[str, Any]:
    """Return this node's answer. `payload` and `bundle` are files' bytes; `request` is a facts.Request as JSON.

    The answer is {"facts": ...} as facts.NodeFacts, or {"broken": REASON}.
    """
    began = time.monotonic()
    here: dict[str, Any] = {
        "host": platform.node(),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "ray": str(getattr(sys.modules.get("ray"), "__version__", "unknown")),
        "environment": {
            name: "(set)" if name in request["secret"] and name in os.environ else os.environ.get(name)
            for name in request["variables"]
        },
        "workspace": request["workspace"] or os.environ.get("PATCHCTL_WORKSPACE") or request["fallback"],
    }
    here["views"] = _views(request, here["workspace"]) if request["names"] else {}
    looked = time.monotonic() - began
    with tempfile.TemporaryDirectory(prefix="patchctl-cluster-") as name:
        place = Path(name)
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            archive.extractall(place)
        if bundle is not None:
            (place / "bundle.tar").write_bytes(bundle)
        result = _patchctl(place, {"request": request, "here": here}, request["seconds"] - looked)
    if "facts" in result:
        result["facts"]["seconds"].update(views=looked, whole=time.monotonic() - began)
    return result


def _views(request: dict[str, Any], workspace: str) -> dict[str, Any]:
    """Return what each view found, or an "error"."""
    start = [str(Path(workspace, request["start"][0], request["start"][1]))] if request["start"] else []
    own: dict[str, Any] = {}
    with _as_training_starts(start, request["drop"]):
        exec(_LOOK, {"packages": request["names"], "send": own.update})
        return {"worker": own, "spawned": _spawned(request["names"], request["seconds"] * _SPAWN_SHARE)}


@contextmanager
def _as_training_starts(start: list[str], drop: list[str]) -> Iterator[None]:
    """Set sys.path as a training worker has it: Ray puts the driver's start folder first."""
    kept = sys.path[:]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # the node's own, wherever the driver runs
    for path in drop:
        if sys.path.count(path) > (path in named):
            sys.path.remove(path)
    sys.path[:0] = start
    try:
        yield
    finally:
        sys.path[:] = kept


def _spawned(names: dict[str, str], seconds: float) -> dict[str, Any]:
    """Look from a process started like an engine, by multiprocessing's spawn, which passes on environment and sys.path.

    The target is `exec`, so that the new process need not import a module of ours.
    """
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe(duplex=False)
    process = spawn.Process(target=exec, args=(_LOOK, {"packages": names, "send": its.send}), daemon=True)
    try:
        process.start()
        its.close()
        if not mine.poll(seconds):
            return {"error": f"a spawned process did not answer within {seconds:.0f} s, half of --timeout"}
        found: dict[str, Any] = mine.recv()
        return found
    except (OSError, EOFError) as error:
        return {"error": f"a spawned process ended without an answer: {type(error).__name__} {error}".strip()}
    finally:
        if process.pid is not None:
            process.kill()
            process.join(5)


def _patchctl(place: Path, given: dict[str, Any], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-I", "-c", _START, str(place / "code"), str(place)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(json.dumps(given), timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        return {"broken": f"patchctl did not finish within {seconds:.0f} s on this node"}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    try:
        result: dict[str, Any] = json.loads(out)
        return result
    except ValueError:
        said = err.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return {"broken": f"patchctl failed on this node: {said[0]}"}
