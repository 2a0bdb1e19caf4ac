# SPDX-License-Identifier: Apache-2.0
"""Dynamic expert load balancing between an engine's wake_up and its sleep.

Upstream balances from the engine's start on and never puts experts back. In reinforcement learning new weights arrive:
the weight loader writes experts where the map of the start says (`_expert_map`, which balancing never changes), while
tokens go where `log2phy` says, which balancing does change. So an update after any move gives experts the weights of
others. And planner, its manager and the buffers for incoming experts stay while the model is trained.

With `additional_config["eplb_config"]["on_demand"]` an engine starts without balancing. The first step after `wake_up`
begins it, for the weights as they are then; `sleep` ends it and leaves maps and weights as they were loaded. Both are
collective, as steps and sleep are.
"""

import time
from multiprocessing import Manager
from typing import NamedTuple

import torch
import torch.distributed as dist
from vllm.logger import logger

from vllm_ascend.eplb.adaptor.vllm_adaptor import EPLB_EXPERT_WEIGHT_NAMES, VllmEplbAdaptor
from vllm_ascend.eplb.core.eplb_device_transfer_loader import D2DExpertWeightLoader, ExpertWeightUpdateState
from vllm_ascend.eplb.core.eplb_worker import EplbProcess
from vllm_ascend.eplb.eplb_updator import EplbUpdator

KEY = 'additional_config["eplb_config"]["on_demand"]'
PLANNER_POLL_S = 0.001
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


class OnDemandUpdator(EplbUpdator):
    """Upstream's updator, but a planner that has died is an error and not an endless wait of every rank."""

    def forward_before(self):
        while self.get_update_info_flag() and self.eplb_process.block_update_q.empty():
            if not self.process.is_alive() and self.eplb_process.block_update_q.empty():
                raise RuntimeError(f"the EPLB planner has died (exit code {self.process.exitcode})")
            time.sleep(PLANNER_POLL_S)
        super().forward_before()


class OnDemandEplb:
    """
    Balances one model runner's experts between `wake_up` and `sleep`.

    Raises:
        ValueError: when this engine's experts cannot be balanced on demand
    """

    def __init__(self, runner):
        _refuse(runner)
        self.runner = runner
        self.tp_size = runner.parallel_config.tensor_parallel_size
        self.awake = self.running = self.broken = False
        self.initial: tuple[torch.Tensor, torch.Tensor] | None = None
        # What the runner's constructor sets upstream; graphs are captured with it.
        config = runner.ascend_config.eplb_config
        runner.eplb_heat_collection_stage = config.eplb_heat_collection_stage
        runner.eplb_pd_thresholds = runner.max_num_reqs * runner.uniform_decode_query_len
        runner.eplb_heat_collection_status = True
        runner.dynamic_eplb = False
        self._forget()

    def wake_up(self) -> None:
        """The next step begins to balance."""
        self.awake = True

    def before_step(self) -> None:
        """
        Begin where the engine has woken up; every rank calls it in the same step, before the model runs, and after data parallel
        ranks have told each other how many tokens they have: a rank without any waits there first.

        Raises:
            RuntimeError: when experts may not be where the maps say: after a stop that failed, or when weights were
                loaded while experts were balanced; and when weights are still laid out for loading
        """
        if self.broken:
            raise RuntimeError(
                "balancing of this engine's experts ended with an error, and they may not be where they belong: make "
                "the engine anew"
            )
        if self.running:
            self._refuse_other_weights()
        elif self.awake:
            self._start()

    @torch.inference_mode()
    def stop(self) -> int:
        """
        End planner, transfers and buffers; maps, loads and weights are then as before the first step.

        Weights are moved back, although most callers overwrite them next, so that there is no state in which maps and
        weights differ: not for adapters, partial updates, sleep at level 1, or an engine that is not updated.

        Returns:
            how many slots of all ranks and layers did not hold their initial expert; 0 if it was not running

        Raises:
            RuntimeError: as `before_step`; and whatever the exchange raises, after which the engine is refused
        """
        self.awake = False
        if not self.running:
            return 0
        self._refuse_other_weights()
        self.runner.dynamic_eplb = False
        try:
            moved = self._bring_home()
        except BaseException:
            self.broken = True
            self._give_up()
            raise
        self._forget()
        logger.info("[eplb/on_demand] Balancing ended, experts moved back: %s", moved)
        return moved

    def _start(self):
        adaptor = VllmEplbAdaptor(model=self.runner.get_model())
        for slots in adaptor.expert_param_per_layer.values():
            # NPUWorker.wake_up transposes the weights into the layout that they are loaded in, as views.
            if not all(weight.is_contiguous() for slot in slots for weight in slot):
                raise RuntimeError(
                    "expert weights are laid out for loading: process_weights_after_loading must run after an update, "
                    "before the engine computes"
                )
        if self.initial is None:
            self.initial = _placement(adaptor)
        self._launch(adaptor)

    def _launch(self, adaptor):
        runner, config = self.runner, self.runner.ascend_config.eplb_config
        self.running, self.adaptor = True, adaptor
        try:
            self.manager = Manager()
            shared = self.manager.dict({"expert_map": None, "moe_load": None, "expert_maps": None})
            self.planner = EplbProcess(
                shared_dict=shared, policy_type=config.eplb_policy_type, enable_d2d=True, tp_size=self.tp_size
            )
            self.process = self.planner._launch_process()
            self.loader = D2DExpertWeightLoader()
            self.loader.set_adator(adaptor)
            self.updator = OnDemandUpdator(config, self.loader, self.planner, self.process)
            self.updator.set_adaptor(adaptor)
            adaptor.clear_all_moe_loads()  # graphs count while nothing is balanced
            self.updator.warm_up_eplb()
        except BaseException:
            self._give_up()  # no step has run: the experts are where they belong
            raise
        # From here on the runner calls the updator in every step.
        runner.eplb_updator = self.updator
        runner.dynamic_eplb = True

    def _refuse_other_weights(self):
        layer = self.adaptor.moe_layers[0]
        name = EPLB_EXPERT_WEIGHT_NAMES[self.adaptor.expert_weight_key_per_layer[0]][0]
        if getattr(layer, name) is not self.adaptor.param_dict[f"0.{name}"]:
            self.broken = True
            self._give_up()
            raise RuntimeError(
                "weights were loaded while experts were balanced, which gives experts the weights of others: put the "
                "engine to sleep before an update; make this one anew"
            )

    def _give_up(self):
        self.runner.dynamic_eplb = False
        try:
            self._end_planner()
        finally:
            self._forget()

    def _bring_home(self) -> int:
        # A request that is dropped while its peer still sends writes into freed memory. The map says nothing of these
        # experts yet, so what was received may be forgotten.
        if self.loader.state == ExpertWeightUpdateState.TRANSFERRING:
            for request in self.updator.reqs:
                request.wait()
        self._end_planner()
        group = self.updator.comm_group
        rows = [self.adaptor.expert_map_per_layer_cpu[index] for index in range(self.adaptor.num_moe_layers)]
        # Each rank knows its own row only; the planner's map is what is to come, not what has been done.
        mine = torch.stack(rows).to(self.updator.device)
        current = group.all_gather(mine.unsqueeze(1), dim=1).cpu()
        moved = 0
        for layer_id, (now, then) in enumerate(zip(current, self.initial[0], strict=True)):
            moves = moves_between(now, then)
            _carry_out(self.adaptor, group, layer_id, moves)
            moved += len(moves)
        _write_placement(self.adaptor, self.initial)
        self.adaptor.clear_all_moe_loads()
        return moved

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

    def _forget(self):
        self.adaptor = self.loader = self.manager = self.planner = self.process = self.updator = None
        self.runner.eplb_updator = None
        self.running = False


