"""Near ties of a router. The engine computes in bf16, Hugging Face's model here in float32: where two experts, or two groups of
them, are nearly as good as each other, rounding chooses between them, and what follows is another answer and as right.

Takes nothing back that is not such a tie: an answer has to be Hugging Face's with single choices, each within `tie` logits, turned round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

SLOPE = 0.25  # of a sigmoid, at most


@dataclass(frozen=True)
class Turn:
    """At `position` of a layer's router, `worse` are chosen and `better` are not: their scores change by `shift`."""

    layer: int
    position: int
    margin: float  # logits
    shift: float
    better: tuple[int, ...]
    worse: tuple[int, ...]


class Routers:
    """The routers of Hugging Face's Qwen3Moe (a linear layer, in transformers 5 with what follows it) or DeepseekV3 (sigmoids, groups),
    with `turns` in effect."""

    def __init__(self, model: Any) -> None:
        self.turns: list[Turn] = []
        self._scores: dict[int, torch.Tensor] = {}
        self._config = model.config
        self._gates = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
        for layer, gate in enumerate(self._gates):
            if isinstance(gate, torch.nn.Linear):
                gate.register_forward_hook(lambda _, __, logits, layer=layer: self._turned(layer, logits))
            elif not _has_groups(gate):
                gate.forward = partial(self._top, layer, gate)
            elif hasattr(gate, "get_topk_indices"):
                gate.get_topk_indices = partial(self._chosen, layer, gate.get_topk_indices)
            else:
                gate.register_forward_hook(lambda _, __, logits, layer=layer: self._logits(layer, logits))

    def near(self, tie: float) -> list[Turn]:
        """What is within `tie` in the last run, the nearest first."""
        found = []
        for layer, scores in self._scores.items():
            for position, row in enumerate(scores + self._bias(layer)):
                found += [turn for turn in self._of(layer, position, row) if turn.margin <= tie]
        return sorted(found, key=lambda turn: turn.margin)

    def _of(self, layer: int, position: int, row: torch.Tensor) -> list[Turn]:
        count, slope = len(row), 1.0
        groups, kept = 1, 1
        if _has_groups(self._gates[layer]):
            groups, kept, slope = self._config.n_group, self._config.topk_group, SLOPE
        by_group = row.view(groups, -1)
        order = by_group.topk(min(2, by_group.shape[1])).values.sum(-1).sort(descending=True)
        inside = torch.full_like(by_group, -torch.inf)
        inside[order.indices[:kept]] = by_group[order.indices[:kept]]
        best = inside.flatten().sort(descending=True)
        k = self._config.num_experts_per_tok
        found = []

        def turn(apart: torch.Tensor, better: torch.Tensor, worse: torch.Tensor) -> None:
            each = float(apart) / len(better)
            shift = each / 2 + 1e-5
            found.append(Turn(layer, position, each / slope, shift, tuple(better.tolist()), tuple(worse.tolist())))

        if k < count // groups * kept:
            turn(best.values[k - 1] - best.values[k], best.indices[k - 1 : k], best.indices[k : k + 1])
        if kept < groups:
            last, next_ = order.indices[kept - 1], order.indices[kept]
            two = [by_group[group].topk(2).indices + group * by_group.shape[1] for group in (last, next_)]
            turn(order.values[kept - 1] - order.values[kept], *two)
        return found

    def _bias(self, layer: int) -> torch.Tensor | float:
        return getattr(self._gates[layer], "e_score_correction_bias", 0.0)

    def _chosen(self, layer: int, choose: Any, scores: torch.Tensor) -> torch.Tensor:
        return choose(self._turned(layer, scores))

    def _top(self, layer: int, gate: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A Qwen3MoeTopKRouter's forward."""
        logits = self._turned(layer, torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight))
        weights, chosen = logits.softmax(-1, dtype=torch.float).topk(gate.top_k)
        if gate.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), chosen

    def _logits(self, layer: int, logits: torch.Tensor) -> torch.Tensor:
        """Of transformers 5's DeepseekV3TopkRouter, whose layer takes their sigmoids."""
        scores = self._turned(layer, logits.sigmoid())
        return torch.logit(scores) if any(turn.layer == layer for turn in self.turns) else logits

    def _turned(self, layer: int, scores: torch.Tensor) -> torch.Tensor:
        """The scores with the turns in them; in place, since a sigmoid's are read again for the weights."""
        self._scores[layer] = scores.detach().clone()
        for turn in self.turns:
            if turn.layer == layer:
                scores[turn.position, list(turn.better)] -= turn.shift
                scores[turn.position, list(turn.worse)] += turn.shift
        return scores


def _has_groups(gate: Any) -> bool:
    return hasattr(gate, "e_score_correction_bias")


def explained(model: Any, prompt: list[int], said: list[int], limit: float, tie: float) -> tuple[float, list[Turn]]:
    """How far `said` is below the best at its worst place when near ties are turned until it is within `limit`, and the turns; as
    far as without, and none, when they do not explain it."""
    routers = Routers(model)
    first = behind = behind_at(model, prompt, said)
    while (worst := float(behind.max())) > limit:
        place = int((behind > limit).nonzero()[0])
        for turn in routers.near(tie):
            if turn.position > len(prompt) - 1 + place or turn in routers.turns:
                continue
            routers.turns.append(turn)
            tried = behind_at(model, prompt, said)
            if float(tried[: place + 1].max()) <= limit:
                behind = tried
                break
            routers.turns.pop()
        else:
            return float(first.max()), []
    return worst, routers.turns


def behind_at(model: Any, prompt: list[int], said: list[int]) -> torch.Tensor:
    """Logits of the best token less those of the one that was said, at each place."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].float()
    return logits.max(-1).values - logits.gather(-1, torch.tensor(said)[:, None])[:, 0]
