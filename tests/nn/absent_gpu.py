"""Triton kernels without a GPU: in Triton's interpreter, and compiled for one that is not here.

Triton decides on import whether it interprets, so either runs in a process of its own: a test's file, as a script.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch

TRITON = tuple(map(int, version("triton").split(".")[:2])) if find_spec("triton") else (0, 0)
needs_triton = pytest.mark.skipif(TRITON < (3, 6), reason="Triton 3.6 or later is not installed")
needs_interpreter = pytest.mark.skipif(TRITON < (3, 9), reason="the interpreter of Triton 3.9 is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def child(path, job, **settings):
    """What the job ``"interpret"`` or ``"compile"`` of a file answers in a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": str(int(job == "interpret")), "OMP_NUM_THREADS": "1", **settings}
    done = subprocess.run(
        [sys.executable, path, job], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def answer(**jobs):
    """The other side: do the job that this process was started for."""
    json.dump(jobs[sys.argv[1]](), sys.stdout)


def compile_only():
    """From now on launches are compiled to machine code for compute capability 9.0 and not run; their names.

    And whether they multiply on tensor cores: Triton may make a sum a product of matrices where nobody asked for one.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    class Absent:
        """A GPU that can be compiled for, but not used."""

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    names = []
    launch = JITFunction.run

    def run(self, *args, warmup, **options):
        compiled = launch(self, *args, warmup=True, **options)
        how = "" if compiled.asm["cubin"] else ": no machine code"
        names.append(self.__name__ + (" on tensor cores" if "tt.dot" in compiled.asm["ttir"] else "") + how)
        return compiled

    driver.set_active(Absent())
    JITFunction.run = run
    return names
