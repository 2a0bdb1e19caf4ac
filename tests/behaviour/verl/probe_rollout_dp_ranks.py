"""Starts the ranks of several small torch worlds from one process that has imported what they need.

Importing vllm and verl takes far longer than building a tiny engine, so the parent imports once and forks the ranks of
one world after the other. The parent must have started no thread and no process group before.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
import traceback

LIMIT_S = 150


def run_world(procs, function):
    """Runs `function(rank)` in `procs` forked processes; returns their JSON values by rank.

    Raises RuntimeError when one fails or the time is over; its traceback is on stderr.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [os.pipe() for _ in range(procs)]
    children = [_fork(rank, procs, port, function, pipes) for rank in range(procs)]
    for _, write_end in pipes:
        os.close(write_end)
    _wait(children)
    values = []
    for read_end, _ in pipes:
        with os.fdopen(read_end) as answer:
            values.append(json.loads(answer.read()))
    return values


def _fork(rank, procs, port, function, pipes):
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        faulthandler.register(signal.SIGUSR1, all_threads=False)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(procs), LOCAL_WORLD_SIZE=str(procs))
        os.environ.update(RAY_LOCAL_WORLD_SIZE=str(procs), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        value = json.dumps(function(rank))
        os.write(pipes[rank][1], value.encode())  # far below the pipe's 64 KiB, so nobody needs to read meanwhile
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # no exit handlers: they are the parent's


def _wait(children):
    deadline = time.monotonic() + LIMIT_S
    left = set(children)
    failed = False
    while left and not failed and time.monotonic() < deadline:
        for child in sorted(left):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                left.discard(child)
                failed = failed or status != 0
        time.sleep(0.02)
    for child in left:
        os.kill(child, signal.SIGUSR1)  # where it hangs, on stderr
    time.sleep(0.2 if left else 0)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if left or failed:
        raise RuntimeError("a rank failed or did not come to its end")
