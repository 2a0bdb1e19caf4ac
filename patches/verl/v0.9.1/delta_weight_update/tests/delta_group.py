"""Processes of a trainer and of an engine that have no device in common, as verl's CheckpointEngineManager meets them; without Ray.

Ray is what is stood for: `Group` calls methods of other processes through torch's store, and ray.get waits for them. The manager, its
checkpoint engines, verl's FSDP engine, ServerAdapter, the worker extension and the engine with vllm-ascend's worker are real.
"""

import asyncio
import hashlib
import os
import pickle
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import torch
from torch.distributed import PrefixStore, TCPStore

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BACKEND = "delta_in_place"
BUCKET_MB = 1
PLACE = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
STORE = TCPStore(*PLACE, RANKS, RANK == 0, timedelta(minutes=10))


class Group:
    """Stands for RayWorkerGroup: calls methods of the processes with these ranks, which `serve` them in the order they come in.

    `store` is a client of its own: in the process that serves as well, one would wait for the other."""

    store = None

    def __init__(self, worker_handles, ray_cls_with_init=None):
        self.ranks = worker_handles
        self.world_size = len(worker_handles)

    def call(self, name, *arguments):
        """`arguments` are (args, kwargs) for all, or a list of them."""
        each = arguments[0] if isinstance(arguments[0], list) else [arguments[0]] * self.world_size
        return [self._one(rank, name, *given) for rank, given in zip(self.ranks, each, strict=True)]

    def execute_checkpoint_engine(self, method, **lists):
        each = [((name,), {key: of[at] for key, of in lists.items()}) for at, name in enumerate(method)]
        return self.call("execute_checkpoint_engine", each)

    def update_weights(self, **given):
        return self.call("update_weights", ((), given))

    def _one(self, rank, name, args, kwargs):
        at = f"{rank}/{self.store.add(f'calls of {rank}', 1)}"
        self.store.set(at, pickle.dumps((name, args, kwargs)))

        def result():
            value = pickle.loads(self.store.get(f"{at}/result"))
            if isinstance(value, str) and value.startswith("Traceback"):
                raise RuntimeError(value)
            return value

        return result


def digest(tensor):
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest() + str(list(tensor.shape))


def serve(owner):
    """Does what groups ask this process for, until that is `stop`."""
    count = 1
    while True:
        name, args, kwargs = pickle.loads(STORE.get(f"{RANK}/{count}"))
        try:
            value = None if name == "stop" else getattr(owner, name)(*args, **kwargs)
            value = asyncio.run(value) if asyncio.iscoroutine(value) else value
        except Exception:
            value = traceback.format_exc()
        STORE.set(f"{RANK}/{count}/result", pickle.dumps(value))
        if name == "stop":
            return
        count += 1


