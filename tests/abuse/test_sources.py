"""The sources: no file is read by anything that runs what stands in it, and few places import by a name."""

import ast
from pathlib import Path

import pytest

import unpose

SOURCE = Path(unpose.__file__).parent
ROOT = Path(__file__).parents[2]

# Calls that read files or texts as code, by the last part of what is called or by all of it.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "execfile", "torch.jit.load", "torch.export.load", "torch.hub.load",
    "torch.package.PackageImporter", "PackageImporter", "onnx.load", "onnx.load_model", "joblib.load", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "np.fromregex", "pd.read_pickle", "read_pickle", "from_pretrained",
    "load_state_dict_from_url", "register_custom_ops_library", "run_path", "run_module", "os.system", "os.popen",
    "spec_from_file_location", "load_module", "exec_module", "load_pickle",
}  # fmt: skip
IMPORTS = {"dill", "cloudpickle", "joblib", "shelve", "marshal", "imp", "runpy", "yaml", "pickle", "_pickle"}
# Where one of them stands, and why.
EXCEPTIONS = {
    ("align/dask_executor.py", "pickle"): "between the workers of a cluster that the user started",
    ("cli/shared/any_model.py", "import_module"): "MODULE:NAME, which the user names and the command announces",
    ("files/frames.py", "import_module"): "packages that read formats; the callers name them",
    ("images/imagenet.py", "import_module"): "the two packages of the extra",
    ("nn/ops/dispatch.py", "import_module"): "the kernels in a table beside it",
    ("audit/models.py", "InferenceSession"): "the one reader of ONNX files, which refuses weights in other files",
}


def called(node):
    """What is called, with dots."""
    return ast.unparse(node.func)


def keyword(node, name):
    return next((ast.unparse(each.value) for each in node.keywords if each.arg == name), None)


def is_known(name):
    """Whether the name of a module is written out, or begins with that of this package."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    whole = first is name
    return isinstance(first, ast.Constant) and (whole or str(first.value).startswith("unpose."))


def offences(tree, *, ours=True):
    """What a file calls or imports that could run what it reads; outside of the package, torch.load alone counts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = called(node)
            last = name.rpartition(".")[2]
            if name == "torch.load" and keyword(node, "weights_only") != "True":
                yield node.lineno, "torch.load"
            if not ours:
                continue
            if name in FORBIDDEN or (last in FORBIDDEN and "." in name and last not in ("eval", "compile", "load")):
                yield node.lineno, name
            if name in ("np.load", "numpy.load") and keyword(node, "allow_pickle") != "False":
                yield node.lineno, "np.load"
            if keyword(node, "allow_pickle") not in (None, "False") or keyword(node, "shell") not in (None, "False"):
                yield node.lineno, name
            if last == "import_module" and not is_known(node.args[0]):
                yield node.lineno, "import_module"
            if last == "InferenceSession":
                yield node.lineno, "InferenceSession"
        elif ours and isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, name) for name in names if name.partition(".")[0] in IMPORTS)


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def test_nothing_in_the_package_runs_what_it_reads():
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        found |= {(place, name): line for line, name in offences(parsed(path))}
    new = {place: line for place, line in found.items() if place not in EXCEPTIONS}
    assert not new, "reads a file by something that may run it"
    assert found.keys() == EXCEPTIONS.keys(), "an exception has gone stale"


def test_torch_load_reads_weights_alone_everywhere():
    files = [path for folder in ("benchmarks", "examples", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert files
    assert not [(path, found) for path in files for found in offences(parsed(path), ours=False)]


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path)", "torch.load(path, weights_only=False)", "torch.jit.load(path)", "torch.export.load(path)",
        "eval(text)", "exec(text)", "np.load(path)", "np.load(path, allow_pickle=True)", "import pickle",
        "from joblib import load", "importlib.import_module(name)", "onnx.load(path)", "runtime.InferenceSession(path)",
        "subprocess.run(line, shell=True)", "AutoModel.from_pretrained(name)", "yaml.load(text)",
    ],
)  # fmt: skip
def test_the_test_sees_what_it_looks_for(line):
    assert list(offences(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "network.eval()",
        "re.compile(text)",
        "torch.compile(network)",
        "json.load(file)",
        "import_module('onnx')",
        "import_module(f'unpose.{name}')",
    ],
)
def test_the_test_sees_nothing_else(line):
    assert not list(offences(ast.parse(line)))
