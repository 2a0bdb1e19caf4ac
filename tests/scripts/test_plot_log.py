"""scripts/plot_log.py on document 003's sample line, and on logs as a cluster writes them."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import math
import os
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "scripts" / "plot_log.py"
FIXTURES = Path(__file__).parent / "fixtures"
SAMPLE = FIXTURES / "003-step1.log"
# The console of qwen3-32b/gspo with verl v0.9.0, shrunk, on CPUs.
NEWER = FIXTURES / "gspo-step1-verl-0.9.log"
RUN = {"critic/rewards/mean": 0.5, "timing_s/step": 10.0, "timing_s/gen": 7.0}


def plot_log(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the script as a user does, from a folder that is not the checkout's."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    options = {"cwd": SAMPLE.parent, "capture_output": True, "text": True, "timeout": 120, **options}
    return subprocess.run(command, check=False, **options)


def summary(*arguments: object, **options: Any) -> list[dict[str, Any]]:
    done = plot_log(*arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "patchctl.plot_log/1"
    return list(found["runs"])


def refused(*arguments: object, **options: Any) -> str:
    done = plot_log(*arguments, **options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "try: " in done.stderr
    return done.stderr


def printed(step: int, values: Mapping[str, object]) -> str:
    return " - ".join([f"step:{step}", *(f"{key}:{value}" for key, value in values.items())])


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def values(run: dict[str, Any], key: str) -> list[float]:
    return [run["metrics"][key][name] for name in ("first", "last", "count")]


def rule(run: dict[str, Any], name: str) -> dict[str, str]:
    (hint,) = [hint for hint in run["hints"] if hint["rule"] == name]
    return dict(hint)


@pytest.fixture(scope="module")
def sample() -> dict[str, Any]:
    """The summary of document 003's line."""
    (run,) = summary(SAMPLE)
    return run


@pytest.fixture(scope="module")
def of(sample: dict[str, Any]) -> dict[str, float]:
    """Its metrics."""
    return {key: figures["last"] for key, figures in sample["metrics"].items()}


class TestSample:
    """The figures of 003's line follow from one another; what its text says of two of them does not."""

    def test_every_figure_of_the_line_is_read_as_it_is_printed(self, of: dict[str, float]) -> None:
        line = SAMPLE.read_text(encoding="utf-8").splitlines()[-1]
        items = dict(item.rsplit(":", 1) for item in line.split(" - ")[1:])
        assert of == {key: float(value) for key, value in items.items()}
        assert len(of) == 54

    def test_throughput_is_by_device(self, sample: dict[str, Any], of: dict[str, float]) -> None:
        assert sample["devices"] == 64
        assert of["perf/total_num_tokens"] / of["perf/time_per_step"] / 64 == pytest.approx(of["perf/throughput"])
        assert of["perf/throughput"] == pytest.approx(69.3939, abs=5e-5)

    def test_time_a_token_is_by_the_tokens_of_all_devices(self, of: dict[str, float]) -> None:
        responses = 64 * 16
        response_tokens = of["response_length/mean"] * responses
        assert of["timing_s/gen"] * 1000 / response_tokens == pytest.approx(of["timing_per_token_ms/gen"])
        assert of["timing_per_token_ms/gen"] == pytest.approx(0.17392, abs=5e-6)
        assert (of["response_length/mean"] + of["prompt_length/mean"]) * responses == of["perf/total_num_tokens"]
        for phase in ("update_actor", "adv"):
            by_all = of[f"timing_s/{phase}"] * 1000 / of["perf/total_num_tokens"]
            assert by_all == pytest.approx(of[f"timing_per_token_ms/{phase}"])

    def test_lengths_before_and_after_balancing(self, of: dict[str, float]) -> None:
        assert of["global_seqlen/mean"] == of["perf/total_num_tokens"] / 64 == 120608.5
        assert of["global_seqlen/minmax_diff"] == of["global_seqlen/max"] - of["global_seqlen/min"] == 292795
        assert of["global_seqlen/balanced_max"] - of["global_seqlen/balanced_min"] == 17

    def test_the_largest_advantage_is_that_of_one_good_answer_in_sixteen(self, of: dict[str, float]) -> None:
        assert of["critic/advantages/max"] == pytest.approx(15 / math.sqrt(16), rel=1e-5)

    def test_shares_of_the_step(self, sample: dict[str, Any], of: dict[str, float]) -> None:
        shares = {phase["name"]: round(100 * phase["share"], 1) for phase in sample["phases"]}
        assert shares == {
            "gen": 75.7,
            "reward": 0.1,
            "old_log_prob": 6.7,
            "adv": 0.0,
            "update_actor": 17.5,
            "other": 0.0,
        }
        assert sum(phase["seconds"] for phase in sample["phases"]) == pytest.approx(of["timing_s/step"])

    def test_all_of_it_is_explained(self, sample: dict[str, Any]) -> None:
        (newer,) = summary(NEWER)
        assert len(newer["metrics"]) == 88
        assert sample["unknown_metrics"] == newer["unknown_metrics"] == []

    def test_a_step_of_verl_0_9_has_the_checkpoint_and_the_new_weights_in_it(self, tmp_path: Path) -> None:
        (newer,) = summary(NEWER)
        *_, checkpoint, weights, other = newer["phases"]
        assert [phase["name"] for phase in (checkpoint, weights, other)] == [
            "save_checkpoint",
            "update_weights",
            "other",
        ]
        assert weights["seconds"] == newer["metrics"]["timing_s/update_weights"]["first"]
        older = written(tmp_path / "a.log", [printed(1, {**RUN, "timing_s/save_checkpoint": 5.0})])
        assert [phase["name"] for phase in summary(older)[0]["phases"]] == ["gen", "other"]

    def test_a_card_is_two_devices(self) -> None:
        (run,) = summary(SAMPLE, "--devices", 32)
        assert rule(run, "devices")["state"] == "look"
        assert "A3 card is two devices" in rule(run, "devices")["text"]
        (run,) = summary(SAMPLE, "--devices", 64)
        assert rule(run, "devices")["state"] == "ok"


