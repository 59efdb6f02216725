"""Triton kernels without a GPU: run in Triton's interpreter, or compiled for a GPU that is not present.

Triton decides on import whether it interprets, so both run in a subprocess: the test's own file, started as a script
with the name of a job, ``interpret`` or ``compile``, whose answer it prints as JSON.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

TRITON = tuple(map(int, version("triton").split(".")[:2])) if find_spec("triton") else (0, 0)
needs_triton = pytest.mark.skipif(TRITON < (3, 6), reason="Triton 3.6 or later is not installed")


def needs_interpreter(test):
    """Mark a test of kernels in the interpreter, which needs Triton 3.9 and time."""
    is_missing = pytest.mark.skipif(TRITON < (3, 9), reason="the interpreter of Triton 3.9 is not installed")
    return pytest.mark.slow(is_missing(test))


def run_job(path, job, **settings):
    """Run a job of a test file in a subprocess and return its answer. There is no timeout: the interpreter is slow."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": str(int(job != "compile")),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        **settings,
    }
    done = subprocess.run([sys.executable, path, job], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def answer_job(**jobs):
    """In the subprocess: run the job that it was started for and print the answer."""
    json.dump(jobs[sys.argv[1]](), sys.stdout)


def use_cuda_kernels_on_cpu():
    """Let the operators run their CUDA kernels on CPU tensors, in the interpreter."""
    from unpose.nn.ops.dispatch import KERNELS

    for operator, device in list(KERNELS):
        if device == "cuda":
            KERNELS[operator, "cpu"] = KERNELS[operator, device]


def compile_only():
    """Compile all further launches for compute capability 9.0 instead of running them; return the list of their names.

    The names say whether a kernel uses tensor cores: Triton may turn a sum into a matrix product by itself.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    class AbsentDriver:
        """The driver of a GPU that can be compiled for, but not used."""

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
        problem = "" if compiled.asm["cubin"] else ": no machine code"
        names.append(self.__name__ + (" on tensor cores" if "tt.dot" in compiled.asm["ttir"] else "") + problem)
        return compiled

    driver.set_active(AbsentDriver())
    JITFunction.run = run
    return names
