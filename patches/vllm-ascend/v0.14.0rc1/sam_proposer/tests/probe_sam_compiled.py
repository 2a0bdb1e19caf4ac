"""What of the automata numba compiles in this process, what it takes from its cache, and where that lies."""

import json
from pathlib import Path

from automaton_reference import load_automaton

AUTOMATON = load_automaton()
AUTOMATON.SuffixAutomatonPool(3, max_bytes=1 << 20, num_slots=1).warm_up()
ENTRIES = [AUTOMATON.append, AUTOMATON.is_history, AUTOMATON.match, AUTOMATON.propose, AUTOMATON.release]


def counted(entry):
    return [sum(entry.stats.cache_hits.values()), sum(entry.stats.cache_misses.values())]


print(
    json.dumps(
        {
            "entries": {entry.__name__: counted(entry) for entry in ENTRIES},
            "beside": [str(path) for path in Path(AUTOMATON.__file__).parent.rglob("*.nb?")],
        }
    )
)