class TestRealLogs:
    def test_lines_as_a_cluster_prints_them(self, tmp_path: Path) -> None:
        path = tmp_path / "train.log"
        path.write_bytes(
            b"\x1b[36m(WorkerDict pid=8, ip=10.0.0.7)\x1b[0m loading step: 7 - of:9\r\n"
            b"\x1b[36m(TaskRunner pid=9)\x1b[0m step:1 - \x1b[32mactor/entropy:np.float64(0.25)\x1b[0m - a/count:np.int64(3)"
            b" - flag:np.True_ - small:-1e-05 - odd:nan [repeated 2x across cluster]\r\n"
            b"Training Progress:   0%|  | 0/9 [00:00<?, ?it/s]\rTraining Progress:  11%|# | 1/9step:2 - actor/entropy:0.5\n"
            b"\xff\xfe not text \x00 training/global_step:5 - actor/entropy:9\n"
            b"global_step:6 - actor/entropy:9\nstep:7 - no figure at all\nstep:8 - actor/entropy:None\n"
            b"step:3 - actor/entropy:1"
        )
        (run,) = summary(path)
        assert values(run, "actor/entropy") == [0.25, 1.0, 3]
        assert values(run, "a/count") == [3.0, 3.0, 1]
        assert run["metrics"]["flag"]["first"] == 1.0
        assert run["metrics"]["small"]["first"] == -1e-05
        assert run["metrics"]["odd"] == dict.fromkeys(("first", "last", "mean", "min", "max"), None) | {
            "count": 1,
            "not_finite": 1,
        }
        assert "odd from step 1" in rule(run, "numbers")["text"]
        assert run["unknown_metrics"] == ["a/count", "flag", "odd", "small"]
        assert run["notes"] == []

    @pytest.mark.parametrize("width", [41, 64, 80, 81, 82, 83, 84, 200])
    @pytest.mark.parametrize("copied", [False, True], ids=["as-drawn", "without-blanks-at-ends"])
    def test_lines_that_a_terminal_wrapped(self, tmp_path: Path, width: int, copied: bool) -> None:
        more = {
            "global_seqlen/mean": 501737,
            "timing_s/update_actor": 0.25,
            "perf/throughput": 61.125,
            "actor/lr": 1e-06,
        }
        lines = []
        for step in (1, 2, 3):
            text = f"(TaskRunner pid=7) {printed(step, {**RUN, **more, 'training/global_step': step})}"
            lines += [text[at : at + width] for at in range(0, len(text), width)] + ["(TaskRunner pid=7) saved", "1737"]
        lines = [line.rstrip() for line in lines] if copied else lines
        (run,) = summary(written(tmp_path / "a.log", lines))
        for key, value in {**RUN, **more}.items():
            assert values(run, key) == [value, value, 3], key
        assert values(run, "training/global_step") == [1, 3, 3]
        assert run["notes"] == ["3 lines of metrics came in pieces, as a terminal wraps them, and were put together"]

    def test_a_line_that_a_container_runtime_cut(self, tmp_path: Path) -> None:
        stamp = "2026-01-02T03:04:05.678901234Z stdout"
        lines = [f"{stamp} P step:1 - r:0.5 - global_seqlen/mean:50", f"{stamp} F 1737 - q:2", f"{stamp} F 3 - s:4"]
        (run,) = summary(written(tmp_path / "a.log", lines))
        assert values(run, "global_seqlen/mean")[0] == 501737 and values(run, "q")[0] == 2 and "s" not in run["metrics"]

    def test_what_stands_below_a_line_is_not_taken_for_more_of_it(self, tmp_path: Path) -> None:
        for below in ("1737 of 2000", "done", "saved to /a - b", "(WorkerDict pid=8) 7", "[rank0]: x"):
            (run,) = summary(written(tmp_path / "a.log", [printed(1, {**RUN, "global_seqlen/mean": 50}), below]))
            assert values(run, "global_seqlen/mean")[0] == 50 and run["notes"] == [], below

    def test_a_data_source_may_hold_the_separator(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.log", ["step:4 - val-core/my - set: v2/acc/mean@16:0.5 - val-aux/x/y:1"])
        (run,) = summary(path)
        assert values(run, "val-core/my - set: v2/acc/mean@16")[1] == 0.5
        assert run["unknown_metrics"] == []

    def test_a_line_that_another_process_wrote_into(self, tmp_path: Path) -> None:
        torn = "step:2 - timing_s/gen:8 - timing_s/step:9.5(WorkerDict pid=1) loading - 5"
        (run,) = summary(written(tmp_path / "a.log", [printed(1, RUN), torn, "step:3 - timing_s/gen:8 - perf/thr"]))
        assert values(run, "timing_s/step") == [10.0, 9.5, 2]
        assert [note.partition(":")[0] for note in run["notes"]] == ["line 2", "line 3"]
        assert all("cut off" in note for note in run["notes"])

    @pytest.mark.parametrize("between", ["(TaskRunner pid=9) ", ""])
    @pytest.mark.parametrize("last", ["x:10", "val-core/s/acc:10"])
    def test_a_step_that_runs_into_the_next_keeps_its_own_values(self, tmp_path: Path, between: str, last: str) -> None:
        line = f"step:5 - r:0.1 - {last}{between}step:6 - r:0.9 - x:12"
        (run,) = summary(written(tmp_path / "a.log", [line]))
        assert run["metrics"]["r"]["last"] == 0.1
        assert set(run["metrics"]) <= {"r", last.partition(":")[0]}
        assert [note.partition(";")[0] for note in run["notes"]] == ["line 1: step 5 runs into other text"]

    def test_two_logs_in_one_of_which_the_first_ends_in_no_line_end(self, tmp_path: Path) -> None:
        path = tmp_path / "both.log"
        path.write_text("step:1 - r:0.1\nstep:2 - r:0.2step:3 - r:0.3\nstep:4 - r:0.4\n")
        (run,) = summary(path)
        assert values(run, "r") == [0.1, 0.4, 3]
        assert run["notes"][0].startswith("line 2: step 2 runs into other text")

    def test_a_resumed_run_goes_on_from_its_checkpoint(self, tmp_path: Path) -> None:
        first = [printed(step, {"critic/rewards/mean": step / 10}) for step in range(1, 8)]
        second = [printed(step, {"critic/rewards/mean": step}) for step in (5, 6)]
        (run,) = summary(written(tmp_path / "a.log", [*first, *second]))
        assert (run["first_step"], run["last_step"], run["steps"]) == (1, 6, 6)
        assert values(run, "critic/rewards/mean") == [0.1, 6.0, 6]
        assert run["notes"] == ["line 8: back at step 5, a resumed run: the earlier steps 5 to 7 left out"]

    def test_validation_before_a_resumed_run_belongs_to_the_checkpoint(self, tmp_path: Path) -> None:
        validated = {**RUN, "val-core/s/acc/mean@1": 0.5}
        lines = [
            *(printed(step, validated) for step in (1, 2, 3)),
            "step:2 - val-core/s/acc/mean@1:0.75",
            printed(3, RUN),
        ]
        (run,) = summary(written(tmp_path / "a.log", lines))
        assert run["steps"] == 3
        assert values(run, "val-core/s/acc/mean@1") == [0.5, 0.75, 2]
        assert values(run, "timing_s/gen")[2] == 3
        assert run["notes"] == ["line 4: back at step 2, a resumed run: the earlier step 3 left out"]

    def test_a_line_that_is_there_twice_is_one(self, tmp_path: Path) -> None:
        lines = [printed(step, {**RUN, "x": "nan"}) for step in (1, 2)]
        (run,) = summary(written(tmp_path / "a.log", [*lines, *lines]))
        assert run["steps"] == 2
        assert run["notes"] == []

    def test_the_last_checkpoint_of_a_step_is_added_to_it(self, tmp_path: Path) -> None:
        (run,) = summary(written(tmp_path / "a.log", [printed(1, RUN), "step:1 - timing/save_checkpoint:3.5"]))
        assert values(run, "timing/save_checkpoint")[0] == 3.5
        assert values(run, "timing_s/gen")[0] == 7.0
        assert run["notes"] == []

    def test_missing_steps_are_named(self, tmp_path: Path) -> None:
        (run,) = summary(written(tmp_path / "a.log", [printed(step, RUN) for step in (1, 4)]))
        assert run["notes"] == ["no line for step 2, 3"]
        lines = [printed(1, RUN), "loader step:1764512345678 - queue:3"]
        (run,) = summary(written(tmp_path / "b.log", lines), preexec_fn=little_memory)
        assert run["notes"] == [f"no line for step {', '.join(map(str, range(2, 12)))}, ..."]

    def test_figures_that_are_not_finite(self, tmp_path: Path) -> None:
        odd = {
            "perf/total_num_tokens": "inf",
            "perf/time_per_step": 10.0,
            "perf/throughput": 1.0,
            "timing_s/gen": "nan",
        }
        (run,) = summary(written(tmp_path / "a.log", [printed(1, {**RUN, **odd})]))
        assert run["devices"] is None

    def test_a_log_without_reshard_or_any_time(self, tmp_path: Path) -> None:
        (run,) = summary(written(tmp_path / "a.log", ["step:1 - critic/rewards/mean:0.5"]))
        assert (run["phases"], run["devices"]) == ([], None)

    def test_compressed_and_standard_input(self, tmp_path: Path) -> None:
        packed = tmp_path / "a.log.gz"
        packed.write_bytes(gzip.compress(SAMPLE.read_bytes()))
        (run,) = summary(packed)
        (piped,) = summary("-", input=SAMPLE.read_text(encoding="utf-8"))
        assert run["metrics"] == piped["metrics"]
        assert piped["name"] == "standard input"

    def test_a_large_log_takes_little_memory(self, tmp_path: Path) -> None:
        """Of 96 MB, half of them one line; a reader that kept that line, or all lines, would not come to its end."""
        path = tmp_path / "large.log"
        with path.open("w") as stream:
            stream.write(f"{'(WorkerDict pid=1) noise of a worker, step: none' * 1_000_000}\n")
            for step in (1, 2):
                stream.write("(WorkerDict pid=1) noise of a worker, step: none\n" * 500_000)
                stream.write(f"{printed(step, RUN)}\n")
        (run,) = summary(path, preexec_fn=little_memory)
        assert (run["steps"], run["notes"]) == (2, [])

    def test_control_characters_of_a_log_do_not_reach_the_terminal(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.log", ["step:1 - evil\x1b]0;title\x07\x9b2Jkey:1 - timing_s/step:1"])
        done = plot_log(path)
        assert done.returncode == 0
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout)