class Trainer:
    """verl's FSDP engine on one of several ranks, and its side of the checkpoint engine."""

    def __init__(self, model, ranks, rate):
        from hydra import compose, initialize_config_module
        from verl.checkpoint_engine import CheckpointEngineRegistry
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

        self.start(ranks)
        actor = "actor_rollout_ref.actor"
        overrides = [
            f"actor_rollout_ref.model.path={model}",
            "actor_rollout_ref.model.use_remove_padding=False",
            "+actor_rollout_ref.model.override_config.attn_implementation=eager",
            f"{actor}.strategy=fsdp2",
            f"{actor}.optim.lr={rate}",
            f"{actor}.use_dynamic_bsz=True",
            f"{actor}.fsdp_config.use_torch_compile=False",
        ]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=overrides).actor_rollout_ref
        made = omega_conf_to_dataclass(config.actor)
        model = omega_conf_to_dataclass(config.model)
        model.hf_config._experts_implementation = "eager"
        self.engine = FSDPEngineWithLMHead(model, made.engine, made.optim, made.checkpoint)
        self.engine.initialize()
        self.sender = CheckpointEngineRegistry.new(BACKEND, is_master=RANK == 0, bucket_size=BUCKET_MB << 20)
        self._tokens = torch.Generator().manual_seed(RANK)

    def start(self, ranks):
        torch.distributed.init_process_group("gloo", store=PrefixStore("trainer", STORE), rank=RANK, world_size=ranks)

    def train(self):
        """One step of verl's optimizer on the next tokens of this rank."""
        self.engine.module.train()
        self.engine.optimizer_zero_grad()
        tokens = torch.randint(3, 500, (2, 16), generator=self._tokens)
        self.engine.module(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        return float(self.engine.optimizer_step())

    def execute_checkpoint_engine(self, method, **given):
        return getattr(self.sender, method)(**given)

    def update_weights(self, global_steps=None, mode=None):
        return self.sender.send_weights(self.engine, global_steps=global_steps)

    def spoil_a_flush(self):
        """The next tensor that is sent has another bit, once."""
        if self.sender.wire is None:
            return
        send = self.sender.wire.send

        def sent(tensor):
            self.sender.wire.send = send
            tensor = tensor.clone()
            tensor[-1] ^= 1
            send(tensor)

        self.sender.wire.send = sent


class Engine:
    """vllm's engine with vllm-ascend's worker, on one of `ranks` of tensor parallelism, and verl's side of it."""

    def __init__(self, model, first, ranks, **settings):
        import npu_engine
        from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
        from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
        from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

        bucketed_weight_transfer.is_support_ipc = lambda: False  # asks npu-smi
        os.environ.update(
            RANK=str(RANK - first), LOCAL_RANK=str(RANK - first), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks)
        )
        store = PrefixStore("engine", STORE)
        torch.distributed.init_process_group("gloo", store=store, rank=RANK - first, world_size=ranks)
        extension = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
        self.llm = npu_engine.small_llm(
            model,
            dtype="bfloat16",
            tensor_parallel_size=ranks,
            worker_extension_cls=extension,
            enable_sleep_mode=True,
            load_format="dummy",
            **settings,
        )
        self.model = self.llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
        adapter = object.__new__(ServerAdapter)
        adapter.use_shm, adapter._has_server = True, True
        adapter.replica_rank, adapter.rollout_rank = 0, RANK - first
        adapter.config = SimpleNamespace(
            checkpoint_engine=SimpleNamespace(backend=BACKEND, update_weights_bucket_megabytes=BUCKET_MB)
        )
        (adapter.zmq_handle,) = self.llm.collective_rpc("_get_zmq_handle")
        server = SimpleNamespace(engine=SimpleNamespace(collective_rpc=self._at_once))
        threads = ThreadPoolExecutor()

        def remote(*args, **kwargs):
            asked = vLLMHttpServer.collective_rpc(server, *args, **kwargs)
            return asyncio.wrap_future(threads.submit(asyncio.run, asked))

        adapter.server_handle = SimpleNamespace(
            collective_rpc=SimpleNamespace(remote=remote),
            clear_kv_cache=SimpleNamespace(remote=self._nothing),
            set_global_steps=SimpleNamespace(remote=self._nothing),
        )
        self.worker = object.__new__(CheckpointEngineWorker)
        self.worker.rollout_config, self.worker.server_adapter = adapter.config, adapter
        self.worker.checkpoint_engine = CheckpointEngineRegistry.new(BACKEND, bucket_size=BUCKET_MB << 20)

    async def _at_once(self, method, timeout=None, args=(), kwargs=None):
        try:
            return self.llm.collective_rpc(method, timeout, args, kwargs)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the sender would wait for ever

    async def _nothing(self, *args):
        pass

    def sleep(self):
        """What verl's release_kv_cache does at level 1."""
        self.llm.sleep(level=1)
        self.llm.wake_up(tags=["weights"])

    def wake_up(self):
        self.llm.wake_up(tags=["kv_cache"])

    def execute_checkpoint_engine(self, method, **given):
        return getattr(self.worker.checkpoint_engine, method)(**given)

    def update_weights(self, global_steps=None):
        return type(self.worker).update_weights(self.worker, global_steps)

    def forget(self):
        """As a replica that has just joined."""
        self.worker.checkpoint_engine.held = None

    def spoil(self):
        """Somebody else writes into a weight."""
        with torch.no_grad():
            list(self.model.parameters())[-1].view(-1)[0] += 1

    def state(self):
        """sha256 of all tensors that the model computes with, by name: parameters, and what is derived from them."""
        found = dict(self.model.named_parameters())
        for name, module in self.model.named_modules():
            for owner in (module, getattr(module, "impl", None)):
                members = vars(owner).items() if owner is not None else ()
                found |= {
                    f"{name}.{key}": one
                    for key, one in members
                    if isinstance(one, torch.Tensor) and key.startswith("W_")
                }
        return {name: digest(one) for name, one in found.items()}


class Replica:
    """Stands for RolloutReplica, of an engine on devices of its own."""

    def __init__(self, ranks):
        self.workers = ranks

    async def abort_all_requests(self, reject_request=False):
        pass

    async def resume_generation(self):
        pass

    async def release_kv_cache(self):
        [one() for one in Group(self.workers).call("sleep", ((), {}))]

    async def resume_kv_cache(self):
        [one() for one in Group(self.workers).call("wake_up", ((), {}))]


class Sides:
    """The manager, and both sides for what a test asks of them."""

    def __init__(self, trainers, engines):
        from verl.checkpoint_engine import base

        base.ray = SimpleNamespace(get=lambda results: [one() for one in results])
        base.RayWorkerGroup, base.RayClassWithInitArgs = Group, lambda cls: None
        Group.store = TCPStore(*PLACE, is_master=False, timeout=timedelta(minutes=10))
        self.trainers, self.engines = Group(trainers), Group(engines)
        config = SimpleNamespace(backend=BACKEND, custom_backend_module=None)
        self.manager = base.CheckpointEngineManager(config, self.trainers, [Replica(engines)])

    def ask(self, group, name, *args):
        return [one() for one in group.call(name, (args, {}))]

    def update(self):
        """[share of elements that were sent, bytes of them]"""
        found = asyncio.run(type(self.manager).update_weights.__wrapped__(self.manager)) or {}
        return [found.get(f"checkpoint_engine/{name}", 0) for name in ("changed_ratio", "payload_mbytes")]

    def state(self):
        return self.ask(self.engines, "state")


def in_a_thread(function):
    """Its result and error come back by the list that is returned, [thread, value]."""
    found = []

    def run():
        try:
            found.append(function())
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found
