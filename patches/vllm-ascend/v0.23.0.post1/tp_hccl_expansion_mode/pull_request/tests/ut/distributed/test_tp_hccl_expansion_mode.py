#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# This file is a part of the vllm-ascend project.
#
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from vllm.config import VllmConfig, set_current_vllm_config

from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
from vllm_ascend.utils import create_hccl_pg_options


@pytest.fixture(autouse=True)
def hccl_options():
    """Replaces the mocked options by ones that keep their attributes."""
    options = "vllm_ascend.utils.torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options"
    with patch(options, SimpleNamespace):
        yield
    clear_ascend_config()


def _vllm_config(**additional_config):
    with patch("vllm_ascend.platform.NPUPlatform.check_and_update_config"):
        vllm_config = VllmConfig()
    vllm_config.additional_config = additional_config
    return vllm_config


def _hccl_config(group_name, **additional_config):
    with set_current_vllm_config(_vllm_config(**additional_config)):
        return create_hccl_pg_options(group_name).hccl_config


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_mode_reaches_the_tensor_parallel_group(mode):
    default = _hccl_config("tp")
    assert _hccl_config("tp", tp_hccl_op_expansion_mode=mode) == default | {"hccl_op_expansion_mode": mode}


@pytest.mark.parametrize("additional_config", [{}, {"tp_hccl_op_expansion_mode": 0}])
def test_default_sets_no_mode(additional_config):
    assert set(_hccl_config("tp", **additional_config)) == {"hccl_buffer_size", "group_name"}


@pytest.mark.parametrize("group_name", ["dp", "ep", "pp", "mc2", "dynamic_eplb", "flashcomm2_otp"])
def test_other_groups_are_unaffected(group_name):
    assert _hccl_config(group_name, tp_hccl_op_expansion_mode=3) == _hccl_config(group_name)


def test_mode_is_read_from_the_current_vllm_config():
    init_ascend_config(_vllm_config(tp_hccl_op_expansion_mode=2))
    assert _hccl_config("tp", tp_hccl_op_expansion_mode=3)["hccl_op_expansion_mode"] == 3


@pytest.mark.parametrize("mode", [-1, 4, True, 3.0, "3", "AIV", None])
def test_invalid_mode(mode):
    with pytest.raises(ValueError, match="tp_hccl_op_expansion_mode must be 0"):
        init_ascend_config(_vllm_config(tp_hccl_op_expansion_mode=mode))
