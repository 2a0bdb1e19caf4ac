"""Probe: which operator sources use names of <cstring>, and whether the command that compiles each of them declares these.

Usage: probe_cstring_commands.py FOLDER   (FOLDER stands for CANN, and takes torch's build files and sources)
Prints, for each source (below mindspeed/) of each builder: {"names": {file: the names of <cstring> in it, for the source and its headers},
"includes it": whether one of these files includes <cstring>, "builds": {builder: {"returncode", "stderr"}}}. Such a build compiles
the names alone, with the very command that torch wrote for the source.
"""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
os.environ |= {
    "CXX": "/bin/false",  # the files that torch writes for ninja are what counts: no operator compiles without CANN
    "TORCH_DONT_CHECK_COMPILER_ABI": "1",
    "TORCH_EXTENSIONS_DIR": str(FOLDER / "extensions"),
    "ASCEND_HOME_PATH": str(FOLDER),
    "ATB_HOME_PATH": str(FOLDER),
}

import mindspeed  # noqa: E402
import mindspeed.op_builder as op_builder  # noqa: E402
from mindspeed.op_builder.builder import MindSpeedOpBuilder  # noqa: E402

ROOT = Path(mindspeed.__file__).resolve().parent
# What C++17 declares in <cstring>, less size_t and NULL, which are <cstddef>'s as well.
NAMES = (
    "memcpy memmove strcpy strncpy strcat strncat memcmp strcmp strcoll strncmp strxfrm memchr strchr strcspn strpbrk strrchr strspn "
    "strstr strtok memset strerror strlen"
)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def builders():
    """One of each builder of an operator, by its name: it registers the operator, which is allowed once."""
    found = inspect.getmembers(op_builder, inspect.isclass)
    kinds = {
        name: kind for name, kind in found if issubclass(kind, MindSpeedOpBuilder) and not inspect.isabstract(kind)
    }
    return {name: kind() for name, kind in kinds.items()}


def own_files(source):
    """The source and the headers of MindSpeed's that it includes, however deep. One of another project has no file here."""
    headers = [*(ROOT / "ops" / "csrc").rglob("*.h")]
    waiting, seen = [source], []
    while waiting:
        seen.append(waiting.pop())
        for name in INCLUDE.findall(seen[-1].read_text()):
            named = {
                header for header in headers if header.name == Path(name).name and not name.startswith(("torch", "acl"))
            }
            waiting += sorted(named - {*seen, *waiting})
    return seen


def names_used(file):
    """Names of <cstring> in the file's own text: the preprocessor is told to refuse each of them, and given no header."""
    text = f"#pragma GCC poison {NAMES}\n{INCLUDE.sub('', file.read_text())}"
    done = subprocess.run(["g++", "-E", "-x", "c++", "-"], input=text, capture_output=True, text=True, check=False)
    found = [
        re.search(r'attempt to use poisoned "(\w+)"', line) for line in done.stderr.splitlines() if "error:" in line
    ]
    assert all(found), done.stderr
    return sorted({match.group(1) for match in found})


def commands(builder):
    """The words of the command for each source, as ninja would run it for `builder.load()`."""
    try:
        builder.load(verbose=False)
    except RuntimeError as error:
        assert "Error building extension" in str(error), error
    else:
        raise AssertionError(f"{builder.name} was built by /bin/false")
    listing = ["ninja", "-C", str(FOLDER / "extensions" / builder.name), "-t", "commands"]
    lines = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
    compiling = [words for words in map(shlex.split, lines) if "-c" in words]
    return {Path(words[words.index("-c") + 1]): words for words in compiling}


def build(words, names):
    """Compiles `names`, and nothing else, by the command."""
    source = FOLDER / "names.cpp"
    source.write_text("".join(f"using ::{name};\n" for name in names))
    words = ["g++", *words[1:]]
    for option, path in {"-c": source, "-o": source.with_suffix(".o"), "-MF": source.with_suffix(".d")}.items():
        words[words.index(option) + 1] = str(path)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return {"returncode": done.returncode, "stderr": done.stderr}


def main():
    of_builders = {name: commands(builder) for name, builder in builders().items()}
    results = {}
    for source in sorted({source for compiled in of_builders.values() for source in compiled}):
        files = own_files(source)
        used = {str(file.relative_to(ROOT)): names for file in files if (names := names_used(file))}
        wanted = sorted({name for names in used.values() for name in names})
        results[str(source.relative_to(ROOT))] = {
            "names": used,
            "includes it": any({"cstring", "string.h"} & {*INCLUDE.findall(file.read_text())} for file in files),
            "builds": {
                name: build(compiled[source], wanted) for name, compiled in of_builders.items() if source in compiled
            },
        }
    print(json.dumps(results))


main()
