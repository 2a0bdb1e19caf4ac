"""scripts/prepare_data.py on small samples in the shapes of the public sets, made here, and against verl's own scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from data_and_weights import Ended, Scripts

pytest_plugins = ["data_and_weights"]

SCRIPT = "prepare_data.py"
COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")
GSM8K = [
    {"question": "Tom has 3 pens and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"},
    {"question": "What do 1,000 and 234 make?", "answer": "Add them.\n#### 1,234"},
    {"question": "It is 2 degrees, and 7 fewer at night.", "answer": "2 - 7 = -5\n#### -5"},
    {"question": "Half of 5?", "answer": "#### 2.5"},
]
MATH = [
    {"problem": "Find $x$.", "level": "Level 1", "type": "Algebra", "solution": "So $x = \\boxed{\\frac{1}{2}}$."},
    {
        "problem": "Find $y$.",
        "level": "Level 5",
        "type": "Geometry",
        "solution": "First \\boxed{1}, then $\\boxed{2}$.",
    },
    {"problem": "Find $z$.", "level": "Level 2", "type": "Algebra", "solution": "It is $\\boxed 3$ at last."},
    {
        "problem": "Find $w$.",
        "level": "Level 2",
        "type": "Algebra",
        "solution": "$\\boxed{\\{1, 2\\} \\cup \\{x^{2}\\}}$",
    },
]
# As BytedTsinghua-SIA/DAPO-Math-17k: verl's own columns, and an id for each problem.
ASKED = "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer"


def dapo_row(question: str, truth: str, index: Any, source: str = "math_dapo", repeat: int = 1) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"content": f"{ASKED}\n\n{question}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
        "repeat": repeat,
    }


def prepare(scripts: Scripts, *args: object) -> Ended:
    return scripts.run(SCRIPT, *args)


def written(scripts: Scripts, *args: object) -> Any:
    ended = prepare(scripts, *args, "--json")
    assert ended.code == 0, ended.err
    return ended.json


def as_json(path: Path, rows: Any) -> Path:
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


def folder_of_set(scripts: Scripts, folder: Path, name: str, train: list[Any], test: list[Any]) -> tuple[Path, Path]:
    """A set as it is cloned from the hub: parquet files, and the README that says which split each is."""
    files = [f"{name}/{split}-00000-of-00001.parquet" for split in ("train", "test")]
    splits = "".join(
        f"  - split: {split}\n    path: {file}\n" for split, file in zip(("train", "test"), files, strict=True)
    )
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{splits}---\n")
    one, other = (scripts.write_table(folder / f, rows) for f, rows in zip(files, (train, test), strict=True))
    return one, other


@pytest.mark.parametrize(
    ("dataset", "script", "name", "rows"),
    [("gsm8k", "gsm8k.py", "main", GSM8K), ("MATH-lighteval", "math_dataset.py", "default", MATH)],
)
def test_the_rows_are_those_of_verls_own_script(
    scripts: Scripts, tmp_path: Path, dataset: str, script: str, name: str, rows: list[Any]
) -> None:
    train, test = folder_of_set(scripts, tmp_path / "set", name, rows, rows[:2])
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs_script = scripts.trees.path("verl") / "examples/data_preprocess" / script
    if not theirs_script.is_file():
        pytest.skip("examples/ is not in this tree of verl: the source distribution has none")
    ended = scripts.run(
        theirs_script,
        *("--local_dataset_path", tmp_path / "set", "--local_save_dir", theirs),
        need=["verl"],
    )
    assert ended.code == 0, ended.err

    written(scripts, dataset, "--input", train, "--validation", test, "--out", tmp_path / "ours")
    for split in ("train", "test"):
        expected, found = scripts.read_table(theirs / f"{split}.parquet", tmp_path / "ours" / f"{split}.parquet")
        # verl's script keeps the set's other columns too; its dataset does not read them.
        assert found == [{column: row[column] for column in COLUMNS} for row in expected]


def test_deepscaler_is_prepared_as_verls_deepseek_recipe_does(scripts: Scripts, tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1), "solution": f"It is {n + 1}."} for n in range(20)]
    source = as_json(tmp_path / "deepscaler.json", rows)

    result = written(scripts, "deepscaler", "--input", source, "--out", tmp_path / "out")
    train, test = scripts.read_table(tmp_path / "out/train.parquet", tmp_path / "out/test.parquet")

    # recipe/r1_ascend splits by position, at int(n * 0.9).
    assert [row["prompt"][1] for row in [*train, *test]] == [{"role": "user", "content": r["problem"]} for r in rows]
    assert (len(train), len(test)) == (18, 2)
    assert train[3]["prompt"][0]["role"] == "system"
    assert all(tag in train[3]["prompt"][0]["content"] for tag in ("<think>", "</think>", "<answer>", "\\boxed{}"))
    assert train[3]["reward_model"] == {"style": "rule", "ground_truth": "4"}
    assert test[1]["extra_info"] == {"split": "test", "index": 1, "answer": "It is 20."}
    assert result["data_source"] == ["deepscaler"]
    assert result["reward"][0].endswith("scripts/rewards/deepscaler.py")
    assert Path(result["reward"][0].partition("=")[2]).is_file()


def test_twice_the_same_command_gives_the_same_bytes(scripts: Scripts, tmp_path: Path) -> None:
    source = as_json(
        tmp_path / "deepscaler.json", [{"problem": str(n), "answer": "1", "solution": ""} for n in range(30)]
    )
    for name in ("one", "two"):
        written(scripts, "deepscaler", "--input", source, "--out", tmp_path / name)
    for file in ("train.parquet", "test.parquet"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_row_without_an_answer_is_refused_by_name(scripts: Scripts, tmp_path: Path) -> None:
    rows = [{"problem": str(n), "answer": "" if n in (3, 7) else "1", "solution": ""} for n in range(10)]
    source = as_json(tmp_path / "deepscaler.json", rows)

    ended = prepare(scripts, "deepscaler", "--input", source, "--out", tmp_path / "out")
    assert ended.code == 2
    assert "2 of 10 rows" in ended.err
    assert "row 4: its answer is empty" in ended.err
    assert "row 8" in ended.err
    assert "--drop-unanswered" in ended.err
    assert not (tmp_path / "out").exists()

    result = written(scripts, "deepscaler", "--input", source, "--out", tmp_path / "out", "--drop-unanswered")
    assert len(result["unanswered"]) == 2
    assert sum(result["files"].values()) == 8


def test_repeats_of_dapo_math_are_taken_once_and_aime_is_kept_as_published(scripts: Scripts, tmp_path: Path) -> None:
    train_rows = [dapo_row(f"Problem {n}, 求值", str(n), f"id-{n}", repeat=100) for n in range(5)]
    train_rows.append(dapo_row("Problem 2, 求值", "77", "id-other"))
    train = scripts.write_table(tmp_path / "dapo-math-17k.parquet", train_rows)
    aime_rows = [dapo_row(f"AIME {n}", str(n), n, source="aime_2024", repeat=32) for n in range(3)]
    aime = scripts.write_table(tmp_path / "aime-2024.parquet", aime_rows)
    both = ("dapo-math-17k", "--input", train, "--validation", aime)

    result = written(scripts, *both, "--out", tmp_path / "out")
    made, validation = scripts.read_table(tmp_path / "out/train.parquet", tmp_path / "out/test.parquet")
    for row in train_rows:
        row.pop("repeat")
    assert made == train_rows[:5]
    assert result["repeats"] == 5 * 99 + 1
    assert len(result["contradicted"]) == 1
    assert "its answer is 77, and was 2" in result["contradicted"][0]
    assert len(validation) == 96
    assert result["data_source"] == ["aime_2024", "math_dapo"]
    assert result["reward"] == []

    all_of_it = written(scripts, *both, "--out", tmp_path / "all", "--keep-repeats", "--unique-validation")
    assert sorted(all_of_it["files"].values()) == [3, 501]


def test_choice_questions_of_dianjin(scripts: Scripts, tmp_path: Path) -> None:
    asked = "假设你是一位金融行业专家,请回答下列问题。\nA. 一\nB. 二\nC. 三\nD. 四"
    boxes = [
        "\\boxed{D}",
        "\\boxed{AC}",
        "\\boxed{C、A}",
        "\\boxed{\\text{B}}",
        "\\boxed{D. 980万元}",
        "\\boxed{B. A股}",
    ]
    rows = [
        {"instruction": f"{n} {asked}", "output": f"<think>\\boxed{{A}}</think><answer>{b}</answer> \\boxed{{E}}"}
        for n, b in enumerate(boxes)
    ]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    source = tmp_path / "cflue_mcq.json"
    source.write_text(lines, encoding="utf-8")  # one object a line, as some sets name .json too

    result = written(scripts, "DianJin-R1", "--input", source, "--out", tmp_path / "out")
    (made,) = scripts.read_table(tmp_path / "out/train.parquet")
    assert [row["reward_model"]["ground_truth"] for row in made] == ["D", "AC", "AC", "B", "D", "B"]
    assert made[0]["prompt"] == [{"role": "user", "content": rows[0]["instruction"]}]
    # 003's script writes the path of its input here, for which verl has no reward and says so at the first step only.
    assert result["data_source"] == ["cflue_mcq"]
    assert result["reward"][0].endswith("scripts/rewards/choices.py")

    source.write_text(lines + '\n{"instruction": "?", "output": "<answer>\\\\boxed{}</answer>"}', encoding="utf-8")
    ended = prepare(scripts, "DianJin-R1", "--input", source, "--out", tmp_path / "more")
    assert ended.code == 2
    assert "row 7: its output has no \\boxed{} with a choice" in ended.err


def test_math_500_is_for_validation(scripts: Scripts, tmp_path: Path) -> None:
    row = {
        "problem": "p",
        "solution": "s",
        "answer": "\\frac{1}{2}",
        "subject": "Algebra",
        "level": 3,
        "unique_id": "a/1",
    }
    source = tmp_path / "test.jsonl"
    source.write_text(json.dumps(row) + "\n", encoding="utf-8")

    result = written(scripts, "MATH-500", "--input", source, "--out", tmp_path / "out")
    assert list(result["files"]) == [str(tmp_path / "out/test.parquet")]
    (made,) = scripts.read_table(tmp_path / "out/test.parquet")
    assert made[0]["reward_model"]["ground_truth"] == "\\frac{1}{2}"
    assert made[0]["extra_info"] == {"split": "test", "index": 0}


def test_a_data_source_of_ones_own_needs_a_reward_of_ones_own(scripts: Scripts, tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in GSM8K), encoding="utf-8")

    ended = prepare(scripts, "gsm8k", "--input", source, "--out", tmp_path / "out", "--data-source", "./gsm8k.json")
    assert ended.code == 0
    assert "verl has none for ./gsm8k.json" in ended.out and "(verl before 0.9: without reward.)" in ended.out
    assert "  reward.custom_reward_function.name=compute_score" in ended.out  # verl v0.9.0's v1 trainer reads no other


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        ('[{"question": "q"}]', "a.json", "row 1 has no field answer"),
        ('[{"question": "q", "answer": "#### 1", "extra": 1}]', "a.json", "unknown field extra"),
        ('[{"question": "q", "answer": 5}]', "a.json", "no '#### NUMBER'"),
        ('[{"question": "", "answer": "#### 1"}]', "a.json", "field question is empty"),
        ("[1]", "a.json", "row 1 is int"),
        ("[{]", "a.json", "line 1 is no JSON"),
        ('{"question": "q", "answer": "#### 1"}\n{', "a.jsonl", "line 2 is no JSON"),
        ("PAR1", "a.parquet", "no parquet"),
        ("", "a.jsonl", "no row to write"),
        ("version https://git-lfs.github.com/spec/v1\n", "a.json", "Git LFS pointer"),
        ("x", "a.csv", "only .json, .jsonl and .parquet"),
        (None, "absent.json", "no such file"),
    ],
)
def test_bad_input_is_one_message(scripts: Scripts, tmp_path: Path, content: str | None, name: str, says: str) -> None:
    source = tmp_path / name
    if content is not None:
        source.write_text(content)
    ended = prepare(scripts, "gsm8k", "--input", source, "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_nothing_half_written(scripts: Scripts, tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in GSM8K), encoding="utf-8")
    out = tmp_path / "out"
    args = ("gsm8k", "--input", source, "--out", out, "--train-ratio", "0.5")
    written(scripts, *args)
    before = (out / "train.parquet").read_bytes()

    ended = prepare(scripts, *args, "--data-source", "math")
    assert (ended.code, (out / "train.parquet").read_bytes()) == (2, before)
    written(scripts, *args, "--data-source", "math", "--force")
    assert (out / "train.parquet").read_bytes() != before
    assert sorted(path.name for path in out.iterdir()) == ["test.parquet", "train.parquet"]
    ended = prepare(scripts, "gsm8k", "--input", source, "--out", tmp_path / "none", "--train-ratio", "0.1")
    assert (ended.code, (tmp_path / "none").exists()) == (2, False)


def test_without_pyarrow_it_says_which_python_is_meant(scripts: Scripts, tmp_path: Path) -> None:
    # -S: the interpreter without its site-packages is one that has no pyarrow.
    bare = tmp_path / "bare.sh"
    bare.write_text(f'exec {scripts.python} -S {Path(__file__).parents[2]}/scripts/prepare_data.py "$@"\n')
    source = as_json(tmp_path / "a.json", GSM8K)
    ended = scripts.run(bare, "gsm8k", "--input", source, "--out", tmp_path / "out")
    assert ended.code == 2
    assert "has no pyarrow" in ended.err
    assert "training environment" in ended.err


def test_sums_are_made_with_a_seed(scripts: Scripts, tmp_path: Path) -> None:
    result = written(scripts, "made-sums", "--out", tmp_path / "one", "--count", 300, "--seed", 3)
    train, test = scripts.read_table(tmp_path / "one/train.parquet", tmp_path / "one/test.parquet")
    for row in [*train, *test]:
        first, second = row["prompt"][0]["content"].removesuffix("=").split("+")
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(int(first) + int(second))}
        assert 0 <= int(first) <= 3 and 0 <= int(second) <= 3 and row["data_source"] == "made/sums"
    questions = [row["prompt"][0]["content"] for row in train]
    assert (len(questions), len(set(questions))) == (300, 16)
    assert len({row["prompt"][0]["content"] for row in test}) == len(test) == 16
    assert result["reward"][0].endswith("scripts/rewards/sums.py")

    for name, seed in (("again", 3), ("other", 4)):
        written(scripts, "made-sums", "--out", tmp_path / name, "--count", 300, "--seed", seed)
    same, others = ((tmp_path / n / "train.parquet").read_bytes() for n in ("again", "other"))
    assert same == (tmp_path / "one/train.parquet").read_bytes() != others


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("made-sums", "--input", "x.json"), "read from no file"),
        (("made-sums", "--train-ratio", "0.5"), "read from no file"),
        (("made-sums", "--count", "0"), "at least one row"),
        (("gsm8k", "--input", "x.json", "--seed", "1"), "leave --count and --seed out"),
        (("gsm8k",), "--input and --out are needed"),
    ],
)
def test_a_set_is_made_or_read(scripts: Scripts, tmp_path: Path, args: tuple[str, ...], told: str) -> None:
    ended = prepare(scripts, *args, "--out", tmp_path / "out")
    assert ended.code == 2 and told in ended.err
    assert not (tmp_path / "out").exists()
