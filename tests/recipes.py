"""Recipes and rules for the small distribution of `distribution`: `quiet`, and `loud`, which extends it."""

from __future__ import annotations

from distribution import Made, write_files

BASE = """\
schema: 1
name: base
summary: A part.
of_each_node:
  GREETER_PORT: a free port of this node
sizes:
  nodes: 2
  devices_per_node: 8
  prompt: 112
  response: {value: = prompt * 2, source: "007, 1"}
paths:
  model: {what: the greeter's book, variable: BOOK_PATH}
  voice: {what: a voice, variable: VOICE, default: /voices/low}
overrides:
  greeter.model: "@model"
  greeter.tokens: = prompt + response
  trainer.nodes: {value: = nodes, ours: the size of the recipe}
data:
  train: {name: words, data_source: words}
entry: {module: greeter.hello, config: greeting, upstream: greeter}
"""
QUIET = """\
schema: 1
name: quiet
summary: Says it softly.
extends: shared/base
source: 007, 2
environment:
  QUEUE: 2
  GREETING: {value: "it's ${HOME}", why: The shell must not read it.}
overrides:
  greeter.text: "hello, it's me"
  greeter.rate: 1e-6
  +greeter.sizes: [8, 16]
"""
LOUD = """\
schema: 1
name: loud
summary: Says it aloud.
extends: quiet
needs: [loud, step]
without: [greeter.rate, GREETING]
limits: ["Ears: none."]
environment:
  QUEUE: 1
  GREETER_LOUD: 3
  LD_PRELOAD: "@voice"
sizes:
  response: 288
overrides:
  +clock.step: 2
"""
RULES = """\
schema: 1
rules:
  loud-queue:
    says: who is loud has QUEUE=1
    why: others wait.
    source: 007, 3
    when: {given: [env.GREETER_LOUD]}
    must: {equals: {env.QUEUE: 1}}
    hint: QUEUE=1
    good: [{env.GREETER_LOUD: 3, env.QUEUE: 1}]
    bad: [{env.GREETER_LOUD: 3}]
  tokens-fit:
    says: tokens fit the devices
    why: a device has one ear
    source: 007, 4
    must: {holds: [greeter.tokens % devices == 0]}
    hint: other sizes
    good: [{greeter.tokens: 16, devices: 8}]
    bad: [{greeter.tokens: 17, devices: 8}]
defaults:
  all: {greeter.tokens: 64}
"""
KEYS = """\
greeter\tmapping\tall
greeter.model\tvalue\tall
greeter.more\tvalue\tall
greeter.rate\tvalue\tall
greeter.text\tvalue\tall
greeter.tokens\tvalue\tall
trainer\tmapping\tall
trainer.nodes\tvalue\tall
clock\tmapping\tall
"""


def with_recipes(made: Made) -> Made:
    """Adds the recipes and rules of this module, and a list of keys for each stack of greeter."""
    stacks = [path.stem for path in (made.root / "manifests/stacks/greeter").glob("*.yaml")]
    write_files(made.root, {f"manifests/keys/greeter/{stack}.tsv": KEYS for stack in stacks})
    write_files(
        made.root,
        {
            "manifests/recipes/shared/base.yaml": BASE,
            "manifests/recipes/full/quiet.yaml": QUIET,
            "manifests/recipes/full/loud.yaml": LOUD,
            "manifests/rules.yaml": RULES,
        },
    )
    return made
