"""What of automata and tables numba compiles in this process, what it takes from its cache, and where that lies."""

import json
from importlib import import_module
from pathlib import Path

from automaton_reference import load_automaton

AUTOMATON = load_automaton()
AUTOMATON.SuffixAutomatonPool(3, max_bytes=1 << 20, num_slots=1).warm_up()
TABLES = import_module("vllm_ascend.spec_decode.context_tables")
TABLES.ContextTables(3, 1024, max_bytes=1 << 20).warm_up()
ENTRIES = {
    "automaton": [AUTOMATON.append, AUTOMATON.is_history, AUTOMATON.match, AUTOMATON.propose, AUTOMATON.release],
    "tables": [TABLES.propose, TABLES.release],
}


def counted(entry):
    return [sum(entry.stats.cache_hits.values()), sum(entry.stats.cache_misses.values())]


print(
    json.dumps(
        {
            "entries": {f"{of} {entry.__name__}": counted(entry) for of, some in ENTRIES.items() for entry in some},
            "beside": [str(path) for path in Path(AUTOMATON.__file__).parent.rglob("*.nb?")],
        }
    )
)
