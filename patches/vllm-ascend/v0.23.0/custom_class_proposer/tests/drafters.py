"""Proposers of a user's own, as vllm's `custom_class` takes them: made with a configuration, asked by `propose`."""


class Lookup:
    """Drafts what followed the last token where it stood before: the contract of vllm's documentation, and no more."""

    made = 0

    def __init__(self, vllm_config):
        type(self).made += 1
        self.drafts = vllm_config.speculative_config.num_speculative_tokens
        self.limit = vllm_config.model_config.max_model_len
        self.mappings = []

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings):
        self.mappings.append(slot_mappings)
        return [
            self.of(token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def of(self, tokens):
        before = [at for at, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        drafts = min(self.drafts, self.limit - len(tokens) - 1)
        return tokens[before[-1] + 1 :][:drafts] if before and drafts > 0 else []


class Knowing(Lookup):
    """One that has the model and the runner, and looks whether the rows that it is given are those of the runner's requests."""

    def load_model(self, model):
        self.model = model

    def set_runner(self, runner):
        self.runner, self.compared, self.wrong = runner, {"sampled": 0, "waiting": 0}, []

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings):
        for row, name in enumerate(self.runner.input_batch.req_ids):
            request = self.runner.requests[name]
            history = [*request.prompt_token_ids, *request.output_token_ids]
            # A row whose prompt is not yet computed to its end has a history too, and no token of this step.
            self.compared["sampled" if sampled_token_ids[row] else "waiting"] += 1
            if token_ids_cpu[row, : num_tokens_no_spec[row]].tolist() != history:
                self.wrong.append(name)
        return super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings)


class TooMany(Lookup):
    def of(self, tokens):
        return [tokens[-1]] * (self.drafts + 1)


class RowMissing(Lookup):
    def propose(self, *args, **kwargs):
        return super().propose(*args, **kwargs)[1:]


class Unable:
    def __init__(self, vllm_config):
        pass