def little_memory() -> None:
    limit = 90 << 20  # address space: Python and the script's modules take 60 MB of it
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class TestHealth:
    @staticmethod
    def run(tmp_path: Path, steps: int = 30, **metrics: Any) -> dict[str, Any]:
        """A run whose metrics are functions of the step; double underscores stand for slashes."""
        lines = (
            printed(step, {key.replace("__", "/"): value(step) for key, value in metrics.items()})
            for step in range(1, steps + 1)
        )
        (run,) = summary(written(tmp_path / "a.log", lines))
        return run

    def test_reward(self, tmp_path: Path) -> None:
        noise = (0.3, -0.2, 0.1, -0.3, 0.2, -0.1)
        states = {}
        for name, slope in (("rises", 0.05), ("flat", 0.0), ("falls", -0.05)):
            run = self.run(tmp_path, critic__rewards__mean=lambda step, m=slope: m * step + noise[step % 6])
            states[name] = (rule(run, "reward")["state"], rule(run, "reward")["text"])
        assert {name: state for name, (state, _) in states.items()} == {"rises": "ok", "flat": "look", "falls": "look"}
        assert "no clear change" in states["flat"][1]
        assert "it falls" in states["falls"][1]

    def test_a_short_run_is_not_judged(self, tmp_path: Path) -> None:
        run = self.run(
            tmp_path, steps=8, critic__rewards__mean=lambda step: -step, actor__entropy=lambda step: 1 / step
        )
        assert {hint["rule"]: hint["state"] for hint in run["hints"]} == {"reward": "unknown", "entropy": "unknown"}

    @pytest.mark.parametrize(
        ("name", "metric", "bad", "good"),
        [
            ("length", "response_length/clip_ratio", lambda step: 0.01 * step, lambda step: 0.05),
            ("entropy", "actor/entropy", lambda step: math.exp(-step / 4), lambda step: 1 / (1 + step / 30)),
            ("throughput", "perf/throughput", lambda step: 100 - 2 * step, lambda step: 100 - step / 2),
            ("aborted", "response/aborted_ratio", lambda step: 0.01 * (step == 7), None),
            ("device-memory", "perf/max_memory_reserved_gb", lambda step: 40 + 0.55 * step, lambda step: min(step, 4)),
            ("host-memory", "perf/cpu_memory_used_gb", lambda step: 500 + 10 * step, lambda step: 500),
            ("device-memory", "actor/perf/max_memory_reserved_gb", lambda step: 40 + 0.55 * step, lambda step: 4),
            ("host-memory", "actor/perf/cpu_memory_used_gb", lambda step: 500 + 10 * step, lambda step: 500),
            ("numbers", "actor/grad_norm", lambda step: math.nan if step == 9 else 1, None),
        ],
    )
    def test_each_rule_has_a_bad_run_and_a_good_one(
        self, tmp_path: Path, name: str, metric: str, bad: Any, good: Any
    ) -> None:
        run = self.run(tmp_path, **{metric.replace("/", "__"): bad})
        assert rule(run, name)["state"] == "look"
        assert rule(run, name)["source"]
        calm = self.run(tmp_path, **{metric.replace("/", "__"): good or (lambda step: 0)})
        assert all(hint["state"] == "ok" for hint in calm["hints"])

    def test_the_batchs_longest_is_no_limit(self, tmp_path: Path) -> None:
        """verl 0.9's clip_ratio is the share of the batch's longest, whatever the limit is."""

        def log(longest: int) -> Path:
            rows = [
                {**RUN, "response_length/clip_ratio": 0.4, "response_length/max": min(40 + step, longest)}
                for step in range(12)
            ]
            return written(tmp_path / f"{longest}.log", [printed(step + 1, row) for step, row in enumerate(rows)])

        (run,) = summary(log(1000))
        (hint,) = [hint for hint in run["hints"] if hint["rule"] == "length"]
        assert hint["state"] == "ok"
        (at_the_limit,) = summary(log(42))
        (said,) = [hint for hint in at_the_limit["hints"] if hint["rule"] == "length"]
        assert said["state"] == "look" and "40.0%" in said["text"]

    def test_engines_that_end_far_apart(self, tmp_path: Path) -> None:
        keys = ("timing_s__generation_timing__min", "timing_s__generation_timing__max")
        apart = self.run(tmp_path, **{keys[0]: lambda step: 35, keys[1]: lambda step: 100})
        assert "idle for 65%" in rule(apart, "engines")["text"]
        assert rule(apart, "engines")["state"] == "look"
        close = self.run(tmp_path, **{keys[0]: lambda step: 75, keys[1]: lambda step: 100})
        assert rule(close, "engines")["state"] == "ok"

    def test_check_exits_1_when_a_hint_asks_for_a_look(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.log", ["step:1 - response_length/clip_ratio:0.5"])
        assert plot_log(path).returncode == 0
        assert plot_log(path, "--check").returncode == 1
        assert plot_log(SAMPLE, "--check").returncode == 0


class TestOutput:
    @pytest.fixture
    def two(self, tmp_path: Path) -> list[Path]:
        slow = [printed(step, {**RUN, "critic/rewards/mean": -0.5, "perf/throughput": 50.0}) for step in range(1, 13)]
        fast = [printed(step, {**RUN, "perf/throughput": 100.0, "mine": 1}) for step in range(1, 10)]
        for folder in ("plain", "sam"):
            (tmp_path / folder).mkdir()
        return [written(tmp_path / "plain/run.log", slow), written(tmp_path / "sam/run.log", fast)]

    def test_the_table_explains_every_metric(self) -> None:
        done = plot_log(SAMPLE)
        assert done.returncode == 0
        assert re.search(r"global_seqlen/minmax_diff +292795 .* before balancing \[tokens\]", done.stdout)
        assert re.search(r"update_actor +303\.9 +17\.5%", done.stdout)
        assert "Not explained here" not in done.stdout

    def test_two_runs_are_compared_over_their_common_steps(self, two: list[Path]) -> None:
        done = plot_log(*two)
        assert "mean over the 9 steps that all have, 1 to 9; then by plain/run.log" in done.stdout
        assert re.search(r"perf/throughput +50 +100 \(2\.00x\)", done.stdout)
        assert re.search(r"critic/rewards/mean +-0\.5 +0\.5 +what", done.stdout)
        assert re.search(r"Not explained here.*\n +mine +nan +1", done.stdout)

    def test_csv_has_every_value(self, two: list[Path], tmp_path: Path) -> None:
        assert plot_log(*two, "--csv", tmp_path / "all.csv").returncode == 0
        with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == 21
        assert rows[0] == {
            "run": "plain/run.log",
            "step": "1",
            "critic/rewards/mean": "-0.5",
            "timing_s/step": "10.0",
            "timing_s/gen": "7.0",
            "perf/throughput": "50.0",
            "mine": "",
        }
        assert rows[-1]["mine"] == "1.0"

    def test_svg_shows_all_panels_and_is_the_same_every_time(self, two: list[Path], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="the picture needs matplotlib (pip install '.[plot]')")
        pictures = []
        for name in ("a.svg", "b.svg"):
            assert plot_log(*two, "--out", tmp_path / name).returncode == 0
            pictures.append((tmp_path / name).read_bytes())
        assert pictures[0] == pictures[1]
        shown = "".join(ElementTree.fromstring(pictures[0]).itertext())
        for text in (
            "reward",
            "response length",
            "throughput",
            "time per phase",
            "plain/run.log",
            "sam/run.log",
            "gen",
        ):
            assert text in shown
        for panel in ("entropy", "KL", "gradient norm", "device memory"):
            assert panel in shown
        assert "no response_length/mean in the log" in shown
        assert "no actor/entropy in the log" in shown
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "b.svg", "plain", "sam"]

    def test_png_of_one_step_and_of_many(self, two: list[Path], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="the picture needs matplotlib (pip install '.[plot]')")
        for log in (SAMPLE, two[0]):
            assert plot_log(log, "--out", tmp_path / "run.PNG").returncode == 0
            assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")

    def test_without_matplotlib_there_is_the_table_and_one_line(self, tmp_path: Path) -> None:
        """An interpreter that cannot see site-packages, but for PyYAML."""
        import yaml

        (tmp_path / "path").mkdir()
        (tmp_path / "path/yaml").symlink_to(Path(yaml.__file__).parent)
        command = [sys.executable, "-S", str(SCRIPT), str(SAMPLE), "--out", str(tmp_path / "run.png")]
        env = {"PYTHONPATH": str(tmp_path / "path"), "PATH": os.environ["PATH"]}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "update_actor" in done.stdout
        assert done.stderr.splitlines()[0] == "plot_log.py: no picture: matplotlib is not installed"
        # The interpreter that was asked: another one's pip would bring it to where nobody looks.
        assert f"try: {sys.executable} -m pip install matplotlib" in done.stderr
        assert not (tmp_path / "run.png").exists()

    def test_explain(self) -> None:
        done = plot_log("--explain", "train/num_gen_batches", "val-core/aime/acc/mean@16")
        assert done.returncode == 0
        assert "max_num_gen_batches, and 0 is none" in done.stdout
        assert "verl <0.9 alone: recipe/dapo/dapo_ray_trainer.py: fit" in done.stdout

    @pytest.mark.parametrize(
        ("name", "places"),
        [
            ("critic/score/mean", "verl/trainer/ppo/metric_utils.py: compute_data_metrics"),
            (
                "timing_s/gen",
                "verl <0.9: verl/trainer/ppo/ray_trainer.py: fit; verl >=0.9: verl/trainer/ppo/v1/trainer_base.py: _step_once",
            ),
            ("timing_s/update_weights", "verl >=0.9 alone: verl/trainer/ppo/v1/trainer_sync.py: on_step_end"),
            ("timing_s/reshard", "no version here"),
        ],
    )
    def test_explain_says_which_release_has_it(self, name: str, places: str) -> None:
        assert plot_log("--explain", name).stdout.splitlines()[1] == f"  computed by: {places}"

    def test_a_reader_that_goes_away(self) -> None:
        command = f"'{sys.executable}' '{SCRIPT}' '{SAMPLE}' | head -n 1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.splitlines()[-1] in ("141", "0")
        assert done.stderr == ""

    def test_files_are_written_though_the_reader_goes_away(self, two: list[Path], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="the picture needs matplotlib (pip install '.[plot]')")
        command = [sys.executable, str(SCRIPT), str(two[0]), "--csv", str(tmp_path / "f.csv")]
        command += ["--out", str(tmp_path / "run.svg")]
        gone, writes = os.pipe()
        os.close(gone)  # before the first line is printed
        try:
            done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
        finally:
            os.close(writes)
        assert (done.returncode, done.stderr) == (141, "")
        assert (tmp_path / "f.csv").is_file() and (tmp_path / "run.svg").is_file()


