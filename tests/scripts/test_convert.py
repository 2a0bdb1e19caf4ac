"""fp8_to_bf16.py, merge_fsdp.sh and convert_hf_to_mcore.sh, on tiny models with the frameworks' real code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from weight_files import small_model

if TYPE_CHECKING:
    from data_and_weights import Ended, Scripts

pytest_plugins = ["data_and_weights"]

REPO = Path(__file__).resolve().parents[2]
FP8 = "fp8_to_bf16.py"
FP8_PROBE = "tests/scripts/probe_fp8_model.py"
FSDP_PROBE = "tests/scripts/probe_fsdp.py"
INDEX = "model.safetensors.index.json"
RANKS = 2


@pytest.fixture(scope="module")
def published(scripts: Scripts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as DeepSeek publishes its own."""
    folder = tmp_path_factory.mktemp("fp8") / "model"
    scripts.upstream.run(FP8_PROBE, "make", folder)
    return folder


@pytest.fixture
def fp8(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "fp8"))


def test_fp8_becomes_the_bf16_that_plain_pytorch_makes_of_it(scripts: Scripts, published: Path, tmp_path: Path) -> None:
    out = tmp_path / "bf16"
    ended = scripts.run(FP8, published, out)
    assert (ended.code, ended.out) == (0, f"{out}\n"), ended.err

    assert scripts.upstream.run(FP8_PROBE, "compare", published, out) == {
        "same_names": True,
        "different": [],
        # The bias of the router stays as it is.
        "types": ["torch.bfloat16", "torch.float32"],
        "not_loaded": [],
        "same_logits": True,
        "logits_vary": True,
        "quantization": None,
        "mtp": 0,
    }
    assert (out / "model-00001-of-000013.safetensors").stat().st_mode & 0o777 == 0o666 & ~_umask()
    # The file of MTP alone has nothing left; code and tokenizer come along; nothing of the run stays.
    names = {path.name for path in published.iterdir()} - {"model-00013-of-000013.safetensors"}
    assert {path.name for path in out.iterdir()} == names
    assert scripts.run("weights.py", "check", out).code == 0


# The script, killed by itself as the fourth file of weights is about to get its name.
KILLED = """
import os, runpy, signal, sys
def watch(event, args, seen=[]):
    if event == "os.rename" and str(args[1]).endswith(".safetensors"):
        seen.append(args)
        if len(seen) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_conversion_that_was_killed_goes_on(scripts: Scripts, published: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert scripts.run(FP8, published, whole).code == 0
    command = [str(scripts.python), "-c", KILLED, str(REPO / "scripts" / FP8), str(published), str(out)]
    killed = subprocess.run(command, env=scripts.environment(), stderr=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = {path.name: path.stat().st_mtime_ns for path in out.glob("model-*.safetensors")}
    assert len(done) == 3
    assert not (out / INDEX).exists()

    ended = scripts.run(FP8, published, out)
    assert ended.code == 0
    assert f"[1/{12 - len(done)}]" in ended.err
    assert all((out / name).stat().st_mtime_ns == time for name, time in done.items())
    for path in whole.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_another_model_is_not_mixed_into_a_conversion(scripts: Scripts, fp8: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "fp8_to_bf16.json").write_text('{"of": "another", "sha256": "0"}')
    ended = scripts.run(FP8, fp8, out)
    assert ended.code == 2
    assert "was begun for another" in ended.err
    (out / "fp8_to_bf16.json").unlink()
    (out / "notes.txt").write_text("mine")
    assert "is not empty" in scripts.run(FP8, fp8, out).err
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def _change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _without_a_scale(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"]
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda f: (f / "model-00003-of-000013.safetensors").unlink(), "model-00003-of-000013.safetensors: missing"),
        (lambda f: os.truncate(f / "model-00003-of-000013.safetensors", 900), "model-00003-of-000013.safetensors: "),
        (lambda f: _change_config(f, quantization_config=None), "quantization_config is not fp8"),
        (lambda f: _change_config(f, quantization_config={"quant_method": "awq"}), "quantization_config is not fp8"),
        (_without_a_scale, "model.layers.1.mlp.experts.2.up_proj.weight: (144, 192) in fp8 needs scales of (2, 2)"),
        (lambda f: (f / INDEX).unlink(), "has neither"),
    ],
)
def test_what_cannot_be_converted_is_refused_before_anything_is_written(
    scripts: Scripts, fp8: Path, tmp_path: Path, fault: Any, says: str
) -> None:
    fault(fp8)
    ended = scripts.run(FP8, fp8, tmp_path / "out")
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_too_small_is_found_before_anything_is_written(
    scripts: Scripts, fp8: Path, tmp_path: Path
) -> None:
    """The source is real: a sparse file, whose header says 4 TB of fp8 and which is that long."""
    side = 2_000_000
    blocks = side // 128
    name, sizes = "model.layers.0.weight", (side * side, blocks * blocks * 4)
    header = {
        name: {"dtype": "F8_E4M3", "shape": [side, side], "data_offsets": [0, sizes[0]]},
        f"{name}_scale_inv": {"dtype": "F32", "shape": [blocks, blocks], "data_offsets": [sizes[0], sum(sizes)]},
    }
    text = json.dumps(header).encode()
    large = fp8 / "model-00001-of-000013.safetensors"
    large.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(large, 8 + len(text) + sum(sizes))
    (fp8 / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(header, large.name)}))

    ended = scripts.run(FP8, fp8, tmp_path / "out")
    assert ended.code == 2
    assert "8,000.0 GB are to be written" in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(scripts: Scripts, tmp_path: Path) -> None:
    """Peak memory of eight files, against that of two: the same but for less than one file."""
    peaks = []
    for count in (2, 8):
        size = scripts.upstream.run(FP8_PROBE, "shards", tmp_path / f"in{count}", count, 32_000_000)
        command = [
            str(scripts.python),
            str(REPO / "scripts" / FP8),
            str(tmp_path / f"in{count}"),
            str(tmp_path / f"out{count}"),
        ]
        process = subprocess.Popen(
            command, env=scripts.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss * 1024)
        shutil.rmtree(tmp_path / f"in{count}")
        shutil.rmtree(tmp_path / f"out{count}")
    assert peaks[1] - peaks[0] < size


@pytest.fixture(scope="module")
def tiny(scripts: Scripts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models with tokenizers, by name."""
    made = scripts.upstream.run(
        "tests/behaviour/verl/tiny_moe_models.py", tmp_path_factory.mktemp("tiny"), "qwen3", "qwen3_moe", timeout=180
    )
    return {name: Path(folder) for name, folder in made.items()}


