"""Probe: what a socket is told that wants the port which the trainer has named to the engine's ranks; null where it gets it."""

import npu_engine_0_23

npu_engine_0_23.prepare()

import errno  # noqa: E402  (the platform must be prepared first)
import json  # noqa: E402
import socket  # noqa: E402

import ray  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineRegistry  # noqa: E402


def main():
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    trainer = CheckpointEngineRegistry.get("delta_in_place")(1 << 20, is_master=True)
    host, port, _ = trainer.prepare()["address"]
    told = None
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        told = errno.errorcode[error.errno]
    print(json.dumps(told))


main()
