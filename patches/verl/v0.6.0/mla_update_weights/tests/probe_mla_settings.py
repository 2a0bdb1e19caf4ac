"""Probe: what the driver says of models with and without sparse attention. Usage: probe_mla_settings.py FOLDER"""

import json
import sys
from pathlib import Path

from rollout_config import compose_config
from verl.utils.settings_checks import check_settings

FOLDER = Path(sys.argv[1])


def said(model, on=True, **paths):
    config = compose_config(FOLDER / model, moe_update_weights=on)
    config.actor_rollout_ref.model.update(paths)
    try:
        check_settings(config)
    except ValueError as error:
        return str(error)
    return None


result = {
    "v3, on": said("v3"),
    "v32, on": said("v32"),
    "v32, off": said("v32", on=False),
    "v32 by hf_config_path, on": said("v3", hf_config_path=str(FOLDER / "v32")),
    "elsewhere, on": said("absent"),
}
result["loaded"] = sorted({"vllm", "vllm_ascend", "megatron", "mindspeed"} & set(sys.modules))
print(json.dumps(result))