@pytest.fixture(scope="module")
def checkpoint(scripts: Scripts, tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What verl's FSDPCheckpointManager writes on two ranks."""
    folder = tmp_path_factory.mktemp("fsdp") / "actor"
    scripts.upstream.run(FSDP_PROBE, "save", tiny["qwen3"], folder, need=["verl"], procs=RANKS, timeout=240)
    return folder


@pytest.fixture
def actor(tmp_path: Path) -> Path:
    """A folder with the files of such a checkpoint; nobody reads the tensors of one that is refused."""
    folder = tmp_path / "actor"
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface" / "config.json").write_text("{}")
    (folder / "fsdp_config.json").write_text(f'{{"FSDP_version": 2, "world_size": {RANKS}}}')
    for rank in range(RANKS):
        with zipfile.ZipFile(folder / f"model_world_size_{RANKS}_rank_{rank}.pt", "w") as file:
            file.writestr("data", bytes(4000))
    return folder


def merge(scripts: Scripts, *args: object, cwd: Path | None = None) -> Ended:
    settings = {"WORKSPACE": str(scripts.trees.path("verl").parent), "PYTHON": str(scripts.python)}
    return scripts.run("merge_fsdp.sh", *args, env=settings, cwd=cwd)


@pytest.mark.slow
def test_the_merged_model_is_the_one_that_was_sharded(
    scripts: Scripts, tiny: dict[str, Path], checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "merged model"
    ended = merge(scripts, checkpoint, out.name, cwd=tmp_path)
    assert (ended.code, ended.out.splitlines()[-1]) == (0, str(out)), ended.err
    found = scripts.upstream.run(FSDP_PROBE, "compare", tiny["qwen3"], out)
    assert found == {"same_names": True, "different": [], "types": ["torch.bfloat16"], "same_tokens": True}
    assert not (tmp_path / "merged model.partial").exists()
    assert "is not empty" in merge(scripts, checkpoint, out).err


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda f: (f / "model_world_size_2_rank_1.pt").unlink(), "1 of 2 shards are missing: ranks 1"),
        (
            lambda f: (f / "fsdp_config.json").write_text('{"world_size": 64}'),
            "64 of 64 shards are missing: ranks 0-63",
        ),
        (lambda f: os.truncate(f / "model_world_size_2_rank_0.pt", 3000), "shards of ranks 0 are cut off"),
        (lambda f: shutil.rmtree(f / "huggingface"), "no huggingface/config.json"),
        (lambda f: (f / "fsdp_config.json").unlink(), "no fsdp_config.json"),
        (lambda f: (f / "fsdp_config.json").write_text("{}"), "says no world_size"),
    ],
)
def test_incomplete_shards_are_refused_with_their_ranks(
    scripts: Scripts, actor: Path, tmp_path: Path, fault: Any, says: str
) -> None:
    fault(actor)
    ended = merge(scripts, actor, tmp_path / "merged")
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["actor"]


@pytest.fixture
def named(tmp_path: Path) -> dict[str, Path]:
    """Folders of models that nobody loads."""
    architectures = {"dense": "Qwen3ForCausalLM", "moe": "Qwen3MoeForCausalLM"}
    return {name: small_model(tmp_path / "models" / name, one) for name, one in architectures.items()}