LENGTHS = {"few": 8, "many": 400}


@pytest.fixture(scope="module")
def picture() -> Any:
    """scripts/log/picture.py, whose figure is looked at: what overlaps and what has which colour no file tells."""
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib (pip install '.[plot]')")
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        yield importlib.import_module("log.picture")
    finally:
        sys.path.remove(str(SCRIPT.parent))


def run_of(picture: Any, name: str, steps: int, *, lift: float = 0.0, **more: float) -> Any:
    """A run with every metric that a panel shows, and noise."""
    run = picture.Run(name)
    for step in range(1, steps + 1):
        wave = math.sin(step * 1.7) / 10
        run.steps[step] = {
            "critic/rewards/mean": step / steps + wave + lift,
            "response_length/mean": 3000 + 4000 * step / steps,
            "response_length/max": 8192.0,
            "response_length/clip_ratio": 0.05 + wave / 10,
            "actor/entropy": 1 / step,
            "actor/ppo_kl": wave / 1000,
            "actor/grad_norm": 0.2 + wave,
            "perf/throughput": 60 + wave,
            "perf/max_memory_reserved_gb": 60.0,
            "perf/max_memory_allocated_gb": 55.0,
            "timing_s/step": 100 + wave,
            "timing_s/gen": 70.0,
            "timing_s/update_actor": 20.0,
            "timing_s/old_log_prob": 5.0,
            **more,
        }
    return run


