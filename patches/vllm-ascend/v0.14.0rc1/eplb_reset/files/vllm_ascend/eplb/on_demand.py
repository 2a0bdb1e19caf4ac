"""Dynamic expert load balancing that is started and stopped by whoever drives the engine.

Upstream starts the planner with the model runner and never ends it. Between the rollouts of reinforcement learning
that is wrong: the planner and its buffers stay, and new weights arrive. The weight loader writes experts where the map
of the start says (`_expert_map`, which balancing never changes), while tokens go where `log2phy` says, which balancing
does change; so an update after any move gives experts the weights of others. Sleep mode at level 2 discards `log2phy`
too.

With `additional_config["eplb_config"]["on_demand"]` an engine starts without balancing, and
- `start` makes planner, buffers and statistics anew, for the weights as they are now;
- `stop` ends all that and leaves maps and weights as they were before the first start.
Both are collective: every rank of the engine calls them, between two steps.
"""

import queue
from multiprocessing import Manager
from typing import NamedTuple

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_ep_group

from vllm_ascend.eplb.adaptor.vllm_adaptor import VllmEplbAdaptor
from vllm_ascend.eplb.core.eplb_device_transfer_loader import D2DExpertWeightLoader, ExpertWeightUpdateState
from vllm_ascend.eplb.core.eplb_utils import generate_log2phy_map
from vllm_ascend.eplb.core.eplb_worker import EplbProcess
from vllm_ascend.eplb.eplb_updator import EplbUpdator
from vllm_ascend.eplb.utils import model_register

KEY = 'additional_config["eplb_config"]["on_demand"]'
PLANNER_POLL_S = 5.0
PLANNER_END_S = 5.0


class Move(NamedTuple):
    """One expert's weights from a slot of one rank to a slot of another, or of the same."""

    source: int
    source_slot: int
    target: int
    target_slot: int


def moves_between(current: torch.Tensor, wanted: torch.Tensor) -> list[Move]:
    """
    List what has to move in one layer, in the same order on every rank.

    Args:
        current, wanted: integers (ranks, experts): the slot of an expert on a rank, or -1

    Returns:
        the moves; a rank that holds the expert in another slot is its own source
    """
    moves = []
    for target, expert in (wanted >= 0).nonzero().tolist():
        if current[target, expert] == wanted[target, expert]:
            continue
        holders = (current[:, expert] >= 0).nonzero().flatten().tolist()
        source = target if target in holders else holders[0]
        moves.append(Move(source, int(current[source, expert]), target, int(wanted[target, expert])))
    return moves


class UnquantizedAdaptor(VllmEplbAdaptor):
    """Upstream's adaptor for weights without quantization, which upstream's own constructor cannot read."""

    def __init__(self, model):
        self.model = model
        self.rank_id = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.num_dense_layers = getattr(model.config, "first_k_dense_replace", 0)
        self.num_moe_layers = model.config.num_hidden_layers - self.num_dense_layers
        self.expert_map_per_layer_cpu = {}
        self.expert_param_per_layer = {}
        self.log2phy_map_per_layer = {}
        for index in self.layer_ids():
            experts = self.experts(index)
            weights = zip(experts.w13_weight.data, experts.w2_weight.data, strict=True)
            self.expert_param_per_layer[index] = [list(slot) for slot in weights]
            self.log2phy_map_per_layer[index] = experts.get_log2phy_map()
        self._refuse_weights_not_processed()
        first = self.expert_param_per_layer[self.num_dense_layers]
        self.buffer_tensor_list = [[torch.empty_like(weight) for weight in slot] for slot in first]

    def layer_ids(self) -> range:
        return range(self.num_dense_layers, self.num_dense_layers + self.num_moe_layers)

    def experts(self, layer_id: int):
        return self.model.model.layers[layer_id].mlp.experts

    def buffer_bytes(self) -> int:
        return sum(weight.nbytes for slot in self.buffer_tensor_list for weight in slot)

    def _refuse_weights_not_processed(self):
        # NPUWorker.wake_up transposes the weights into the layout that they are loaded in, as views.
        for slots in self.expert_param_per_layer.values():
            if not all(weight.is_contiguous() for slot in slots for weight in slot):
                raise RuntimeError(
                    "expert weights are in the layout for loading: process_weights_after_loading must run after an "
                    "update (verl: actor_rollout_ref.rollout.moe_update_weights=True), before balancing starts"
                )


