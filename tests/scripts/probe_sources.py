"""Probe: which of the data sources of standard input verl has a reward for. Prints {data_source: bool}."""

import json
import sys

from verl.utils.reward_score import default_compute_score


def scored(source):
    try:
        default_compute_score(source, "", "{}")
    except NotImplementedError:
        return False
    except Exception:
        # It has a reward, which wants a sandbox or answers of another form.
        return True
    return True


print(json.dumps({source: scored(source) for source in json.loads(sys.argv[1])}))
