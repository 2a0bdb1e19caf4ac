"""scripts/hdp_pays.py: what it reads, what it answers on cases that can be worked out, and how it refuses."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "hdp_pays.py"


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def answer(lengths: list[int], *arguments: str) -> dict:
    done = run("-", "--json", *arguments, given="\n".join(map(str, lengths)))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def log_normal(median: float, sigma: float, longest: int) -> list[int]:
    rng = random.Random(1)
    return [max(1, min(longest, round(median * math.exp(sigma * rng.gauss(0, 1))))) for _ in range(256)]


def test_many_short_sequences_pay_and_mostly_long_ones_hardly() -> None:
    """The direction of the two published results: 25 % with eight ranks, 5 % with four."""
    short = answer(log_normal(700, 1.0, 16000), "--ranks", "8", "--max-tokens", "2048")
    long = answer(log_normal(5000, 0.4, 8192), "--ranks", "4", "--max-tokens", "2560")
    assert short["pays"] and short["gain"] > 0.2
    assert 0 <= long["gain"] < 0.07 < short["gain"] / 3


def test_equal_short_sequences_lose_the_ring_and_nothing_else() -> None:
    found = answer([1000] * 8, "--ranks", "4", "--max-tokens", "2000", "--ring-share", "0.5", "--batch", "8")
    # On one rank each two of them; plain: a quarter of all eight on each rank, three steps of the ring.
    alone = 2 * 1000 * (1 + 1000 / 28000)
    plain = 8 * 250 * (1 + 3 * 0.5 + 1000 / 28000) + 3 * 50
    assert found["sequences"] == {"1": 8}
    assert found["hybrid"] == pytest.approx(alone) and found["plain"] == pytest.approx(plain)
    assert found["imbalance"] == pytest.approx(1) and found["micro_batches"] == 1
    assert found["gain"] == pytest.approx(1 - alone / plain)


def test_layouts_go_by_the_costs_that_are_given_as_the_patchs_do() -> None:
    """A ring that costs nothing beside attention that is all: splitting all equally is the best there is."""
    lengths, arguments = [16, 12, 12], ("--ranks", "2", "--max-tokens", "24")
    free = ("--ring-share", "0", "--ring-step", "0", "--quadratic-length", "0.001")
    dear, cheap = answer(lengths, *arguments), answer(lengths, *arguments, *free)
    assert dear["sequences"] == {"1": 3} and cheap["sequences"] == {"2": 3} and cheap["gain"] == 0


def config(tmp_path: Path, **changes: object) -> str:
    """Qwen3-32B's config.json, as far as it is read."""
    sizes = {"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(sizes | {"head_dim": 128, "intermediate_size": 25600} | changes))
    return str(file)


def test_attentions_cost_follows_from_the_model(tmp_path: Path) -> None:
    """By hand: weights of a layer over its query heads' channels."""
    arguments = ("--ranks", "2", "--max-tokens", "1000", "--ring-share", "0", "--ring-step", "0")
    dense = (2 * 5120 * 128 * (64 + 8) + 3 * 5120 * 25600) / (64 * 128)
    found = answer([1000], *arguments, "--model", config(tmp_path))
    assert found["plain"] == pytest.approx(500 * (1 + 1000 / dense))
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}
    sparse = (2 * 5120 * 128 * (64 + 8) + 8 * 3 * 5120 * 1536 + 5120 * 128) / (64 * 128)
    found = answer([1000], *arguments, "--model", config(tmp_path, **experts))
    assert found["plain"] == pytest.approx(500 * (1 + 1000 / sparse))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{}", "num_hidden_layers"), ("[]", "no config.json"), ('{"kv_lora_rank": 512}', "latent attention")],
)
def test_a_model_that_costs_cannot_be_told_of_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    done = run("-", "--ranks", "2", "--max-tokens", "9", "--model", str(tmp_path / "config.json"), given="4")
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_micro_batches_by_time_gain_more_than_upstreams() -> None:
    lengths, arguments = log_normal(5400, 0.8, 32768), ("--ranks", "4", "--max-tokens", "8704", "--batch", "256")
    found, by_time = answer(lengths, *arguments), answer(lengths, *arguments, "--by-time")
    assert by_time["gain"] > 0.2 > found["gain"] and by_time["micro_batches"] > found["micro_batches"]


def test_a_sequence_that_needs_all_ranks_gains_nothing() -> None:
    found = answer([8000] * 6, "--ranks", "4", "--max-tokens", "2000")
    assert found["gain"] == 0 and not found["pays"]
    assert found["sequences"] == {"4": 6} and found["micro_batches"] == 6


def test_text_names_the_spread_and_ends_with_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("[100, 200,\n300] 400\n")
    done = run(str(file), "--ranks", "2", "--max-tokens", "1000")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 sequences (shortest 100, median 200, 90 % 300, longest 400 tokens) in 1 batches")
    assert done.stdout.splitlines()[-1].startswith("It pays, by this model: ")


@pytest.mark.parametrize(
    ("given", "arguments", "words"),
    [
        ("100\n12x\n", [], "-:2: '12x' is no number of tokens"),
        ("100\n-5\n", [], "-:2: '-5' is no number of tokens"),
        ("100\n0\n", [], "-:2: '0' is no number of tokens"),
        (" \n", [], "-: no lengths"),
        ("9000\n", [], "9000 tokens need 2250 tokens on each of 4 ranks, and 2000 are allowed"),
        ("100\n", ["--batch", "0"], "have to be 1 or more"),
        ("100\n", ["--ring-share", "nan"], "--ring_share=nan is no number 0 or more"),
        ("100\n", ["--packing", "nowhere.py"], "nowhere.py: no such file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(given: str, arguments: list[str], words: str) -> None:
    done = run("-", "--ranks", "4", "--max-tokens", "2000", *arguments, given=given)
    assert done.returncode == 2 and not done.stdout
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_file_that_is_not_there_is_named() -> None:
    done = run("nowhere.txt", "--ranks", "4", "--max-tokens", "2000")
    assert done.returncode == 2 and done.stderr.startswith("hdp_pays: nowhere.txt: cannot be read")
