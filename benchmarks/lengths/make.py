#!/usr/bin/env python3
"""Makes NAME.json in this folder from a published trace: quantiles of its lengths in tokens, and where they come from.

    git clone https://github.com/Azure/AzurePublicDataset trace && git -C trace checkout b469a113ced
    python benchmarks/lengths/make.py azure_conversation trace

SOURCES below names repository, commit and licence of each. A trace is cut into PARTS parts of equally many requests,
shortest first; the quantile is the length in the middle of a part, which so is one that was measured. What lies beyond
the middle of the last part, the longest thousandth, is in `longest` alone.

Exit codes: 0 written; 2 wrong use, or not the trace that is expected.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = 512


@dataclass(frozen=True)
class Source:
    """A published trace: `read` takes the file or folder `path` of its repository and counts requests by length."""

    what: str
    repository: str
    commit: str
    path: str
    licence: str
    attribution: str
    read: Callable[[Path], Counter[int]]


def azure(trace: Path) -> Counter[int]:
    with trace.open(encoding="utf-8", newline="") as lines:
        return Counter(int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in csv.DictReader(lines))


def mooncake(trace: Path) -> Counter[int]:
    requests = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines() if line]
    return Counter(request["input_length"] + request["output_length"] for request in requests)


def servegen(folder: Path) -> Counter[int]:
    """Answers by length. The trace has what share of a client's answers in a quarter of the day had each length.

    The smallest share is that of one answer: with it as the unit all shares of that quarter are whole numbers. Prompts
    are published apart, not with the answer they belong to, so there is no sum of both.
    """
    found: Counter[int] = Counter()
    for client in sorted(folder.glob("*-dataset.json")):
        for quarter in json.loads(client.read_text(encoding="utf-8")).values():
            shares: dict[int, float] = ast.literal_eval(quarter["output_tokens"])
            one = min(shares.values(), default=1.0)
            found.update({length: _whole(share / one) for length, share in shares.items()})
    return found


def _whole(number: float) -> int:
    if abs(number - round(number)) > 1e-3:
        raise ValueError(f"{number} answers of a length, where a whole number is expected")
    return round(number)


SOURCES = {
    "azure_conversation": Source(
        what="prompt and answer, requests to a conversation service in an hour of November 2023",
        repository="https://github.com/Azure/AzurePublicDataset",
        commit="b469a113cedca53ddc3bdea71a143dc4b7d8700c",
        path="data/AzureLLMInferenceTrace_conv.csv",
        licence="CC-BY-4.0",
        attribution="Microsoft; Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024",
        read=azure,
    ),
    "deepseek_r1_answers": Source(
        what="answers of DeepSeek-R1 with their reasoning, to 73 clients of a public service in a day",
        repository="https://github.com/alibaba/ServeGen",
        commit="f891d1189eb32b3868dfc443800c4150548c282a",
        path="data/reason/deepseek-r1",
        licence="Apache-2.0",
        attribution="Xiang et al., ServeGen: Workload Characterization and Generation of Large Language Model Serving in "
        "Production, arXiv 2505.09999",
        read=servegen,
    ),
    "mooncake_conversation": Source(
        what="prompt (the conversation so far) and answer, requests to a chat service with long contexts",
        repository="https://github.com/kvcache-ai/Mooncake",
        commit="3b5a594133958449a1feaf1c9e0fc1b553e34a28",
        path="FAST25-release/traces/conversation_trace.jsonl",
        licence="Apache-2.0",
        attribution="Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025",
        read=mooncake,
    ),
}


def quantiles(counts: Counter[int], parts: int) -> list[int]:
    """The length in the middle of each of `parts` parts of equally many requests, shortest first."""
    total, passed = counts.total(), 0
    found: list[int] = []
    for length in sorted(counts):
        passed += counts[length]
        while len(found) < parts and (2 * len(found) + 1) * total < 2 * parts * passed:
            found.append(length)
    return found


def document(source: Source, counts: Counter[int]) -> str:
    total = counts.total()
    facts = {
        "what": source.what,
        "repository": source.repository,
        "commit": source.commit,
        "path": source.path,
        "licence": source.licence,
        "attribution": source.attribution,
        "made_by": "benchmarks/lengths/make.py",
        "requests": total,
        "mean": round(sum(length * count for length, count in counts.items()) / total, 1),
        "longest": max(counts),
    }
    head = json.dumps(facts, indent=2, ensure_ascii=False).removesuffix("\n}")
    numbers = ", ".join(map(str, quantiles(counts, PARTS)))
    lines = textwrap.fill(numbers, width=118, initial_indent="    ", subsequent_indent="    ")
    return f'{head},\n  "quantiles": [\n{lines}\n  ]\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SOURCES))
    parser.add_argument("checkout", type=Path, help="the source's repository, at its commit")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to write to (default: this one)")
    args = parser.parse_args(arguments)
    source = SOURCES[args.name]
    place = args.checkout / source.path
    try:
        counts = source.read(place)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError) as error:
        print(
            f"make: {place}: not the trace of {source.repository} at {source.commit[:12]}: {error!r}", file=sys.stderr
        )
        return 2
    if not counts:
        print(f"make: {place}: no requests; {source.repository} at {source.commit[:12]} is expected", file=sys.stderr)
        return 2
    (args.out / f"{args.name}.json").write_text(document(source, counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