class OnDemandUpdator(EplbUpdator):
    """Upstream's updator, but a planner that has died is an error instead of an endless wait on every rank."""

    def take_update_info_from_eplb_process(self):
        while self.get_update_info_flag():
            try:
                self.update_info_all = self.eplb_process.block_update_q.get(timeout=PLANNER_POLL_S)
                return
            except queue.Empty:
                if not self.process.is_alive():
                    raise RuntimeError(f"the EPLB planner has died (exit code {self.process.exitcode})") from None


class OnDemandEplb:
    """Balancing of one model runner's experts between `start` and `stop`."""

    def __init__(self, runner):
        self.runner = runner
        self.running = False
        self.broken = False
        self.initial = None
        self._forget()

    @classmethod
    def of(cls, runner) -> "OnDemandEplb":
        """Get the one that belongs to `runner`."""
        if not hasattr(runner, "on_demand_eplb"):
            runner.on_demand_eplb = cls(runner)
        return runner.on_demand_eplb

    def check(self) -> None:
        """Raise RuntimeError, or NotImplementedError, when this engine's experts cannot be balanced on demand."""
        runner = self.runner
        if not getattr(runner.ascend_config.eplb_config, "on_demand", False):
            raise RuntimeError(f"this engine does not balance its experts on demand: set {KEY} to True")
        model_type = runner.model_config.hf_text_config.model_type
        if model_type not in ("qwen3_moe", "deepseek_v2", "deepseek_v3"):
            raise NotImplementedError(f"EPLB knows qwen3_moe, deepseek_v2 and deepseek_v3, not {model_type}")
        _refuse_dense_layers_in_between(runner.model_config.hf_text_config)
        if runner.vllm_config.quant_config is not None:
            raise NotImplementedError(f"{KEY} is for unquantized weights, which training can update")
        if runner.lora_config is not None:
            raise NotImplementedError(f"{KEY} does not work with LoRA, which wraps the layers of experts")
        ranks = get_ep_group().ranks
        if list(ranks) != list(range(dist.get_world_size())):
            raise NotImplementedError(
                f"EPLB exchanges experts over all {dist.get_world_size()} processes, but those of this engine are "
                f"{list(ranks)}: make tensor parallel times data parallel size equal to their number"
            )

    def start(self, reloaded: bool = False) -> dict[str, int]:
        """
        Begin to balance, from the initial placement and with empty statistics.

        Args:
            reloaded: after `abort`, that all weights have been loaded since; the engine cannot see that itself

        Returns:
            planner_pid, and buffer_bytes: device memory taken until `stop`

        Raises:
            RuntimeError: when it runs already, within a step, when weights are not processed after loading, or after
                `abort` without `reloaded`
        """
        self.check()
        if self.running:
            raise RuntimeError("expert load balancing runs already: eplb_stop() comes first")
        if self.broken and not reloaded:
            raise RuntimeError(
                "balancing of this engine's experts ended with an error, and they may not be where they belong: make "
                "the engine anew, or load all weights and call eplb_start(reloaded=True)"
            )
        self._refuse_within_step()
        model = self.runner.get_model()
        model_register(model, self.runner.model_config)
        adaptor = UnquantizedAdaptor(model)
        self.initial = self.initial or _placement(adaptor)
        # Also after `stop` has done it: sleep mode discards log2phy and the loads, which are no buffers of the model.
        _write_placement(adaptor, self.initial)
        model.clear_all_moe_loads()
        self._launch(adaptor)
        self.broken = False
        return {"planner_pid": self.process.pid, "buffer_bytes": adaptor.buffer_bytes()}

    def stop(self) -> dict[str, int]:
        """
        End balancing: planner, transfers, buffers; maps, loads and weights are then as before the first start.

        Weights are moved back, although most callers overwrite them next, so that there is no state in which maps and
        weights differ: not for adapters, partial updates, sleep mode at level 1, or an engine that is not updated.

        Returns:
            moved_experts: how many slots of all ranks and layers did not hold their initial expert (0 if not running)

        Raises:
            whatever the exchange does; then as after `abort`
        """
        if not self.running:
            return {"moved_experts": 0}
        self._refuse_within_step()
        self.runner.dynamic_eplb = False
        try:
            moved = self._bring_home()
        except BaseException:
            self.abort()
            raise
        self._forget()
        return {"moved_experts": moved}

    def abort(self) -> None:
        """
        End planner and buffers after an error, without the other ranks.

        Experts stay where balancing has put them, on this rank and maybe not on others: the engine must not compute any
        more, and `start` refuses it until all weights have been loaded again.
        """
        if self.running:
            self.broken = True
            self._give_up()

    def _refuse_within_step(self):
        if self.runner.execute_model_state is not None:
            raise RuntimeError("expert load balancing can be started and stopped between two steps only")

    def _launch(self, adaptor):
        config = self.runner.ascend_config.eplb_config
        self.running = True
        try:
            self.adaptor = adaptor
            self.manager = Manager()
            shared = self.manager.dict({"expert_map": None, "moe_load": None, "expert_maps": None})
            self.planner = EplbProcess(shared_dict=shared, policy_type=config.eplb_policy_type, enable_d2d=True)
            _tell_each_layer_once(self.planner.worker)
            self.process = self.planner._launch_process()
            self.loader = D2DExpertWeightLoader()
            self.loader.set_adator(adaptor)
            self.updator = OnDemandUpdator(config, self.loader, self.planner, self.process)
            self.updator.set_adaptor(adaptor)
            self.updator.warm_up_eplb()
        except BaseException:
            self._give_up()  # no step has run: the experts are where they belong
            raise
        # From here on the runner calls the updator in every step.
        self.runner.eplb_updator = self.updator
        self.runner.dynamic_eplb = True

    def _give_up(self):
        self.runner.dynamic_eplb = False
        try:
            self._end_planner()
        finally:
            self._forget()

    def _bring_home(self) -> int:
        self._finish_transfer()
        self._end_planner()
        moves = self._moves_home()
        for layer_id, of_layer in moves.items():
            _carry_out(self.adaptor, layer_id, of_layer)
        _write_placement(self.adaptor, self.initial)
        self.adaptor.model.clear_all_moe_loads()
        return sum(map(len, moves.values()))

    def _finish_transfer(self):
        # A request that is dropped while its peer still sends writes into freed memory. The map says nothing of these
        # experts yet, so what was received may be forgotten.
        if self.loader.state == ExpertWeightUpdateState.TRANSFERRING:
            for request in self.updator.reqs:
                request.wait()

    def _end_planner(self):
        # Forgotten first: when the stop fails later on, what has been ended is not ended again.
        process, planner, manager = self.process, self.planner, self.manager
        self.process = self.planner = self.manager = None
        if process is not None:
            process.terminate()
            process.join(PLANNER_END_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        if planner is not None:
            for each in (planner.planner_q, planner.block_update_q):
                each.close()
                each.join_thread()
        if manager is not None:
            manager.shutdown()

    def _moves_home(self) -> dict[int, list[Move]]:
        rows = [self.adaptor.expert_map_per_layer_cpu[index] for index in self.adaptor.layer_ids()]
        mine = torch.stack(rows).to(self.updator.device)
        every = mine.new_empty((self.adaptor.world_size * len(mine), mine.shape[1]))
        # Each rank knows its own row only; the planner's map is what is to come, not what has been done.
        dist.all_gather_into_tensor(every, mine)
        current = every.view(self.adaptor.world_size, *mine.shape).permute(1, 0, 2).cpu()
        wanted = self.initial[0]
        return {
            layer_id: moves_between(now, then)
            for layer_id, now, then in zip(self.adaptor.layer_ids(), current, wanted, strict=True)
        }

    def _forget(self):
        self.adaptor = self.loader = self.manager = self.planner = self.process = self.updator = None
        self.runner.eplb_updator = None
        self.running = False


def _refuse_dense_layers_in_between(config):
    """Upstream's EPLB, and this, take every layer after the first dense ones for one of experts."""
    for key, in_every_layer in (("mlp_only_layers", []), ("decoder_sparse_step", 1), ("moe_layer_freq", 1)):
        value = getattr(config, key, None)
        if value not in (None, in_every_layer):
            raise NotImplementedError(
                f"EPLB needs experts in every layer after the first dense ones, but the model's {key} is {value}"
            )


def _placement(adaptor: UnquantizedAdaptor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Get the placement before the first start.

    Returns:
        expert maps (layers, ranks, experts) and log2phy (layers, experts), both int32, on the CPU
    """
    every = [adaptor.experts(index).global_expert_map for index in adaptor.layer_ids()]
    # Not read from the layers: sleep mode may have discarded log2phy before. Without a map file all layers are alike.
    log2phy = generate_log2phy_map(every[0], adaptor.rank_id)
    return torch.stack(every), torch.stack([log2phy] * len(every))


def _write_placement(adaptor: UnquantizedAdaptor, placement: tuple[torch.Tensor, torch.Tensor]):
    # In place: captured graphs read log2phy at its address.
    for layer_id, expert_maps, log2phy in zip(adaptor.layer_ids(), *placement, strict=True):
        experts = adaptor.experts(layer_id)
        experts.global_expert_map.copy_(expert_maps)
        experts.get_log2phy_map().copy_(log2phy)


def _carry_out(adaptor: UnquantizedAdaptor, layer_id: int, moves: list[Move]):
    """Move a layer's expert weights: all into buffers first, because a slot may be source and target."""
    slots, operations, arrivals = adaptor.expert_param_per_layer[layer_id], [], []
    for move in moves:
        if move.target == adaptor.rank_id:
            buffer = adaptor.buffer_tensor_list[len(arrivals)]
            arrivals.append((move.target_slot, buffer))
            if move.source == adaptor.rank_id:
                for weight, copy in zip(slots[move.source_slot], buffer, strict=True):
                    copy.copy_(weight)
            else:
                operations += [dist.P2POp(dist.irecv, copy, move.source) for copy in buffer]
        elif move.source == adaptor.rank_id:
            operations += [dist.P2POp(dist.isend, weight, move.target) for weight in slots[move.source_slot]]
    for request in dist.batch_isend_irecv(operations) if operations else []:
        request.wait()
    for slot, buffer in arrivals:
        for weight, copy in zip(slots[slot], buffer, strict=True):
            weight.copy_(copy)


def _tell_each_layer_once(worker):
    """
    Make the planner yield one update a layer.

    Upstream yields twice for a layer that stays as it is. The engine takes as many updates as there are layers, so the
    last ones are never done, while the planner believes they are: from the next round on tokens reach wrong experts.
    """
    upstreams = worker.compose_expert_update_info_greedy

    def compose_once(updated_expert_maps, current_expert_maps):
        told = set()
        for update in upstreams(updated_expert_maps, current_expert_maps):
            layer_id = update[3]
            if layer_id not in told:
                told.add(layer_id)
                yield update

    worker.compose_expert_update_info_greedy = compose_once
