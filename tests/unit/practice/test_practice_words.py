"""Words of texts: what two languages spell alike, and nothing else."""

from __future__ import annotations

import pytest
from practice_words import plain_value, stands, telling, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("批大小设为1,024，最长34K", {"1024", "34k"}),
        ("2,048, 34,816: 6,482, 2,861.", {"2048", "34816", "6482", "2861"}),
        ("[64,128] and 7,718,944 and 1,057 s", {"64", "128", "7718944", "1057", "and", "s"}),
        ("export HCCL_EXEC_TIMEOUT=3600", {"export", "hccl_exec_timeout", "hccl_exec_timeout=3600", "3600"}),
        ("a.b.rate='[8, 16]' \\", {"a.b.rate", "a", "b", "rate", "a.b.rate=[8,16]", "rate=[8,16]", "8", "16"}),
        ("lr=1e-6", {"lr", "lr=1e-06"}),
        ("top_k=-1 # -1 for vLLM", {"top_k", "top_k=-1", "for", "vllm", "1"}),
        ("0016-fix-a_b.patch", {"0016", "fix-a_b.patch", "fix", "a_b", "patch"}),
    ],
)
def test_words(text: str, found: set[str]) -> None:
    assert found <= words(text)
    assert {w for w in words(text) if w.isdigit()} <= found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the recipe trains four machines as it should", set()),
        ("two of 2,048 tokens, in GB and TiB", {"2048"}),
        ("max_num_seqs above 64 with TorchAir on an A3 by AIV", {"max_num_seqs", "64", "torchair", "a3", "aiv"}),
        ("`net-tools` and other net-tools", {"net-tools", "net", "tools"}),
        ("rollout.mode=sync", {"rollout.mode", "mode=sync"}),
        ("a sentence. Another one, e.g. this", set()),
    ],
)
def test_telling_words_of_an_english_text(text: str, found: set[str]) -> None:
    assert telling(text) == found


@pytest.mark.parametrize(
    ("word", "text", "there"),
    [
        ("34816", "34K", True),
        ("34000", "34 K", True),
        ("34k", "34,816", True),
        ("34816", "35K", False),
        ("0.5", "0.50", True),
        ("1", "10 and 0.1", False),
        ("fsdp_config.param_offload", "a.fsdp_config.param_offload=True", True),
        ("fsdp_config.param_offload", "fsdp_config of something", False),
        ("0016", "16", False),
        ("use_x=1", "USE_X=1", True),
        ("use_x=1", "USE_X is 1", False),
    ],
)
def test_stands(word: str, text: str, there: bool) -> None:
    assert stands(word, words(text)) is there


@pytest.mark.parametrize(
    ("written", "plain"), [("'1.0'", "1"), ('"Left"', "left"), ("1e-6", "1e-06"), ("True", "true")]
)
def test_values_have_one_spelling(written: str, plain: str) -> None:
    assert plain_value(written) == plain
