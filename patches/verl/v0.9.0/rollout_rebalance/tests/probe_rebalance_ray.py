"""Probe: the same requests through Ray's actors, with and without moves.

Usage: probe_rebalance_ray.py MODEL. Verl's manager launches two servers of one device each, as for a hybrid engine, whose workers are actors
that do nothing else; its load balancer is an actor, which makes its plans by itself. Prints the answers of either manager, and what the load
balancers say of themselves.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

# Ray's workers, and the engines' processes that they start, have the stand-ins put in place when Python starts, as in a recipe's run.
SITE = Path("site").absolute()
VARIABLES = {
    "PYTHONPATH": os.pathsep.join([str(SITE), os.environ["PYTHONPATH"]]),
    "PATCHCTL_NPU": "A2",
    "PATCHCTL_NPUS": "2",
    "RAY_AUTH_MODE": "disabled",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
TIMES = [
    f"actor_rollout_ref.rollout.rollout_rebalance.{one}"
    for one in ("interval=0.05", "token_seconds=[[1,0.01],[8,0.08]]", "prompt_tokens_per_second=1000000.0")
]


def main():
    import ray
    import rebalance_servers as rs

    model = rs.not_square(sys.argv[1], Path("model").absolute())
    SITE.mkdir()
    (SITE / "sitecustomize.py").write_text("import patchctl_standins.at_start\n")
    os.environ |= VARIABLES
    folder = tempfile.mkdtemp(prefix="rr", dir="/tmp")  # Ray's sockets have short names
    ray.init(
        num_cpus=8, resources={"NPU": 2}, include_dashboard=False, object_store_memory=80_000_000, _temp_dir=folder
    )

    @ray.remote(num_cpus=0, resources={"NPU": 1})
    class Worker:
        pass

    async def answers(enable):
        config = rs.configuration(model, f"{rs.ROLLOUT}.rollout_rebalance.enable={enable}", *TIMES)
        workers = [Worker.remote() for _ in range(2)]
        manager = await rs.llm_server.LLMServerManager.create(config, SimpleNamespace(world_size=2, workers=workers))
        client = manager.get_client()
        if enable:  # all that are long at one server; without moves it is all one where they are
            names = await manager.global_load_balancer.get_all_servers.remote()
            for at in range(8):
                await manager.global_load_balancer.move_session.remote(f"session {at}", names[at % 2])
        asked = [
            client.generate(
                f"session {at}",
                prompt_ids=rs.prompt(at),
                sampling_params=rs.GREEDY | {"max_tokens": 4 if at % 2 else 200},
            )
            for at in range(8)
        ]
        outputs = await asyncio.wait_for(asyncio.gather(*asked), 300)
        balancer = manager.global_load_balancer
        for _ in range(100):  # nobody waits for a release
            if (status := await balancer.get_status.remote())["total_inflight"] == 0:
                break
            await asyncio.sleep(0.1)
        for server in manager.server_handles:
            ray.kill(server)
        for worker in workers:
            ray.kill(worker)
        return {"answers": [rs.shown(one) for one in outputs], "status": status}

    found = {str(enable): asyncio.run(answers(enable)) for enable in (True, False)}
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