def _refuse(runner):
    if not runner.model_config.enable_sleep_mode:
        raise ValueError(f"{KEY} balances between wake_up and sleep: set enable_sleep_mode=True")
    if runner.vllm_config.quant_config is not None:
        raise ValueError(f"{KEY} is for unquantized weights, which training can update")
    if runner.vllm_config.lora_config is not None:
        raise ValueError(f"{KEY} does not work with LoRA, which wraps the layers of experts")
    if runner.ascend_config.enable_fused_mc2 == 1:
        raise ValueError(
            f"{KEY} does not work with enable_fused_mc2=1, which takes weights apart so that none can be loaded again"
        )


def _placement(adaptor: VllmEplbAdaptor) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Get the placement before the first start.

    Returns:
        expert maps (layers, ranks, experts) and log2phy (layers, experts), both int32, on the CPU
    """
    layers = adaptor.moe_layers
    maps, places = [layer.global_expert_map for layer in layers], [layer.get_log2phy_map() for layer in layers]
    return torch.stack(maps).cpu(), torch.stack(places).cpu()


def _write_placement(adaptor: VllmEplbAdaptor, placement: tuple[torch.Tensor, torch.Tensor]):
    # In place: captured graphs read log2phy at its address.
    for layer, expert_maps, log2phy in zip(adaptor.moe_layers, *placement, strict=True):
        layer.global_expert_map.copy_(expert_maps)
        layer.get_log2phy_map().copy_(log2phy)


def _carry_out(adaptor: VllmEplbAdaptor, group, layer_id: int, moves: list[Move]):
    """Move a layer's expert weights: all into buffers first, because a slot may be source and target."""
    slots = adaptor.expert_param_per_layer[layer_id]
    buffers = adaptor.buffer_tensor_list[adaptor.expert_weight_key_per_layer[layer_id]]
    operations: list[dist.P2POp] = []
    arrivals: list[tuple[int, list[torch.Tensor]]] = []

    def exchange(what, weights, rank):
        return [dist.P2POp(what, one, group.ranks[rank], group=group.device_group) for one in weights]

    for move in moves:
        if move.target == group.rank_in_group:
            buffer = buffers[len(arrivals)]
            arrivals.append((move.target_slot, buffer))
            if move.source == group.rank_in_group:
                for weight, copy in zip(slots[move.source_slot], buffer, strict=True):
                    copy.copy_(weight)
            else:
                operations += exchange(dist.irecv, buffer, move.source)
        elif move.source == group.rank_in_group:
            operations += exchange(dist.isend, slots[move.source_slot], move.target)
    for request in dist.batch_isend_irecv(operations) if operations else []:
        request.wait()
    for slot, buffer in arrivals:
        for weight, copy in zip(slots[slot], buffer, strict=True):
            weight.copy_(copy)
