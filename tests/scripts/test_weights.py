"""scripts/weights.py: fetching with the real huggingface_hub from a named stand-in of the hub, and checking real folders.

Nothing is fetched from the network here: hub_standin.py says what it stands for. modelscope's side is shown as far as the
command line that it is given.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_standin import COMMIT, Hub, hub
from weight_files import safetensors_file

if TYPE_CHECKING:
    from data_and_weights import Ended, Scripts

pytest_plugins = ["data_and_weights"]

SCRIPT = "weights.py"
MODEL = "Qwen/Qwen3-8B"
LARGE = 24_000_000  # more than two of the library's pieces of 10 MB
SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "vocab.json")


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in SMALL_FILES:
        (folder / name).write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights in another format")
    safetensors_file(folder / "model-00001-of-00002.safetensors", {"a": 1000, "b": 500})
    safetensors_file(folder / "model-00002-of-00002.safetensors", {"c": LARGE})
    mapping = {"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}
    index = {"metadata": {}, "weight_map": mapping | {"c": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("hub") / "model")


@pytest.fixture
def served(published: Path) -> Iterator[Hub]:
    with hub({MODEL: published}) as server:
        yield server


@pytest.fixture
def model(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "model"))


def fetch(scripts: Scripts, server: Hub, out: Path, *args: object, verb: str = "fetch", model: str = MODEL) -> Ended:
    online = {"HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return scripts.run(SCRIPT, verb, model, "--out", out, *args, env=online)


def test_a_model_is_fetched_once(scripts: Scripts, served: Hub, published: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = fetch(scripts, served, out)
    assert ended.code == 0, ended.err
    assert ended.out == f"{out}: whole\n"
    expected = {path.name for path in published.iterdir()} - {"pytorch_model.bin"}
    assert {path.name for path in out.iterdir() if path.is_file()} == expected
    assert all((out / name).read_bytes() == (published / name).read_bytes() for name in expected)

    served.asked.clear()
    assert fetch(scripts, served, out).code == 0
    assert served.fetched() == []


def _goes_on_within_a_file(scripts: Scripts) -> bool:
    """huggingface_hub 1 begins the file anew that was not whole."""
    ask = [str(scripts.python), "-c", "import huggingface_hub as h; print(h.__version__)"]
    return int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.partition(".")[0]) < 1


def test_a_fetch_that_was_killed_goes_on_where_it_was(
    scripts: Scripts, served: Hub, published: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    served.stall_after = 15_000_000
    script = Path(__file__).resolve().parents[2] / "scripts" / SCRIPT
    online = {"HF_ENDPOINT": served.address, "HF_HUB_OFFLINE": "0"}
    process = subprocess.Popen(
        [str(scripts.python), str(script), "fetch", MODEL, "--out", str(out)],
        env=scripts.environment() | online,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert served.stalled.wait(60)
    assert _grown(out, 10_000_000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    checked = scripts.run(SCRIPT, "check", out)
    assert checked.code == 1
    assert "a download that was not finished" in checked.out

    served.stall_after = None
    served.asked.clear()
    assert fetch(scripts, served, out).code == 0
    part = ("GET", f"/{MODEL}/resolve/{COMMIT}/model-00002-of-00002.safetensors", "bytes=10485760-")
    assert (part in served.asked) == _goes_on_within_a_file(scripts)
    assert "model-00001-of-00002.safetensors" not in served.fetched()
    assert (out / "model-00002-of-00002.safetensors").read_bytes() == (
        published / "model-00002-of-00002.safetensors"
    ).read_bytes()


def test_the_configuration_alone(scripts: Scripts, served: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = fetch(scripts, served, out, verb="config-only")
    assert ended.code == 0, ended.err
    assert {path.name for path in out.iterdir() if path.is_file()} == set(SMALL_FILES)
    assert scripts.run(SCRIPT, "check", out, "--config-only").code == 0
    assert scripts.run(SCRIPT, "check", out).code == 1


def test_a_disk_that_is_too_small_is_found_before_anything_is_fetched(
    scripts: Scripts, served: Hub, tmp_path: Path
) -> None:
    served.claimed["model-00002-of-00002.safetensors"] = 10**16
    ended = fetch(scripts, served, tmp_path / "out")
    assert ended.code == 2
    assert "10,000,000.0 GB are needed" in ended.err
    assert served.fetched() == []


def test_a_repository_that_lacks_a_file_gives_no_whole_model(scripts: Scripts, model: Path, tmp_path: Path) -> None:
    (model / "model-00001-of-00002.safetensors").unlink()
    with hub({MODEL: model}) as server:
        ended = fetch(scripts, server, tmp_path / "out")
    assert ended.code == 1
    assert "model-00001-of-00002.safetensors: missing, with 2 tensors" in ended.out


def test_a_hub_that_is_away_is_an_error_also_where_files_are(scripts: Scripts, model: Path, served: Hub) -> None:
    # huggingface_hub itself takes a folder with files in it for done then.
    (model / "model-00001-of-00002.safetensors").unlink()
    served.shutdown()
    served.server_close()
    ended = fetch(scripts, served, model)
    assert ended.code == 3
    assert "could not be had from http://127.0.0.1" in ended.err
    assert "--mirror" in ended.err
    assert "Traceback" not in ended.err


def test_a_model_that_is_not_there(scripts: Scripts, served: Hub, tmp_path: Path) -> None:
    ended = fetch(scripts, served, tmp_path / "out", model="Qwen/Qwen9")
    assert ended.code == 3
    assert "Qwen/Qwen9 could not be had" in ended.err
    ended = fetch(scripts, served, tmp_path / "out", model="a b/c/d")
    assert ended.code == 2


def test_modelscope_gets_its_own_command_line(scripts: Scripts, tmp_path: Path) -> None:
    args = ("config-only", "Qwen/Qwen3-235B-A22B", "--out", tmp_path / "out", "--from", "modelscope")
    ended = scripts.run(SCRIPT, *args, "--dry-run")
    assert ended.code == 0
    assert "modelscope download --model Qwen/Qwen3-235B-A22B --include config.json tokenizer.json" in ended.err
    assert f"--local_dir {tmp_path / 'out'}" in ended.err
    assert not (tmp_path / "out").exists()

    ended = scripts.run(SCRIPT, *args, env={"PATH": "/nowhere"})
    assert ended.code == 2
    assert "pip install modelscope" in ended.err


def test_a_whole_folder(scripts: Scripts, model: Path) -> None:
    assert scripts.run(SCRIPT, "check", model, "--json").json["whole"] is True


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: [(f / name).unlink() for name in ("tokenizer.json", "vocab.json")], "no tokenizer.json"),
        (lambda f: (f / "model-00001-of-00002.safetensors").unlink(), "missing, with 2 tensors"),
        (lambda f: os.truncate(f / "model-00002-of-00002.safetensors", LARGE), "and its header says"),
        (lambda f: os.truncate(f / "model-00002-of-00002.safetensors", 5), "cut off at 5 bytes"),
        (lambda f: safetensors_file(f / "model-00001-of-00002.safetensors", {"a": 8}), "lacks 1 tensors"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{"), "no index"),
        (lambda f: (f / "model.safetensors.index.json").unlink(), "has neither"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {}}'),
            "model.safetensors.index.json: lists no tensor",
        ),
        (
            lambda f: (f / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.git"),
            "no safetensors file",
        ),
    ],
)
def test_what_a_folder_lacks_is_named(scripts: Scripts, model: Path, fault: Any, says: str) -> None:
    fault(model)
    ended = scripts.run(SCRIPT, "check", model, "--json")
    assert ended.code == 1
    assert says in "\n".join(ended.json["faults"])


def test_the_sizes_are_those_of_the_architectures(scripts: Scripts) -> None:
    """Counted from the published configurations; DeepSeek's files hold 12 MB of headers beside the tensors."""
    listed = {one["model"]: one["size"] for one in scripts.run(SCRIPT, "list", "--json").json["models"]}
    moe = qwen(94, 4096, 64, 4, experts=128, ffn=1536)
    assert listed["Qwen/Qwen3-235B-A22B"] == listed["Qwen/Qwen3-235B-A22B-Thinking-2507"] == 2 * moe
    assert listed["Qwen/Qwen3-32B"] == 2 * qwen(64, 5120, 64, 8, ffn=25600)
    assert listed["Qwen/Qwen3-8B"] == 2 * qwen(36, 4096, 32, 8, ffn=12288)
    assert listed["Qwen/Qwen2.5-1.5B-Instruct"] == 2 * qwen(28, 1536, 12, 2, ffn=8960, old=True)
    fp8, bf16 = deepseek()
    assert 0 < listed["deepseek-ai/DeepSeek-R1"] - fp8 < 20_000_000
    assert f"{bf16 / 1e9:,.0f} GB" == "1,342 GB"
    assert "1,342 GB" in scripts.run(SCRIPT, "list").out


