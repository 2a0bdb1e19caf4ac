"""What `patchctl verify` checks of recipes and of what is kept about the practice's documents."""

from __future__ import annotations

from patchctl.check.rules import Rule

RULES = (
    Rule("recipe-rule", "distribution", "every recipe keeps the rules of manifests/rules.yaml",
         "each rule says what goes wrong otherwise, mostly after hours of training"),
    Rule("recipe-needs", "distribution", "recipes need features that their profile has, and switch on just what they need",
         "a switch of a feature that is left out does nothing, or stops the run"),
    Rule("recipe-packages", "distribution", "recipes and rewards name the packages that the rewards import",
         "a run would stop at its first reward, on every node that lacks them"),
    Rule("rule-sample", "distribution", "every rule keeps its good samples and refuses its bad ones",
         "a rule that refuses nothing looks like one that is kept"),
    Rule("coverage-words", "distribution", "the numbers and names of an item of coverage.yaml stand in its document's section, and where it points",
         "a reader would look for the one thing that the page does not have, or believe that a document says it"),
    Rule("source-words", "distribution", "a value has a source that stands where it says, by name or by the words in its brackets, or says `ours:`",
         "a value of ours would pass for one that somebody measured"),
    Rule("coverage-item", "distribution", "what coverage.yaml points at is there, and no section is without an item",
         "a reader of the practice's documents would be sent to a recipe, script or page that does not exist"),
)  # fmt: skip
