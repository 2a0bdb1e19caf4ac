"""Probe: the shared history without an engine: random courses beside a search of every position, and its memory.

Usage: probe_sam_shared_history.py. SharedSamProposer gets what it reads of a runner: requests, and rows of their tokens.
"""

import json
import random
from collections import Counter
from types import SimpleNamespace

import npu_engine

npu_engine.prepare()

import numpy as np  # noqa: E402
from vllm_ascend.spec_decode import suffix_shared  # noqa: E402
from vllm_ascend.spec_decode.sam_shared_proposer import SharedSamProposer  # noqa: E402
from vllm_ascend.spec_decode.suffix_automaton import SuffixAutomatonPool  # noqa: E402

DRAFTS, ROWS, WIDTH, MOST = 4, 3, 96, 60


def proposer(shortest=1, megabytes=4):
    """One with an empty runner."""
    speculative = SimpleNamespace(
        method="sam",
        num_speculative_tokens=DRAFTS,
        sam_min_match_length=shortest,
        sam_max_drafts_per_match=2,
        sam_share_in_group=False,
        sam_max_memory_mb=4,
    )
    batch = SimpleNamespace(
        req_ids=[],
        token_ids_cpu=np.zeros((ROWS, WIDTH), np.int32),
        num_tokens_no_spec=np.zeros(ROWS, np.int32),
        spec_decode_unsupported_reqs=set(),
    )
    config = SimpleNamespace(
        speculative_config=speculative,
        model_config=SimpleNamespace(max_model_len=WIDTH),
        scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        additional_config={"sam_shared_history": {"max_memory_mb": megabytes, "updates": 1}},
    )
    runner = SimpleNamespace(input_batch=batch, requests={}, add_lora=lambda lora: ("added", lora))
    made = SharedSamProposer(config, None, runner)
    made.model = SimpleNamespace(load_weights=lambda weights: ("loaded", weights))
    made.load_model(made.model)
    return made


def request(prompt, output=(), adapter=0, images=()):
    lora = SimpleNamespace(lora_int_id=adapter) if adapter else None
    return SimpleNamespace(
        prompt_token_ids=list(prompt), output_token_ids=list(output), mm_features=list(images), lora_request=lora
    )


def drafts_of(made):
    """Lets every request of the runner draft; each is a row, in the order of the runner."""
    batch, requests = made.runner.input_batch, made.runner.requests
    batch.req_ids[:] = list(requests)
    for row, one in enumerate(requests.values()):
        tokens = one.prompt_token_ids + one.output_token_ids
        batch.token_ids_cpu[row, : len(tokens)] = tokens
        batch.num_tokens_no_spec[row] = len(tokens)
    return made.generate_token_ids([[0]] * len(requests))


def end(made, *names):
    made.take_ended(set(names))
    for name in names:
        del made.runner.requests[name]


def longest(context, histories):
    """The length of the longest end of `context` that some token follows, and what follows."""
    for length in range(len(context), 0, -1):
        found = [
            history[i + length]
            for history in histories
            for i in range(len(history) - length)
            if history[i : i + length] == context[-length:]
        ]
        if found:
            return length, found
    return 0, []


