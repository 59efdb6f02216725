"""One frame for the Triton kernels: in Triton's interpreter, compiled for a GPU that is not present, and on a GPU.

A test file lists its kernels in a table and takes its tests from it::

    KERNELS = {"sampling": Kernel(run, plain, {"odd sizes": dict(shape=(3, 5))}, 1e-5)}
    test_interpreted, test_compiled, test_on_a_gpu = kernel_tests(__file__, KERNELS)

Triton decides on import whether it interprets, so that the first two run in a subprocess, one for all kernels of a
file: it imports the file, does the job of its name, and prints the answer as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

TRITON = tuple(map(int, version("triton").split(".")[:2])) if find_spec("triton") else (0, 0)
needs_triton = pytest.mark.skipif(TRITON < (3, 6), reason="Triton 3.6 or later is not installed")


def needs_interpreter(test):
    """Mark a test of kernels in the interpreter, which needs Triton 3.9 and time."""
    is_missing = pytest.mark.skipif(TRITON < (3, 9), reason="the interpreter of Triton 3.9 is not installed")
    return pytest.mark.slow(is_missing(test))


def largest_error(found, wanted):
    """The largest difference of two tensors relative to the largest entry of the second; infinite if shapes differ."""
    found, wanted = found.detach().double(), wanted.detach().double()
    if found.shape != wanted.shape:
        return float("inf")
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-2))


@dataclass(frozen=True)
class Kernel:
    """A kernel, what it must equal, and the cases at which it is compared.

    Parameters
    ----------
    run : callable
        ``run(case, device)`` computes with the kernel and returns a tuple of tensors, say a result and its gradients.
        Outside a GPU the device is ``"cpu"``, where the operators of layers and sampling then use their CUDA kernels.
    plain : callable
        ``plain(case, device)`` returns what they must equal, in plain PyTorch operations and better in float64.
    cases : dict
        Small cases by name, for the interpreter. What a case holds is between ``run`` and ``plain``.
    tolerance : float or callable
        Least error that is too large, or a function of a case that returns it. Zero demands equal numbers.
    large : dict, optional
        Cases for a GPU; the small ones by default.
    compiled : dict
        Names of cases to the names of the kernels that ``run`` launches for them, in their order.
    others : dict
        Further cases, which are only compiled.
    error : callable
        ``error(found, wanted)`` of two tensors.
    """

    run: Callable
    plain: Callable
    cases: Mapping
    tolerance: float | Callable
    large: Mapping | None = None
    compiled: Mapping = field(default_factory=dict)
    others: Mapping = field(default_factory=dict)
    error: Callable = largest_error

    def errors(self, case, device="cpu"):
        """The error of each tensor, and the tensors."""
        found, wanted = self.run(case, device), self.plain(case, device)
        return [self.error(here, there) for here, there in zip(found, wanted, strict=True)], found

    def check(self, errors, case):
        """Raise an error unless all errors are tolerable."""
        limit = self.tolerance(case) if callable(self.tolerance) else self.tolerance
        assert all(error < limit or error == 0 for error in errors), f"errors {errors}, tolerance {limit}"


def kernel_tests(file, kernels):
    """Make the tests of a table of kernels: interpreted, compiled, on a GPU. ``file`` holds it as ``KERNELS``."""

    @cache
    def answer(job):
        with TemporaryDirectory() as fresh:  # what an earlier run compiled would not be compiled again
            begin = "import sys; from kit.kernels import answer_for; answer_for(*sys.argv[1:])"
            return run_job("-c", begin, file, job, TRITON_CACHE_DIR=fresh)

    def each_case(cases_of):
        pairs = [(name, case) for name, kernel in kernels.items() for case in cases_of(kernel)]
        return pytest.mark.parametrize(("kernel", "case"), pairs, ids=[", ".join(pair) for pair in pairs])

    @needs_interpreter
    @each_case(lambda kernel: kernel.cases)
    def test_interpreted(kernel, case):
        kernels[kernel].check(answer("interpret")[kernel][case], kernels[kernel].cases[case])

    @pytest.mark.slow
    @needs_triton
    @each_case(lambda kernel: kernel.compiled)
    def test_compiled(kernel, case):  # the interpreter accepts code that the compiler does not
        assert answer("compile")[kernel][case] == kernels[kernel].compiled[case]

    @pytest.mark.gpu
    @each_case(lambda kernel: kernel.cases if kernel.large is None else kernel.large)
    def test_on_a_gpu(kernel, case):
        kernel = kernels[kernel]
        case = (kernel.cases if kernel.large is None else kernel.large)[case]
        found, results = kernel.errors(case, "cuda")
        kernel.check(found, case)
        again = kernel.run(case, "cuda")
        assert all(a.equal(b) for a, b in zip(results, again, strict=True)), "not the same bytes when run again"

    return test_interpreted, test_compiled, test_on_a_gpu


def interpret(kernels):
    """In the subprocess: the errors of all small cases in the interpreter."""
    use_cuda_kernels_on_cpu()
    return {
        name: {case: kernel.errors(given)[0] for case, given in kernel.cases.items()}
        for name, kernel in kernels.items()
    }


def compile_launches(kernels):
    """In the subprocess: the names of the kernels that were launched, compiled for compute capability 9.0."""
    use_cuda_kernels_on_cpu()
    launched, found = compile_only(), {}
    for name, kernel in kernels.items():
        found[name] = {}
        for case in kernel.compiled:
            kernel.run({**(kernel.large or {}), **kernel.cases, **kernel.others}[case], "cpu")
            found[name][case] = launched.copy()
            launched.clear()
    return found


def answer_for(file, job):
    """In the subprocess: do a job, ``interpret`` or ``compile``, with the ``KERNELS`` of a test file, and print it."""
    spec = spec_from_file_location(Path(file).stem, file)
    tests = module_from_spec(spec)
    spec.loader.exec_module(tests)
    json.dump({"interpret": interpret, "compile": compile_launches}[job](tests.KERNELS), sys.stdout)


def run_job(*command, **settings):
    """Run a file with its arguments in a subprocess, not interpreting if the last is ``compile``; return its answer.

    There is no time limit: the interpreter is slow.
    """
    environment = {
        **os.environ,
        "TRITON_INTERPRET": str(int(command[-1] != "compile")),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        **settings,
    }
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def answer_job(**jobs):
    """In the subprocess: run the job that it was started for and print the answer."""
    json.dump(jobs[sys.argv[1]](), sys.stdout)


def use_cuda_kernels_on_cpu():
    """Let the search, sampling and the operators of layers run their CUDA kernels on CPU tensors."""
    from unpose.align.kernels import BACKENDS
    from unpose.images.kernels import KERNELS as SAMPLING
    from unpose.nn.ops.dispatch import KERNELS

    BACKENDS["cpu"], SAMPLING["cpu"] = BACKENDS["cuda"], SAMPLING["cuda"]
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


def results_and_gradients(function, inputs):
    """Results of a function of tensors, then gradients of the inputs that need one, for drawn gradients of the results.

    All results are in a tuple. Equal shapes give equal draws, on every device and in every precision.
    """
    found = function(*inputs)
    results = found if isinstance(found, tuple) else (found,)
    pulls = [torch.randn(each.shape, generator=torch.Generator().manual_seed(5)) for each in results]
    leaves = [each for each in inputs if each.requires_grad]
    slopes = torch.autograd.grad(results, leaves, [p.to(r) for p, r in zip(pulls, results, strict=True)])
    return *(each.detach() for each in results), *slopes


def operator_kernel(operator, inputs, cases, tolerance, *, call=None, **options):
    """A :class:`Kernel` of an operator of the layers, compared with its plain form in float64, gradients too.

    Parameters
    ----------
    operator : unpose.nn.ops.dispatch.Operator
    inputs : callable
        ``inputs(case, device)`` returns the tensors; gradients of those that need one are compared.
    cases, tolerance, **options
        See :class:`Kernel`.
    call : callable, optional
        ``call(function, case, *tensors)`` calls the operator, or its plain form; by default with the tensors alone.
    """
    call = call or (lambda function, _, *tensors: function(*tensors))

    def run(case, device):
        return results_and_gradients(lambda *given: call(operator.run, case, *given), inputs(case, device))

    def plain(case, device):
        exact = [each.detach().double().requires_grad_(each.requires_grad) for each in inputs(case, device)]
        return results_and_gradients(lambda *given: call(operator.plain, case, *given), exact)

    return Kernel(run, plain, cases, tolerance, **options)