def qwen(layers: int, hidden: int, heads: int, groups: int, ffn: int, experts: int = 0, old: bool = False) -> int:
    """Parameters of Qwen3; of Qwen2.5 with `old`: biases, no norms of queries and keys, tied embeddings."""
    embedding, head = 151_936 * hidden, 128
    attention = 2 * hidden * head * (heads + groups) + (head * (heads + 2 * groups) if old else 2 * head)
    mlp = 3 * hidden * ffn * (experts or 1) + experts * hidden
    return embedding * (1 if old else 2) + hidden + layers * (attention + mlp + 2 * hidden)


def deepseek() -> tuple[int, int]:
    """Bytes of DeepSeek-V3's tensors as published in fp8 with its layer for MTP, and in bf16 without it."""
    hidden, vocabulary, experts = 7168, 129_280, 256
    fp8: list[tuple[int, int]] = []
    bf16 = f32 = 0
    for layer in range(62):
        if layer == 61:
            main = (list(fp8), bf16 + 2 * vocabulary * hidden + hidden, f32)
            bf16 += 2 * vocabulary * hidden + 2 * hidden * hidden + 3 * hidden
        fp8 += [(1536, hidden), (192 * 128, 1536), (576, hidden), (256 * 128, 512), (hidden, 128 * 128)]
        ffn = 18_432 if layer < 3 else 2048
        fp8 += [(ffn, hidden), (ffn, hidden), (hidden, ffn)] * (1 if layer < 3 else experts + 1)
        bf16 += 1536 + 512 + 2 * hidden + (0 if layer < 3 else experts * hidden)
        f32 += 0 if layer < 3 else experts
    bf16 += 2 * vocabulary * hidden + hidden
    scales = sum(math.ceil(rows / 128) * math.ceil(columns / 128) for rows, columns in fp8)
    published = sum(rows * columns for rows, columns in fp8) + 4 * scales + 2 * bf16 + 4 * f32
    matrices, rest, biases = main
    return published, 2 * (sum(rows * columns for rows, columns in matrices) + rest) + 4 * biases


def _grown(out: Path, size: int) -> bool:
    """Waits until the unfinished file has so many bytes."""
    for _ in range(200):
        if any(path.stat().st_size >= size for path in out.rglob("*.incomplete")):
            return True
        time.sleep(0.05)
    return False
