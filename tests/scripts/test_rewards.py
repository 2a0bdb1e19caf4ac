"""scripts/rewards: through verl's real reward managers, on files that prepare_data.py wrote, read by verl's real dataset."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from data_and_weights import Scripts

pytest_plugins = ["data_and_weights"]

REWARDS = Path(__file__).resolve().parents[2] / "scripts" / "rewards"
CHOICES = [("A", "\\boxed{A}"), ("AC", "\\boxed{AC}"), ("D", "\\boxed{D}")]
MATHS = [("1 + 1?", "2"), ("Half?", "\\frac{1}{2}"), ("Which pair?", "(1, 2)"), ("A root?", "\\sqrt{2}")]
GOOD_FORM = "<think>so</think><answer>\\boxed{%s}</answer>"

CHOICE_ANSWERS = [
    [0, "好,选 \\boxed{A}", 1.0],
    [0, "\\boxed{B} 不对, 是 \\boxed{A}", 1.0],
    [0, "\\boxed{A} 不对, 是 \\boxed{B}", 0.0],
    [0, "A", 0.0],
    [1, "\\boxed{C, A}", 1.0],
    [1, "\\boxed{A}", 0.0],
    [1, "\\boxed{ABC}", 0.0],
    [2, "\\boxed{\\text{D}}", 1.0],
    [2, "\\boxed{D. EBITDA}", 1.0],
    [2, "\\boxed{}", 0.0],
    [2, "\\boxed{D", 0.0],
]
# Of 0+0, 1+1 and 3+3.
SUM_ANSWERS = [
    [0, "0", 1.0],
    [5, "2", 1.0],
    [15, "6", 1.0],
    [15, "5", 0.1],
    [15, "66", 0.5],
    [15, "56", 0.05],
    [15, "+6", 0.0],
    [15, "", 0.0],
]
MATH_ANSWERS = [
    [0, GOOD_FORM % "2", 1.0],
    [0, "It is \\boxed{2}", 0.67],
    [0, GOOD_FORM % "3", 0.33],
    [0, "It is 2", 0.0],
    [1, "\\boxed{0.5}", 0.67],
    [1, "\\boxed{\\dfrac{1}{2}}", 0.67],
    [1, "\\boxed{\\frac{2}{4}}", 0.0],  # mathruler: a fraction has to be reduced
    [2, "\\boxed{(1,2)}", 0.67],
    [2, "\\boxed{(2,1)}", 0.0],
    [3, "\\boxed{2^{1/2}}", 0.0],  # mathruler works no power in braces out
    [3, "\\boxed{\\sqrt 2}", 0.67],
]


@pytest.fixture(scope="module")
def files(scripts: Scripts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Prepared files, by data set."""
    folder = tmp_path_factory.mktemp("prepared")
    rows = {
        "DianJin-R1": [
            {"instruction": f"问题 {n}", "output": f"<answer>{box}</answer>"} for n, (_, box) in enumerate(CHOICES)
        ],
        # A tenth is kept back for validation.
        "deepscaler": [{"problem": q, "answer": a, "solution": ""} for q, a in [*MATHS, ("Kept back?", "0")]],
        "gsm8k": [{"question": "3 + 4?", "answer": "#### 7"}],
        "MATH-lighteval": [{"problem": "x?", "solution": "\\boxed{\\frac{1}{2}}"}],
        "MATH-500": [{"problem": "x?", "answer": "\\frac{1}{2}"}],
        "dapo-math-17k": [
            {
                "data_source": "math_dapo",
                "prompt": [{"content": "x?", "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": "id"},
            }
        ],
    }
    prepared: dict[str, Path] = {}
    for name, content in rows.items():
        source = folder / f"{name}.json"
        source.write_text(json.dumps(content), encoding="utf-8")
        ended = scripts.run("prepare_data.py", name, "--input", source, "--out", folder / name)
        assert ended.code == 0, ended.err
        prepared[name] = folder / name / ("test.parquet" if name == "MATH-500" else "train.parquet")
    assert scripts.run("prepare_data.py", "made-sums", "--count", "1", "--out", folder / "sums").code == 0
    prepared["made-sums"] = folder / "sums/test.parquet"
    return prepared


@pytest.fixture(scope="module")
def scored(scripts: Scripts, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All answers through the managers, in one process."""

    def job(dataset: str, answers: list[list[Any]], manager: str, reward: str | None, **more: Any) -> dict[str, Any]:
        path = str(REWARDS / reward) if reward else None
        asked = [answer[:2] for answer in answers]
        return {"file": str(files[dataset]), "answers": asked, "manager": manager, "reward": path, **more}

    cut = [[0, "<think>I go on and on", None]]
    jobs = {
        "choices naive": job("DianJin-R1", CHOICE_ANSWERS, "naive", "choices.py"),
        "choices dapo": job("DianJin-R1", CHOICE_ANSWERS, "dapo", "choices.py"),
        "choices overlong": job(
            "DianJin-R1", [[0, "x" * 89 + "\\boxed{A}", 0]], "dapo", "choices.py", overlong=[109, 20]
        ),
        "choices cut": job("DianJin-R1", cut, "naive", "choices.py", kwargs={"unanswered": -1.0}),
        "deepscaler naive": job("deepscaler", MATH_ANSWERS, "naive", "deepscaler.py"),
        "deepscaler dapo": job("deepscaler", MATH_ANSWERS, "dapo", "deepscaler.py"),
        "deepscaler cut": job("deepscaler", cut, "naive", "deepscaler.py", kwargs={"unanswered": -1.0}),
        "deepscaler answer alone": job("deepscaler", MATH_ANSWERS, "naive", "deepscaler.py", kwargs={"form": 0.0}),
        "deepscaler thinking opened": job(
            "deepscaler",
            [[0, "so</think><answer>\\boxed{2}</answer>", 1.0]],
            "naive",
            "deepscaler.py",
            kwargs={"thinking_opened": True},
        ),
        "sums": job("made-sums", SUM_ANSWERS, "naive", "sums.py"),
        "gsm8k": job("gsm8k", [[0, "#### 7", 1.0], [0, "7", 0.0]], "naive", None),
        "MATH-lighteval": job("MATH-lighteval", [[0, "\\boxed{\\frac12}", 1.0], [0, "\\boxed{2}", 0.0]], "naive", None),
        "MATH-500": job("MATH-500", [[0, "\\boxed{\\frac12}", 1.0], [0, "\\boxed{2}", 0.0]], "naive", None),
        "dapo-math-17k": job("dapo-math-17k", [[0, "Answer: 34", 1.0], [0, "34", -1.0]], "dapo", None),
    }
    listed = tmp_path_factory.mktemp("jobs") / "jobs.json"
    listed.write_text(json.dumps(jobs), encoding="utf-8")
    return scripts.upstream.run("tests/scripts/probe_rewards.py", listed, need=["verl"], timeout=300)


@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_choices_pay_for_exactly_the_right_letters(scored: Any, manager: str) -> None:
    result = scored[f"choices {manager}"]
    assert result["scores"] == [expected for *_, expected in CHOICE_ANSWERS]
    assert result["last_token_only"]


def test_dapo_filters_groups_by_the_score_of_choices(scored: Any) -> None:
    # algorithm.filter_groups.metric=acc: the manager makes it of a reward that is a number.
    assert scored["choices dapo"]["extra"]["acc"] == [expected for *_, expected in CHOICE_ANSWERS]


def test_sums_pay_for_the_digit_alone_and_a_little_for_what_leads_there(scored: Any) -> None:
    assert scored["sums"]["scores"] == pytest.approx([expected for *_, expected in SUM_ANSWERS])
    assert scored["sums"]["extra"]["acc"] == [float(expected == 1.0) for *_, expected in SUM_ANSWERS]


def test_the_overlong_penalty_is_added(scored: Any) -> None:
    # 89 letters, the box and the end: 99 tokens of 109; the last 20 cost up to 1, and 10 of them are used.
    assert scored["choices overlong"]["scores"] == pytest.approx([1.0 - 10 / 20])


@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_deepscaler_pays_for_the_answer_and_the_form(scored: Any, manager: str) -> None:
    result = scored[f"deepscaler {manager}"]
    assert result["scores"] == pytest.approx([expected for *_, expected in MATH_ANSWERS])
    assert result["extra"]["acc"] == [float(expected > 0.5) for *_, expected in MATH_ANSWERS]
    assert result["last_token_only"]


def test_deepscaler_without_a_form_pays_for_the_answer_alone(scored: Any) -> None:
    assert scored["deepscaler answer alone"]["scores"] == [float(expected > 0.5) for *_, expected in MATH_ANSWERS]


def test_a_chat_template_that_opens_the_thinking_is_told_of(scored: Any) -> None:
    assert scored["deepscaler thinking opened"]["scores"] == [1.0]


@pytest.mark.parametrize("name", ["choices", "deepscaler"])
def test_an_answer_that_was_cut_off_can_cost(scored: Any, name: str) -> None:
    assert scored[f"{name} cut"]["scores"] == [-1.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gsm8k", [1.0, 0.0]), ("MATH-lighteval", [1.0, 0.0]), ("MATH-500", [1.0, 0.0]), ("dapo-math-17k", [1.0, -1.0])],
)
def test_verls_own_rewards_score_the_other_sets(scored: Any, name: str, expected: list[float]) -> None:
    assert scored[name]["scores"] == expected


def test_the_list_of_what_verl_scores_is_verls(scripts: Scripts) -> None:
    script = scripts.scratch / "listed.py"
    script.write_text("import json\nfrom data.sets import SCORED_BY_VERL\nprint(json.dumps(SCORED_BY_VERL))\n")
    listed = scripts.run(script, env={"PYTHONPATH": str(REWARDS.parent)}).json
    sources = [source.replace("*", "_2024") for source in listed]
    invented = ["deepscaler", "cflue_mcq", "./cflue_mcq.json", "AIME", "openai/gsm8k2", "math_500"]
    found = scripts.upstream.run("tests/scripts/probe_sources.py", json.dumps(sources + invented), need=["verl"])
    assert [source for source in sources if not found[source]] == []
    assert [source for source in invented if found[source]] == []


@pytest.mark.parametrize("call", ["{}", "concurrent.futures.ThreadPoolExecutor(1).submit(lambda: {}).result()"])
@pytest.mark.parametrize("answer", ["x!^9!+999999!", "9999999!"])
def test_an_answer_that_sympy_never_finishes_is_given_up(
    scripts: Scripts, tmp_path: Path, answer: str, call: str
) -> None:
    """In the main thread, and in one of others as verl's reward managers have."""
    script = tmp_path / "hang.py"
    graded = f"reward.compute_score('deepscaler', '\\\\boxed{{{answer}}}', '\\\\sqrt{{2}}')['score']"
    script.write_text(
        "import concurrent.futures, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('reward', {str(REWARDS / 'deepscaler.py')!r})\n"
        "reward = importlib.util.module_from_spec(spec); spec.loader.exec_module(reward)\n"
        "reward.GRADING_LIMIT_S = 1.0\n"
        f"print({call.format(graded)})\n"
    )
    started = time.monotonic()
    ended = scripts.run(script, timeout=60)
    assert (ended.code, ended.out.strip()) == (0, "0.0")
    assert time.monotonic() - started < 45


def test_the_form_of_an_answer_that_loops_is_read_at_once(scripts: Scripts, tmp_path: Path) -> None:
    """128,000 characters; and the same verdict as the form's definition on short texts of its parts."""
    script = tmp_path / "form.py"
    script.write_text(
        "import importlib.util, json, random, re, time\n"
        f"spec = importlib.util.spec_from_file_location('reward', {str(REWARDS / 'deepscaler.py')!r})\n"
        "reward = importlib.util.module_from_spec(spec); spec.loader.exec_module(reward)\n"
        "loop = '<think>' + 'Wait. </think><answer>\\\\boxed{17}' * 4000\n"
        "form = re.compile(r'<think>.*</think>.*<answer>.*\\\\boxed\\{.*\\}.*</answer>', re.DOTALL)\n"
        "parts = ['<think>', '</think>', '<answer>', '</answer>', '\\\\boxed{', '}', 'x', '\\n']\n"
        "started = time.monotonic()\n"
        "scores = [reward.compute_score('deepscaler', t, '17')['form'] for t in (loop, loop + '</answer>')]\n"
        "took = time.monotonic() - started\n"
        "draw = random.Random(5)\n"
        "texts = [''.join(draw.choices(parts, k=draw.randint(0, 9))) for _ in range(9000)]\n"
        "texts += ['<think>' + text + '</answer>' for text in texts]\n"
        "other = [t for t in texts if reward.compute_score('deepscaler', t, '1')['form'] != bool(form.fullmatch(t.strip()))]\n"
        "print(json.dumps([scores, took, other]))\n"
    )
    scores, took, other = scripts.run(script, timeout=120).json
    assert (scores, other) == ([0.0, 1.0], [])
    assert took < 5


def test_a_node_without_mathruler_says_so(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "mathruler.py").write_text("raise ImportError('not here')\n")
    ended = scripts.run(REWARDS / "deepscaler.py", env={"PYTHONPATH": str(tmp_path)})
    assert ended.code != 0
    assert "needs mathruler on every node: pip install mathruler" in ended.err


def test_letters_are_read_as_a_person_reads_them() -> None:
    choices = _loaded("choices.py")
    for text, expected in {
        "AC": "AC",
        "C、A": "AC",
        "A和C": "AC",
        "选项D": "D",
        "\\text{B}": "B",
        "A、C和D": "ACD",
        "B. A company": "B",
        "B、A股市场": "B",
        "D: E. F. Hutton": "D",
        "A. 一; C. 三": "AC",
        "A、\\text{C}": "AC",
        "bad": "",
        "EBITDA": "",
    }.items():
        assert choices.letters(text) == expected, text


def _loaded(name: str) -> ModuleType:
    """As verl loads it: by its path."""
    spec = importlib.util.spec_from_file_location("reward", REWARDS / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
