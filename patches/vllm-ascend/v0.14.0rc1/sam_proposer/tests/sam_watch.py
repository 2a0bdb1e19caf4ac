"""Watches the scheduler and the drafter of an engine: what was drafted, accepted and preempted, and of what."""


class Watched:
    """Counts, and compares the drafts of sam with those of tables made of the scheduler's tokens at once.

    In a group a request may follow what another one has generated; then it is checked that the first draft followed
    the end of the request's tokens somewhere in the group.
    """

    def __init__(self, llm, group=False):
        self.core = core = llm.llm_engine.engine_core.engine_core
        self.scheduler, self.runner = core.scheduler, core.model_executor.driver_worker.model_runner
        self.drafter, self.group = self.runner.drafter, group
        self.settings = self.runner.speculative_config
        self.skip, self.counts, self.wrong, self.histories = None, {}, [], {}
        self.is_sam = hasattr(self.drafter, "pool")
        self._observe_scheduler()
        self._observe_drafter()

    def during(self, load):
        """What `load` returns, as `tokens`, and the counts while it ran."""
        names = (
            "steps",
            "drafted",
            "accepted",
            "preempted",
            "prefix_hits",
            "chunks",
            "skipped",
            "compared",
            "followed",
        )
        self.counts, self.wrong = dict.fromkeys(names, 0), []
        tokens = load()
        return self.counts | {"tokens": tokens, "wrong": self.wrong[:3]}

    def skipping(self, load, skip):
        """Runs `load` with no drafts in the steps for whose number `skip` is true."""
        self.skip = skip
        try:
            return load()
        finally:
            self.skip = None

    def left(self):
        """After all requests: what is kept of them when the runner has been told that the last ones ended."""
        self.core.step()
        self.drafter.release_ended()
        return {
            "runner": len(self.runner.requests),
            "requests": len(self.drafter._followed),
            "bytes": self.drafter.pool.used_bytes(),
        }

    def _observe_scheduler(self):
        take = self.scheduler.update_from_output

        def observed(scheduled, output):
            counts, drafted = self.counts, scheduled.scheduled_spec_decode_tokens
            counts["steps"] += 1
            counts["drafted"] += sum(map(len, drafted.values()))
            for request in drafted:
                tokens = output.sampled_token_ids[output.req_id_to_index[request]]
                counts["accepted"] += max(len(tokens) - 1, 0)
            counts["preempted"] += len(scheduled.preempted_req_ids or ())
            counts["prefix_hits"] += sum(new.num_computed_tokens > 0 for new in scheduled.scheduled_new_reqs)
            return take(scheduled, output)

        self.scheduler.update_from_output = observed

    def _observe_drafter(self):
        propose = self.drafter.generate_token_ids

        def observed(sampled, *args, **kwargs):
            if self.skip and self.skip(self.counts["steps"]):
                self.counts["skipped"] += 1
                return [[] for _ in sampled]
            drafts = propose(sampled, *args, **kwargs)
            if self.is_sam:
                self._compare(sampled, drafts)
            return drafts

        self.drafter.generate_token_ids = observed

    def _compare(self, sampled, drafts):
        if len(sampled) != len(drafts):
            self.wrong.append(["rows", len(sampled), len(drafts)])
        names = self.runner.input_batch.req_ids
        for name, tokens in zip(names, sampled, strict=True):  # all of them: one can follow what another has just got
            self.histories[name] = [*self.scheduler.requests[name].all_token_ids, *tokens]
        for name, tokens, draft in zip(names, sampled, drafts, strict=True):
            if tokens:
                self._compare_one(name, draft)
                continue
            self.counts["chunks"] += 1
            if draft:
                self.wrong.append(["a draft for an incomplete prompt", draft])

    def _compare_one(self, name, draft):
        request, history = self.scheduler.requests[name], self.histories[name]
        limit = max(0, min(self.drafter.num_drafts, self.drafter.max_model_len - len(history) - 1))
        self.counts["compared"] += 1
        if self.group:
            group = [
                other
                for other in self.histories.values()
                if other[: request.num_prompt_tokens] == list(request.prompt_token_ids)
            ]
            wrong = len(draft) > limit or not follows(history, draft, group, self.settings.sam_min_match_length)
            # What it has not had itself after a token or two, another one has.
            self.counts["followed"] += bool(draft) and not follows(history, draft, [history], 2)
        else:
            wrong = draft != made_at_once(history, limit, self.settings, self.drafter)
        if wrong:
            self.wrong.append([name, len(history), draft])


def made_at_once(history, limit, settings, drafter):
    """The drafts of tables, or of an automaton as the drafter has it, that are given the whole history in one call."""
    import numpy as np
    from vllm_ascend.spec_decode.context_tables import ContextTables
    from vllm_ascend.spec_decode.suffix_automaton import as_lists

    kind = type(drafter.pool)
    pool = kind(
        num_draft_tokens=settings.num_speculative_tokens,
        min_match_length=settings.sam_min_match_length,
        drafts_per_match=settings.sam_max_drafts_per_match,
        max_bytes=1 << 20,
        num_slots=1,
        **({"max_length": drafter.max_model_len} if kind is ContextTables else {}),
    )
    one = np.ones(1, np.int32)
    tokens = np.array([history], np.int32)
    return as_lists(pool.propose(one * pool.open(), tokens, one * 0, one * len(history), one * limit))[0]


def follows(history, draft, group, shortest):
    """Whether the draft begins with a token that followed the history's last `shortest` tokens, in one of the group."""
    if not draft:
        return True
    end = [*history[-shortest:], draft[0]]
    return any(other[i : i + len(end)] == end for other in group for i in range(len(other) - len(end) + 1))
