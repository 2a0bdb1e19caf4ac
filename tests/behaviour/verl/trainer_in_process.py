"""Runs verl's real trainers (RayPPOTrainer.fit, or a subclass's) in one process, on a CPU, with a tiny model.

Real: the configuration (composed by Hydra), the dataset, the trainer with its `__init__` and `fit`, the advantages, the
FSDP worker's methods over `DataParallelPPOActor` with AdamW, and `HFRollout`'s generation. What is replaced is the
transport and the rollout's part of the worker: `Workers` stands in for RayWorkerGroup. It splits a batch over the
engines as the dispatch mode DP_COMPUTE_PROTO does, and gives the whole batch to one process for training.

    import trainer_in_process as tip            # first: it sets what torch.distributed and verl need

    config = tip.compose_config(MODEL, "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2")
    workers = tip.Workers(config, engines=2)    # a subclass may override generate, reward or any worker method
    steps = tip.fit(config, workers)            # the metrics of each step, in order: [{"actor/entropy": ...}, ...]
    workers.calls                               # ["generate_sequences", "compute_log_prob", "update_actor", ...]
    workers.prompts[0][1]                       # call 0, engine 1: token ids of each prompt, without the padding
    workers.trained[0]                          # the DataProto that the first update_actor received
    workers.model                               # the Hugging Face model that was trained

`fit(..., trainer=RayDAPOTrainer)` runs another trainer; compose_config(..., name="dapo_trainer") its configuration.
Sampling uses torch's global generator, seeded by `fit`, so that two runs with the same settings give the same tokens.
"""

import os

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

import copy

import torch

# verl asks its device for these, and torch.cpu is the one that has none of them.
torch.cpu.empty_cache = lambda: None
torch.cpu.memory_allocated = torch.cpu.memory_reserved = lambda: 0
torch.cpu.max_memory_allocated = torch.cpu.max_memory_reserved = lambda: 0

PROMPTS = 8
PROMPT_LENGTH = 32
RESPONSE_LENGTH = 8
LEARNING_RATE = 1e-2
SETTINGS = {
    "data.train_batch_size": 4,
    "data.max_prompt_length": PROMPT_LENGTH,
    "data.max_response_length": RESPONSE_LENGTH,
    "data.dataloader_num_workers": 0,
    "data.shuffle": False,
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 2,
    "actor_rollout_ref.rollout.name": "hf",
    "actor_rollout_ref.rollout.mode": "sync",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.actor.use_torch_compile": False,
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    "trainer.logger": "[console]",
    "trainer.total_epochs": 1,
    "trainer.total_training_steps": 2,
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
}


def compose_config(model, *overrides, name="ppo_trainer", folder=None):
    """The configuration `name` of verl's trainers with SETTINGS and `overrides`; a later override wins.

    `folder` holds `name` where it is not verl/trainer/config; verl's own folder is searched then too. The data set
    (PROMPTS sums, as parquet) is written to the current folder, which is the probe's own.
    """
    import verl
    from hydra import compose, initialize_config_dir

    configs = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    values = [f"{key}={value}" for key, value in SETTINGS.items()]
    values += [f"data.{kind}_files={_write_prompts()}" for kind in ("train", "val")]
    values += [f"actor_rollout_ref.model.path={model}"]
    if folder:
        values += [f"hydra.searchpath=[file://{configs}]"]
    with initialize_config_dir(str(folder or configs), version_base=None):
        return compose(name, overrides=[*values, *overrides])


def _write_prompts():
    import pandas

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{number}+{number}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
            "extra_info": {"index": number},
        }
        for number in range(PROMPTS)
    ]
    path = os.path.abspath("prompts.parquet")
    pandas.DataFrame(rows).to_parquet(path)
    return path


def reward(batch, return_dict=False):
    """A score between 0 and 1 on the last position, from the response's tokens alone: order does not change it."""
    responses = batch.batch["responses"]
    scores = torch.zeros(responses.shape, dtype=torch.float32)
    scores[:, -1] = (responses.sum(-1) % 97) / 97
    return {"reward_tensor": scores, "reward_extra_info": {}} if return_dict else scores


