"""Probe: DataProto.concat on batches as ranks return them; prints what came of each case."""

import json

import numpy as np
import torch
from verl import DataProto
from verl.single_controller.base.decorator import _concat_data_proto_or_future


def ranks(*meta_infos):
    """One batch a rank, two rows each, numbered through."""
    return [
        DataProto.from_dict({"row": torch.arange(2 * rank, 2 * rank + 2)}, meta_info=meta_info)
        for rank, meta_info in enumerate(meta_infos)
    ]


def outcome(*meta_infos):
    """The merged meta_info, or the kind and text of the refusal."""
    return attempt(lambda: DataProto.concat(ranks(*meta_infos)).meta_info)


def attempt(action):
    try:
        return action()
    except Exception as error:
        return {"refused": type(error).__name__, "message": str(error)}


def timing_of_three_ranks():
    """Through the function with which a worker group collects what its ranks return."""
    batches = ranks(
        {"timing": {"generate_sequences": 1.5, "generation_timing/min": 1.25, "reshard": {"send": 0.5}}, "step": 7},
        {"timing": {"generate_sequences": 2.5, "generation_timing/min": 1.5, "reshard": {"send": 0.25}}, "step": 7},
        {"timing": {"generate_sequences": 2.0, "generation_timing/min": 1.0, "only_here": 3.0}, "step": 7},
    )
    merged = _concat_data_proto_or_future(batches)
    inputs = [batch.meta_info["timing"]["generate_sequences"] for batch in batches]
    return {"rows": merged.batch["row"].tolist(), "meta_info": merged.meta_info, "inputs": inputs}


def what_the_trainer_logs():
    """ray_trainer.fit puts the merged timing into timing_raw, of which compute_timing_metrics makes log values."""
    from verl.trainer.ppo.metric_utils import compute_timing_metrics

    merged = DataProto.concat(ranks({"timing": {"gen": 1.0, "ref": 4.0}}, {"timing": {"gen": 2.0, "ref": 3.0}}))
    timing_raw = {"step": 10.0}
    timing_raw.update(merged.meta_info["timing"])
    tokens = {"responses": torch.ones(4, 5), "attention_mask": torch.ones(4, 10), "response_mask": torch.ones(4, 5)}
    return compute_timing_metrics(DataProto.from_dict(tokens), timing_raw)


def one_rank_without_timing():
    return {
        "absent": outcome({"timing": {"gen": 1.0}}, {}),
        "none": outcome({"timing": None}, {"timing": {"gen": 1.0}}),
        "all_none": outcome({"timing": None}, {"timing": None}),
        "single": outcome({"timing": {"gen": 1.0}}),
    }


def other_keys():
    tensor, array = torch.tensor([1, 2]), np.array([1, 2])
    return {
        "conflict": outcome({"temperature": 1.0}, {"temperature": 0.9}),
        "conflict_by_little": outcome({"global_steps": 1.0}, {"global_steps": 1.0 + 1e-9}),
        "conflict_nested": outcome({"sampling": {"timing": 1.0}}, {"sampling": {"timing": 2.0}}),
        "similar_name": outcome({"timing_s": 1.0}, {"timing_s": 2.0}),
        "equal": outcome({"eos_token_id": [1, 2]}, {"eos_token_id": [1, 2]}),
        "on_one_rank": outcome({"a": 1}, {"b": 2}),
        "metrics": outcome({"metrics": {"loss": 1.0}}, {"metrics": {"loss": 2.0}}),
        "tensor": outcome({"t": tensor}, {"t": tensor + 1})["refused"],
        "array": outcome({"t": array}, {"t": array + 1})["refused"],
    }


def equal_timing():
    timing = {"gen": 1.0, "generation_timing/min": 0.5, "name": "rollout"}
    return outcome({"timing": timing}, {"timing": dict(timing)})


CASES = (timing_of_three_ranks, what_the_trainer_logs, one_rank_without_timing, other_keys, equal_timing)
print(json.dumps({case.__name__: attempt(case) for case in CASES}))
