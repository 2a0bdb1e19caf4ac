# Copyright (c) 2026, NVIDIA CORPORATION. All rights reserved.

import pytest
import torch

from megatron.core.dist_checkpointing import load, save
from megatron.core.utils import is_torch_min_version
from tests.unit_tests.dist_checkpointing import TempNamedDir, setup_model_and_optimizer
from tests.unit_tests.test_utilities import Utils

UNUSED = 'max_exp_avg_sq'


class Adam(torch.optim.Optimizer):
    """Without `step` in its state, like the fused ones. The tests set the state."""

    def __init__(self, params, **kwargs):
        super().__init__(params, kwargs)


@pytest.mark.skipif(
    not is_torch_min_version("2.6a0"), reason="dp_reshardable requires PyTorch 2.6a0 or later"
)
class TestOptimizerNoneState:
    """An optimizer may keep a slot that it does not use as None (Adam without amsgrad)."""

    @pytest.fixture(autouse=True)
    def setup(self, monkeypatch):
        monkeypatch.setattr('megatron.core.optimizer.Adam', Adam)
        monkeypatch.setattr('megatron.core.optimizer.distrib_optimizer.Adam', Adam)
        monkeypatch.setattr('megatron.core.optimizer.USING_PYTORCH_OPTIMIZER', False)
        monkeypatch.setattr('megatron.core.optimizer.distrib_optimizer.HAVE_APEX_OR_TE', True)
        Utils.initialize_model_parallel(1, 1)
        yield
        Utils.destroy_model_parallel()

    @staticmethod
    def _build(seed, is_used):
        """A model and its optimizer; the slot is None for params of which `is_used` is false."""
        model, optimizer = setup_model_and_optimizer(seed=seed, tp=1, pp=1)
        for idx, (param, state) in enumerate(optimizer.optimizer.state.items()):
            state[UNUSED] = torch.rand_like(param) if is_used(idx) else None
        return model[0], optimizer

    @staticmethod
    def _sharded_state_dict(model, optimizer, sharding_type, is_loading=False):
        return optimizer.sharded_state_dict(
            model.sharded_state_dict(),
            is_loading=is_loading,
            metadata={'distrib_optim_sharding_type': sharding_type},
        )

    @staticmethod
    def _values(optimizer):
        """Main params and optimizer states, in the order of the params."""
        params = [p for group in optimizer.optimizer.param_groups for p in group['params']]
        return [{'param': p.detach(), **optimizer.optimizer.state[p]} for p in params]

    def _save_and_load(self, path, sharding_type, src_used, dest_used):
        """States of the saved optimizer, and of another one after it has loaded them."""
        src_model, src_optimizer = self._build(2, lambda idx: src_used)
        dest_model, dest_optimizer = self._build(3, lambda idx: dest_used)
        with TempNamedDir(path / 'test_optimizer_none_state', sync=True) as ckpt_dir:
            save(self._sharded_state_dict(src_model, src_optimizer, sharding_type), ckpt_dir)
            state_dict = self._sharded_state_dict(dest_model, dest_optimizer, sharding_type, True)
            dest_optimizer.load_state_dict(load(state_dict, ckpt_dir))
        return self._values(src_optimizer), self._values(dest_optimizer)

    @pytest.mark.parametrize('sharding_type', ['dp_reshardable', 'fully_reshardable'])
    def test_unused_state_stays_none(self, tmp_path_dist_ckpt, sharding_type):
        saved, loaded = self._save_and_load(tmp_path_dist_ckpt, sharding_type, False, False)
        for src, dest in zip(saved, loaded, strict=True):
            assert dest.pop(UNUSED) is None
            for key, value in dest.items():
                assert torch.equal(value, src[key]), key

    def test_saved_state_is_not_loaded_where_unused(self, tmp_path_dist_ckpt):
        saved, loaded = self._save_and_load(tmp_path_dist_ckpt, 'dp_reshardable', True, False)
        for src, dest in zip(saved, loaded, strict=True):
            assert dest[UNUSED] is None
            assert torch.equal(dest['exp_avg_sq'], src['exp_avg_sq'])

    def test_used_state_is_saved_and_loaded(self, tmp_path_dist_ckpt):
        saved, loaded = self._save_and_load(tmp_path_dist_ckpt, 'dp_reshardable', True, True)
        for src, dest in zip(saved, loaded, strict=True):
            assert torch.equal(dest[UNUSED], src[UNUSED])

    def test_state_of_some_params_of_a_bucket_is_refused(self):
        model, optimizer = self._build(2, lambda idx: idx > 0)
        with pytest.raises(ValueError, match=f"'{UNUSED}'.* are None for some parameters"):
            self._sharded_state_dict(model, optimizer, 'dp_reshardable')