class Course:
    """Requests that come, grow, lose tokens and end, under two adapters, and updates of the weights, at random."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.symbols, self.shortest = self.random.choice([2, 3, 6]), self.random.choice([1, 2])
        self.made = proposer(self.shortest)
        self.requests = self.made.runner.requests
        self.generations = [{0: [], 1: []}, {0: [], 1: []}]
        self.count = 0
        self.seen = {"wrong": [], "compared": 0, "shared": 0, "frequent": 0, "updates": 0, "replaced": 0}

    def tokens(self, most):
        return [self.random.randrange(self.symbols) for _ in range(self.random.randint(1, most))]

    def go(self, steps):
        for _ in range(steps):
            if self.random.random() < 0.06:
                self.update()
            if len(self.requests) < ROWS:
                self.requests[f"r{self.count}"] = request(self.tokens(20), adapter=self.random.randrange(2))
                self.count += 1
            for name, one in list(self.requests.items()):
                self.change(name, one)
            self.compare(drafts_of(self.made)) if self.requests else None
        return self.seen

    def update(self):
        if any(self.generations[0].values()):
            self.generations = [{0: [], 1: []}, self.generations[0]]
            self.seen["updates"] += 1
        if self.random.random() < 0.5:
            assert self.made.model.load_weights("all") == ("loaded", "all")
        else:
            assert self.made.runner.add_lora("one") == ("added", "one")

    def change(self, name, one):
        if len(one.output_token_ids) > 2 and self.random.random() < 0.1:
            last = [token + 1 for token in one.output_token_ids[-2:]]  # as many others
            one.output_token_ids[-2:] = last
            self.seen["replaced"] += 1
        else:
            one.output_token_ids += self.tokens(4)
        if len(one.prompt_token_ids) + len(one.output_token_ids) > MOST - 8 or self.random.random() < 0.1:
            adapter = one.lora_request.lora_int_id if one.lora_request else 0
            self.generations[0][adapter].append(one.prompt_token_ids + one.output_token_ids)
            end(self.made, name)

    def compare(self, drafts):
        for (name, one), draft in zip(self.requests.items(), drafts, strict=True):
            context = one.prompt_token_ids + one.output_token_ids
            adapter = one.lora_request.lora_int_id if one.lora_request else 0
            own = self.made.pool.match_length(self.made._followed[name].slot)
            best, followers, histories = own, None, [context]
            for generation in self.generations:
                length, found = longest(context, generation[adapter])
                if length > best:
                    best, followers, histories = length, found, generation[adapter]
            self.seen["compared"] += 1
            most = min(DRAFTS, 2 * best) if best >= self.shortest else 0
            wrong = len(draft) > most or bool(draft) != bool(most)
            for i, token in enumerate(draft):
                wrong |= token not in longest([*context, *draft[:i]], histories)[1] and not self.follows(
                    [*context, *draft[:i]], token, histories
                )
            if followers and draft:
                counts = Counter(followers)
                self.seen["shared"] += 1
                self.seen["frequent"] += len(set(counts.values())) > 1
                wrong |= counts[draft[0]] < max(counts.values())
            if wrong:
                self.seen["wrong"].append([context, draft, own, best, followers])

    def follows(self, context, token, histories):
        """Whether the token followed a long enough end of the context: where drafts go on is a shorter one sometimes."""
        end = [*context[-self.shortest :], token]
        return any(history[i : i + len(end)] == end for history in histories for i in range(len(history)))


def searched():
    courses = [Course(seed).go(60) for seed in range(24)]
    return {name: sum((one[name] for one in courses), type(courses[0][name])()) for name in courses[0]}


def order():
    """The last of what was added is followed where nothing else tells: each rank must add in the same order."""
    found = []
    for names in (["a", "b"], ["b", "a"]):
        made = proposer()
        made.runner.requests |= {"a": request([5, 6], [7]), "b": request([5, 6], [8]), "c": request([5, 6])}
        made.take_ended(dict.fromkeys(names).keys())
        for name in names:
            del made.runner.requests[name]
        found.append(drafts_of(made))
    return found


def images():
    """Neither added nor drafted for."""
    made = proposer()
    made.runner.requests["a"] = request([5, 6, 7], images=[0])
    end(made, "a")
    after_images = made.shared.used_bytes()
    made.runner.requests["b"] = request([5, 6, 7])
    end(made, "b")
    made.runner.requests |= {"c": request([5], images=[0]), "d": request([5])}
    return {"bytes": after_images, "drafts": drafts_of(made)}


def full():
    """A cap of 1 MiB: what goes first, and what is left out; then updates, which make room."""
    own = SuffixAutomatonPool(DRAFTS, max_bytes=1 << 20)
    shared = suffix_shared.SharedHistory(own, 1 << 20, 1)
    order = np.random.default_rng(0)
    answers = [order.integers(0, 1000, 1500) for _ in range(60)]
    seen = {"used": [], "generations": [], "added": []}

    def note(added):
        seen["added"].append(added)
        seen["used"].append(shared.used_bytes())
        seen["generations"].append([len(one) for one in shared._generations])

    for answer in answers[:4]:
        note(shared.add(answer))
    shared.weights_updated()
    for answer in answers[4:]:
        note(shared.add(answer))
    left_out = shared.num_left_out
    shared.weights_updated()
    shared.weights_updated()  # nothing was added since: the same update, told twice
    after = [shared.used_bytes(), [len(one) for one in shared._generations]]
    room = [shared.add(answers[0]), [len(one) for one in shared._generations]]
    shared.weights_updated()
    empty = []
    for answer in answers[:1] * 2:
        shared.add(answer)
        shared.weights_updated()
        empty.append(shared.used_bytes())
    return seen | {"left_out": left_out, "after": after, "room": room, "small": empty}


def given_up():
    """Room for which too little was asked ends in the middle of a request: all of the generation goes, and it goes on."""
    suffix_shared.TOKEN_BYTES = 0
    made = proposer(megabytes=1)
    order = np.random.default_rng(0)
    added = []
    while len(added) < 100 and all(added):
        made.runner.requests["a"] = request(order.integers(0, 1000, 5000).tolist())
        before = made.shared.num_left_out
        end(made, "a")
        added.append(made.shared.num_left_out == before)
    used = made.shared.used_bytes()
    made.runner.requests["b"] = request([1, 2, 3, 1])
    drafts = drafts_of(made)
    end(made, "b")
    return {"added": added, "used": used, "drafts": drafts, "goes_on": made.shared.used_bytes() > 0}


def ages(updates):
    """By update of the weights whether an answer is still drafted from; after each another one ends."""
    own = SuffixAutomatonPool(DRAFTS, max_bytes=1 << 20)
    shared = suffix_shared.SharedHistory(own, 1 << 20, updates)
    slot = own.open()
    shared.open(slot)
    shared.add([5, 6, 7, 8])
    one, known, found = np.ones(1, np.int32), np.zeros(64, np.int32), []
    for update in range(6):
        drafted = np.zeros((1, DRAFTS + 1), np.int32)
        shared.improve(one * slot, np.array([[5, 6]], np.int32), one * 0, one * 2, one * 2, known, drafted)
        found.append(int(drafted[0, -1]))
        shared.add([100 + update, 50])
        shared.weights_updated()
    return found


print(
    json.dumps(
        {
            "searched": searched(),
            "order": order(),
            "images": images(),
            "full": full(),
            "ages": [ages(1), ages(2)],
            "given_up": given_up(),
        }
    )
)