class Workers:
    """The worker group that the trainer calls. `engines` is the number of rollout engines (and its world_size).

    Every method is given a copy of the batch, as a worker in another process is: what it writes there stays there.
    """

    def __init__(self, config, engines=1):
        from transformers import AutoModelForCausalLM

        _init_process_group()
        self.config = config.actor_rollout_ref
        self.world_size = engines
        self.calls = []
        self.prompts = []
        self.trained = []
        self.model = AutoModelForCausalLM.from_pretrained(self.config.model.path, dtype=torch.float32)
        self.worker = _fsdp_worker(self.config, self.model)
        self.rollout = _hf_rollout(self.config.rollout, self.model)

    def generate_sequences(self, batch):
        from verl import DataProto

        self.calls.append("generate_sequences")
        shards = copy.deepcopy(batch).chunk(self.world_size)
        self.prompts.append([_token_ids(shard) for shard in shards])
        output = DataProto.concat([self.generate(shard, rank) for rank, shard in enumerate(shards)])
        output.meta_info["timing"] = {}
        return output

    def generate(self, shard, rank):
        """What engine `rank` generates for its shard: a DataProto as HFRollout makes it."""
        shard.meta_info.update(eos_token_id=2, pad_token_id=0)
        return self.rollout._generate_minibatch(shard)

    def compute_log_prob(self, batch):
        self.calls.append("compute_log_prob")
        return self.worker.compute_log_prob(copy.deepcopy(batch))

    def compute_ref_log_prob(self, batch):
        self.calls.append("compute_ref_log_prob")
        return self.worker.compute_ref_log_prob(copy.deepcopy(batch))

    def update_actor(self, batch):
        self.calls.append("update_actor")
        self.trained.append(copy.deepcopy(batch))
        return self.worker.update_actor(copy.deepcopy(batch))


def _fsdp_worker(config, model):
    """verl's FSDP worker for one process, with its own compute_log_prob, compute_ref_log_prob and update_actor.

    Its `__init__` and `init_model` are left out: they need NCCL and flash attention. What they set is set here, with
    the sizes normalised as they do for a data-parallel size of one; the model is not wrapped by FSDP.
    """
    from omegaconf import open_dict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.flops_counter import FlopsCounter
    from verl.workers.actor.dp_actor import DataParallelPPOActor
    from verl.workers.fsdp_workers import ActorRolloutRefWorker
    from verl.workers.sharding_manager.fsdp_ulysses import FSDPUlyssesShardingManager

    class Worker(ActorRolloutRefWorker):
        world_size = 1  # a property that reads what Worker.__init__ registers with Ray

    worker = Worker.__new__(Worker)
    worker.config = copy.deepcopy(config)
    with open_dict(worker.config):
        worker.config.actor.ppo_mini_batch_size *= config.rollout.n  # prompts before, responses afterwards
    worker._is_actor = worker._is_ref = True
    worker._is_lora = worker._is_offload_param = worker._is_offload_optimizer = False
    worker.ulysses_sharding_manager = FSDPUlyssesShardingManager(None)
    worker.flops_counter = FlopsCounter(model.config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    worker.actor_lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    worker.actor = DataParallelPPOActor(omega_conf_to_dataclass(worker.config.actor), model, optimizer)
    worker.ref_policy = DataParallelPPOActor(worker.config.ref, copy.deepcopy(model))
    return worker


def _token_ids(shard):
    batch = shard.batch
    return [ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def _hf_rollout(config, model):
    from verl.workers.rollout.hf_rollout import HFRollout

    class Rollout(HFRollout):
        """HFRollout is abstract in v0.6.0: BaseRollout got methods that it was not given. Generation needs none."""

        async def release(self):
            raise NotImplementedError

        async def resume(self, tags):
            raise NotImplementedError

        async def update_weights(self, weights, **kwargs):
            raise NotImplementedError

    rollout = Rollout.__new__(Rollout)  # for the same reason HFRollout.__init__ does not fit its base class
    rollout.config, rollout.module = config, model
    return rollout


def _init_process_group():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


def make_trainer(config, workers=None, trainer=None, reward_fn=reward):
    """The trainer, constructed by its own `__init__` (which refuses wrong settings) and given `workers`."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, ResourcePoolManager
    from verl.trainer.ppo.utils import Role
    from verl.utils import hf_tokenizer

    config = copy.deepcopy(config)  # __init__ writes to it
    roles = [Role.ActorRollout]
    if config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        roles.append(Role.RefPolicy)
    pools = ResourcePoolManager({"pool": [config.trainer.n_gpus_per_node]}, dict.fromkeys(roles, "pool"))
    made = (trainer or RayPPOTrainer)(
        config=config,
        tokenizer=hf_tokenizer(config.actor_rollout_ref.model.path),
        role_worker_mapping=dict.fromkeys(roles, Workers),
        resource_pool_manager=pools,
        reward_fn=reward_fn,
        val_reward_fn=reward_fn,
        device_name="cpu",
    )
    made.actor_rollout_wg = made.ref_policy_wg = workers
    made.async_rollout_mode = False
    made.rm_wg = None
    # Nothing to resume from, and nothing worth keeping: DAPO's fit saves after the last step whatever save_freq says.
    made._load_checkpoint = made._save_checkpoint = lambda: None
    return made


def fit(config, workers, trainer=None, reward_fn=reward, seed=0):
    """Runs the trainer's own `fit` and returns the metrics that it logged, one dictionary a step."""
    from verl.utils.tracking import Tracking

    made = make_trainer(config, workers, trainer, reward_fn)
    steps, log = [], Tracking.log

    def record(self, data, step, backend=None):
        steps.append(dict(data))
        log(self, data, step, backend)

    torch.manual_seed(seed)
    Tracking.log = record
    try:
        made.fit()
    finally:
        Tracking.log = log
    return steps
