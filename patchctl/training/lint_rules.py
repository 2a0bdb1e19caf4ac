"""What `patchctl verify` checks of recipes."""

from __future__ import annotations

from patchctl.check.rule import LintRule

RULES = (
    LintRule("recipe-rule", "distribution", "every recipe keeps the rules of manifests/rules.yaml",
         "each rule says what goes wrong otherwise, mostly after hours of training"),
    LintRule("recipe-keys", "distribution", "each stack that recipes start has a list of its configuration's keys, manifests/keys/UPSTREAM/STACK.tsv",
         "without one any key passes, and a misspelt one stops the run when the cluster is up"),
    LintRule("recipe-needs", "distribution", "recipes need features that their profile has, and switch on just what they need",
         "a switch of a feature that is left out does nothing, or stops the run"),
    LintRule("recipe-packages", "distribution", "recipes and rewards name the packages that the rewards import",
         "a run would stop at its first reward, on every node that lacks them"),
    LintRule("rule-sample", "distribution", "every rule keeps its good samples and refuses its bad ones",
         "a rule that refuses nothing looks like one that is kept"),
)  # fmt: skip
