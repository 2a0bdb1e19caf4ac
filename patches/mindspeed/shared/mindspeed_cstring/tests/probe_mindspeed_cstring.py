"""Probe: compiles two sources with the flags that MindSpeed's own builders return; prints how g++ ended for each.

Usage: probe_mindspeed_cstring.py FOLDER BUILDER...   (FOLDER takes the sources and objects)
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import mindspeed.op_builder as op_builder

# Without any #include: which standard header pulls in <cstring> differs from compiler to compiler, and is the fault.
RELIES_ON_COMPILER = "void copy(void *to, const void *from, unsigned long size) { std::memcpy(to, from, size); }\n"
INCLUDES_IT = "#include <cstring>\n" + RELIES_ON_COMPILER


def compiled(folder, text, flags):
    """Compiles the text as an operator's source is compiled (not linked): exit status, errors, digest of the object."""
    source, target = folder / "operator.cpp", folder / "operator.o"
    source.write_text(text)
    target.unlink(missing_ok=True)
    done = subprocess.run(
        ["g++", *flags, "-c", str(source), "-o", str(target)], capture_output=True, text=True, check=False
    )
    digest = hashlib.sha256(target.read_bytes()).hexdigest() if done.returncode == 0 else None
    return {"returncode": done.returncode, "stderr": done.stderr, "object": digest}


def without_forced_include(flags):
    """The flags less every `-include HEADER`."""
    kept = list(flags)
    while "-include" in kept:
        position = kept.index("-include")
        del kept[position : position + 2]
    return kept


def main():
    folder = Path(sys.argv[1])
    results = {}
    for name in sys.argv[2:]:
        flags = getattr(op_builder, name)().cxx_args()
        results[name] = {
            "flags": flags,
            "relies on compiler": compiled(folder, RELIES_ON_COMPILER, flags),
            "relies on compiler, no forced include": compiled(
                folder, RELIES_ON_COMPILER, without_forced_include(flags)
            ),
            "includes it": compiled(folder, INCLUDES_IT, flags),
            "includes it, no forced include": compiled(folder, INCLUDES_IT, without_forced_include(flags)),
        }
    print(json.dumps(results))


main()
