"""A distribution that wants to do more than be read, for the tests of its report: every text in it that may be free is HTML, a
script, quotes or characters that turn what is read; and a run of `drift` over a release of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from distribution import CLOCK, GREETER, Made, Patch, git, make_distribution, write_files
from recipes import with_recipes

OWNED = "<script>document.title='owned'</script>"
ODD = f"</script>{OWNED}\"'><img src=x onerror=document.title='owned'> &amp; <!-- \u202eevil"
SWITCH = "env GREETER_ODD=\"'><b onclick=document.title='owned'>"
PROFILE = "</title></style><svg onload=document.title='owned'>"
_ODD_PATH = "greeter/odd&amp;#60.py"


def make_odd(folder: Path) -> Made:
    """The small distribution with recipes, a patch `odd` of greeter, and texts in manifests."""
    loud = GREETER.patches[-1].edits["greeter/hello.py"] or ""
    odd = Patch(
        "odd",
        {"greeter/hello.py": loud + f"\n# {ODD}\n", _ODD_PATH: f"ODD = {ODD!r}\n"},
        ODD,
        SWITCH,
        "polite, step@clock",
    )
    made = with_recipes(
        make_distribution(folder, (replace(GREETER, patches=(*GREETER.patches, odd)), CLOCK), lock=True)
    )
    made.edit("manifests/profiles/full.yaml", "The profile full.", json.dumps(PROFILE))
    made.edit("manifests/recipes/full/loud.yaml", "Says it aloud.", json.dumps(ODD.replace("\u202e", "")))
    made.edit("manifests/recipes/full/loud.yaml", "Ears: none.", PROFILE.replace('"', ""))
    return made


def drifted(made: Made, folder: Path) -> Path:
    """What `drift --json` prints of greeter on a release that has changed, whose name is made as bad as a file can have it."""
    repo = Path(shutil.copytree(made.origins / "greeter", folder / "greeter"))
    write_files(repo, {"greeter/hello.py": "def hello():\n    return 1\n"})
    git(repo, "commit", "--quiet", "-am", "anew")
    git(repo, "tag", "v9")
    done = made.patchctl("drift", "greeter", "--mirror", f"greeter={repo}", "--against", "v9", "--json")
    assert done.returncode == 20, done.stderr
    data = json.loads(done.stdout)
    data["stacks"][0]["releases"].append({**data["stacks"][0]["releases"][0], "release": ODD})
    file = folder / "drift.json"
    file.write_text(json.dumps(data))
    return file
