"""Probe: the process group as verl's FSDP worker starts it, a number gathered into lists of one, a row of each rank's stacked, and
the device's number behind its name. Run with ranks."""

import json

import npu_training
import torch
import torch.distributed as dist
import torch_npu

npu_training.answer_for_the_device(torch_npu)
dist.init_process_group(backend="cpu:gloo,cpu:gloo")
found = [torch.zeros(1) for _ in range(dist.get_world_size())]
dist.all_gather(found, torch.tensor(float(dist.get_rank())))
stacked = torch.zeros(dist.get_world_size(), 2, 1)
dist.all_gather_into_tensor(stacked, torch.full((2, 1), float(dist.get_rank())))
sent = torch.ones(1).to(f"cpu:{torch.cpu.current_device()}").to(torch.cpu.current_device())
backend = dist.get_backend_config().partition(":")[2]
dist.destroy_process_group()
print(
    json.dumps(
        {
            "gathered": [one.tolist() for one in found],
            "sizes": [[*one.shape] for one in found],
            "stacked": stacked.tolist(),
            "sent": sent.tolist(),
            "backend": backend,
        }
    )
)