CPU = """
import os
if "LOCAL_RANK" in os.environ:  # a process that torchrun started
    import mindspeed_on_cpu
    mindspeed_on_cpu.install()
"""
RECORD = """
import json, sys
from megatron.core import dist_checkpointing
tensors = dist_checkpointing.load_tensors_metadata(sys.argv[1])
record = dist_checkpointing.load_common_state_dict(sys.argv[1]).get("expert_weights_layout")
print(json.dumps([record, sorted(key for key in tensors if "experts.weight" in key)]))
"""
TREES = ("verl", "megatron-lm", "mindspeed")


def convert(scripts: Scripts, tmp_path: Path, *args: object) -> Ended:
    """With MindSpeed's real layers on a CPU, as the behaviour tests of hf_to_mcore_grouped have them."""
    for name in TREES:
        scripts.trees.path(name)
    standins = ["torch_npu", "megatron_cpu"]
    path = scripts.environment(TREES, standins)["PYTHONPATH"]
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(CPU)
    settings = {
        "WORKSPACE": str(scripts.trees.path("verl").parent),
        "PYTHON": str(scripts.python),
        "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{path}",
    }
    return scripts.run("convert_hf_to_mcore.sh", *args, env=settings, standins=standins)


@pytest.mark.slow
def test_a_mixture_of_experts_is_converted_to_the_grouped_layout(
    scripts: Scripts, tiny: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "mcore"
    ended = convert(scripts, tmp_path, tiny["qwen3_moe"], out, "--nproc", 1, "--test")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, str(out)), ended.err[-3000:]
    (tmp_path / "record.py").write_text(RECORD)
    env = {"PYTHONPATH": scripts.environment(TREES, ["torch_npu", "megatron_cpu"])["PYTHONPATH"]}
    record = scripts.run(tmp_path / "record.py", out, env=env)
    assert json.loads(record.out.splitlines()[-1]) == [
        "grouped, version 1",
        ["decoder.layers.mlp.experts.weight1", "decoder.layers.mlp.experts.weight2"],
    ]
    assert not (tmp_path / "mcore.partial").exists()


def test_the_command_fits_the_model(scripts: Scripts, named: dict[str, Path], tmp_path: Path) -> None:
    def command(model: str, *args: object) -> str:
        ended = convert(scripts, tmp_path, named[model], tmp_path / "out", "--dry-run", *args)
        assert ended.code == 0, ended.err
        return ended.err.splitlines()[-1]

    experts = command("moe", "--nproc", 16, "--trust-remote-code")
    for part in (
        "--nproc_per_node 16",
        "--use_cpu_initialization",
        "--grouped_experts",
        "--trust_remote_code",
        "--standalone",
    ):
        assert part in experts
    assert "--grouped_experts" not in command("moe", "--nproc", 16, "--sequential")
    several = command("moe", "--nproc", 16, "--nnodes", 4, "--node-rank", 3, "--master-addr", "10.0.0.1")
    assert "--nnodes 4 --node_rank 3 --master_addr 10.0.0.1 --master_port 29500" in several
    dense = command("dense")
    assert "--nproc_per_node 1 " in dense
    assert "--use_cpu_initialization" in dense
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_not_converted_into(scripts: Scripts, named: dict[str, Path], tmp_path: Path) -> None:
    """verl's script takes one for a conversion that is done, and ends with 0."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    ended = convert(scripts, tmp_path, named["moe"], tmp_path / "out", "--nproc", 1)
    assert (ended.code, ended.out) == (2, "")
    assert "is not empty" in ended.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["{fp8}", "{out}", "--nproc", "1"], "fp8_to_bf16.py"),
        (["{tmp}", "{out}", "--nproc", "1"], "no config.json"),
        (["{dense}", "{out}", "--nproc", "2"], "with one process"),
        (["{moe}", "{out}", "--nnodes", "2"], "wants --master-addr"),
        (["{moe}", "{out}", "--node-rank", "1"], "ranks of 1 nodes begin with 0"),
        (["{moe}", "{out}", "--nproc", "many"], "a whole number"),
        (["{moe}", "{out}", "--fast"], "no such option"),
        (["{moe}"], "are wanted"),
        (["{moe}", "{out}", "--nproc", "1", "--workspace", "{tmp}"], "has no verl"),
    ],
)
def test_wrong_use_of_the_conversion_is_one_message(
    scripts: Scripts, named: dict[str, Path], published: Path, tmp_path: Path, args: list[str], says: str
) -> None:
    names = {"fp8": published, "out": tmp_path / "out", "tmp": tmp_path, **named}
    ended = convert(scripts, tmp_path, *(arg.format(**names) for arg in args))
    assert ended.code == 2
    assert says in ended.err
    assert not (tmp_path / "out").exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