class TestPicture:
    @pytest.mark.parametrize("names", [["one"], ["one", "two", "three"]])
    @pytest.mark.parametrize("steps", LENGTHS.values(), ids=LENGTHS)
    def test_no_legend_and_no_title_lies_over_values_or_each_other(
        self, picture: Any, steps: int, names: list[str]
    ) -> None:
        figure = picture.figure_of([run_of(picture, name, steps) for name in names])
        figure.canvas.draw()
        plots = [axes.get_window_extent() for axes in figure.axes]
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
        assert len(plots) == 9 and len(legends) == 4
        boxes = [legend.get_window_extent() for legend in legends]
        titles = [axes.title.get_window_extent() for axes in figure.axes]
        titles += [axes._left_title.get_window_extent() for axes in figure.axes]
        for box in boxes:
            assert box.width > 0
            assert not any(box.overlaps(plot) for plot in plots)
            assert not any(box.overlaps(title) for title in titles if title.width > 0)

    def test_runs_differ_in_colour_and_in_mark_in_every_panel(self, picture: Any) -> None:
        figure = picture.figure_of([run_of(picture, name, 8) for name in "abcdefg"])
        for axes in figure.axes[:-1]:
            solid = [line for line in axes.lines if line.get_linestyle() == "-"]
            assert len({(line.get_color()) for line in solid}) == len({line.get_marker() for line in solid}) == 7

    def test_two_metrics_of_one_run_differ_in_one_panel(self, picture: Any) -> None:
        figure = picture.figure_of([run_of(picture, "one", 8)])
        for title in ("response length", "device memory"):
            (axes,) = [a for a in figure.axes if a.get_title(loc="left") == title]
            first, second = axes.lines
            assert first.get_color() != second.get_color()
            assert first.get_linestyle() != second.get_linestyle()

    def test_memory_of_a_run_of_verl_0_9_is_drawn(self, picture: Any) -> None:
        newer = run_of(picture, "one", 8)
        for values in newer.steps.values():
            values |= {f"actor/{key}": values.pop(key) for key in list(values) if key.startswith("perf/max_memory")}
        (axes,) = [a for a in picture.figure_of([newer]).axes if a.get_title(loc="left") == "device memory"]
        assert [line.get_ydata()[0] for line in axes.lines] == [60.0, 55.0]

    def test_a_long_run_has_few_marks_and_every_value(self, picture: Any) -> None:
        figure = picture.figure_of([run_of(picture, "one", 400)])
        every, strong = figure.axes[0].lines
        assert len(every.get_xdata()) == len(strong.get_xdata()) == 400
        assert every.get_alpha() < 1 and every.get_marker() == "None"
        assert 400 / strong.get_markevery()[1] <= 12
        spread = [max(line.get_ydata()) - min(line.get_ydata()) for line in (every, strong)]
        assert spread[1] < spread[0]

    def test_marks_do_not_hide_the_curve(self, picture: Any) -> None:
        for steps, marked in ((8, 8), (50, 10), (60, 10)):
            (line,) = picture.figure_of([run_of(picture, "one", steps)]).axes[0].lines
            assert -(-steps // line.get_markevery()[1]) == marked

    def test_a_panel_without_values_looks_like_none(self, picture: Any) -> None:
        run = run_of(picture, "one", 8)
        for values in run.steps.values():
            for key in [key for key in values if "max_memory" in key]:
                del values[key]
        axes = picture.figure_of([run]).axes[7]
        assert not axes.axison and "no perf/max_memory_reserved_gb" in axes.texts[0].get_text()
        for values in run.steps.values():
            values["perf/cpu_memory_used_gb"] = 300.0
        axes = picture.figure_of([run]).axes[7]
        assert axes.axison and axes.get_title(loc="left") == "host memory" and axes.lines[0].get_ydata()[0] == 300.0

    def test_kl_is_that_to_the_reference_where_a_run_has_one(self, picture: Any) -> None:
        plain, held = run_of(picture, "plain", 8), run_of(picture, "held", 8, **{"actor/kl_loss": 0.02})
        titles = [
            [axes.get_title(loc="left") for axes in picture.figure_of(runs).axes] for runs in ([plain], [plain, held])
        ]
        assert "KL of old and new policy" in titles[0]
        assert "KL to the reference policy" in titles[1]

    def test_what_is_not_finite_is_left_out_and_counted(self, picture: Any) -> None:
        run = run_of(picture, "one", 8)
        run.steps[3]["actor/grad_norm"] = math.inf
        run.steps[4]["actor/grad_norm"] = math.nan
        (axes,) = [a for a in picture.figure_of([run]).axes if a.get_title(loc="left") == "gradient norm"]
        assert axes.get_xlabel() == "step; at 2 the value is not finite"
        assert axes.get_ylim()[1] < 1


class TestMisuse:
    def test_no_log(self) -> None:
        assert "no log is given" in refused()

    def test_a_log_that_is_not_there(self, tmp_path: Path) -> None:
        assert "none.log: cannot be read: No such file" in refused(tmp_path / "none.log")

    def test_a_folder(self, tmp_path: Path) -> None:
        assert "Is a directory" in refused(tmp_path)

    def test_a_log_of_a_run_that_never_made_a_step(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.log", ["(TaskRunner pid=9) ValueError: out of memory"])
        assert "no step of verl is in it" in refused(path)
        found = plot_log(path, SAMPLE, "--json")  # train.sh makes a log at each start
        assert found.returncode == 0 and len(json.loads(found.stdout)["runs"]) == 1
        assert f"{path}: left out, as no step of verl is in it" in found.stderr

    @pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"step:1 - a:1\n" * 5000)[:-20]])
    def test_a_broken_archive(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "a.log.gz"
        path.write_bytes(content)
        assert "a.log.gz: cannot be read: " in refused(path)

    def test_a_picture_of_no_known_kind(self, tmp_path: Path) -> None:
        assert "neither .png nor .svg" in refused(SAMPLE, "--out", tmp_path / "run.bmp")

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        assert "there is no such folder" in refused(SAMPLE, "--csv", tmp_path / "none/a.csv")

    def test_the_log_is_not_written_over(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.svg", [printed(1, RUN)])
        before = path.read_bytes()
        assert "that is the log" in refused(path, "--out", path)
        assert path.read_bytes() == before

    def test_the_same_log_twice(self) -> None:
        assert "named twice" in refused(SAMPLE, SAMPLE)

    def test_a_number_of_devices_that_is_none(self) -> None:
        assert "--devices 0" in refused(SAMPLE, "--devices", 0)

    def test_a_metric_that_nobody_knows(self) -> None:
        assert "not a metric" in refused("--explain", "critic/reward/mean")

    def test_a_python_without_yaml(self) -> None:
        done = subprocess.run(
            [sys.executable, "-S", str(SCRIPT), str(SAMPLE)], env={}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1] == f"  try: {sys.executable} -m pip install PyYAML"

    def test_an_error_with_json_is_an_object(self, tmp_path: Path) -> None:
        done = plot_log(tmp_path / "none.log", "--json")
        assert json.loads(done.stdout)["error"]["exit_code"] == done.returncode == 2


def test_the_page_is_what_the_table_says() -> None:
    command = [sys.executable, str(REPO / "scripts/log/metrics.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
