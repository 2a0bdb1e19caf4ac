# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
import shutil
import subprocess

import pytest
import torch_npu  # noqa: F401

from mindspeed import op_builder

# Whether another standard header declares these too, on which operator sources rely, is up to the compiler.
SOURCE = """
void *copy(void *to, const void *from, unsigned long size) { return std::memmove(to, from, size); }
unsigned long length(const char *text) { return strlen(text); }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    "builder",
    [
        "AlgorithmOpBuilder",  # the arguments of the base class
        "RotaryPositionEmbeddingOpBuilder",  # these and others
        "SmartSwapBuilder",  # these but for one
        "AdaptiveRecomputingPluggableAllocatorBuilder",  # a list of its own
    ],
)
class TestCxxArgs:
    def compile(self, builder, folder, source):
        """Compile a source with the arguments of a builder, and return the object."""
        (folder / "operator.cpp").write_text(source)
        command = ["g++", *getattr(op_builder, builder)().cxx_args(), "-c", "operator.cpp", "-o", "operator.o"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return (folder / "operator.o").read_bytes()

    def test_source_without_include_of_cstring(self, builder, tmp_path):
        found = self.compile(builder, tmp_path, SOURCE)
        assert found == self.compile(builder, tmp_path, "#include <cstring>\n" + SOURCE)

    def test_source_with_include_of_cstring(self, builder, tmp_path):
        assert self.compile(builder, tmp_path, "#include <cstring>\n" + SOURCE)
