"""The house: which room may import which, no cycle anywhere, and who may print, assert or touch the disk."""

import ast
from functools import cache
from pathlib import Path

import pytest

import unpose

SOURCE = Path(unpose.__file__).parent

# The arrows of the design: a room may import the rooms its arrows lead to, directly or indirectly, and no others.
ARROWS = {
    "cli": {
        "reproduce",
        "runs",
        "dedupe",
        "report",
        "train",
        "audit",
        "adapt",
        "discover",
        "cluster",
        "data",
        "points",
    },
    "reproduce": {"report", "train", "audit", "cluster", "data"},
    "runs": {"report", "cluster", "data", "dedupe"},
    "report": set(),
    "train": {"nn", "data", "align", "audit", "discover"},
    "data": {"images", "files", "report"},
    "cluster": {"train", "adapt", "align", "nn", "audit", "data", "contours", "discover"},
    "adapt": {"align", "nn", "audit", "discover", "train"},
    "discover": {"images", "report"},
    "dedupe": {"align"},
    "align": {"images", "files", "report"},
    "nn": {"images"},
    "audit": {"images", "sphere", "files", "discover", "report"},
    "images": {"groups", "compiled"},
    "points": {"groups", "rigid"},
    "rigid": {"report"},
    "contours": {"report"},
    "sphere": {"images"},
    "motion": set(),
    "groups": set(),
    "files": set(),
    "compiled": set(),
}

# The arrows among the folders inside a room, read in the same way.
INNER_ARROWS = {
    "nn": {"networks": {"layers"}, "layers": {"functional"}, "functional": {"ops"}, "ops": set()},
}

# Another room is entered through its door, the package's ``__init__``, or through one of these side doors: modules
# for one special purpose that would crowd the main door. Every door lists what it offers in ``__all__``.
SIDE_DOORS = {
    "unpose.align.basis",  # the steerable basis, for signatures
    "unpose.align.blocks",  # parts of a search that other processes can compute
    "unpose.align.checkpoints",  # continue an interrupted search
    "unpose.align.dask_executor",  # blocks on a Dask cluster
    "unpose.align.descent",  # the paper's gradient descent, for the published method
    "unpose.align.memory",  # what a search needs, for plans
    "unpose.audit.calls",  # calls of a model, checks of what it returns, messages of its errors
    "unpose.audit.outputs",  # entries of what a model returns
    "unpose.audit.precision",  # the type in which a model computes, and its rounding, for runs of an audit
    "unpose.cluster.graph",  # the largest entries of an attention matrix, for the page of many images
    "unpose.cluster.page",  # what the page shows, for run folders
    "unpose.cluster.published",  # the paper's method as published
    "unpose.cluster.theorems",  # the quantities of the paper's theorems
    "unpose.data.experiments",  # the data of the figures of the invariant attention paper
    "unpose.data.splits",  # fingerprints by which training and evaluation recognise training images
    "unpose.data.survey",  # what an input holds, for `unpose plan`
    "unpose.files.arrays",  # readers of the file formats of public data sets
    "unpose.files.exchange",  # arrays exchanged with other programs
    "unpose.files.formats",  # headers and frames of any image file
    "unpose.files.listing",  # which files of a folder could be images
    "unpose.images.imagenet",  # the network of the extra ``features``, for clusters and for photographs
    "unpose.images.kernels.keys_cpu",  # Keys interpolation, for the compiled loops of other rooms
    "unpose.images.statistics",  # invariant vectors without a network, for clusters and for quick classifiers
    "unpose.report.audit",  # the page of `unpose audit`
    "unpose.report.duplicates",  # the page of `unpose dedupe`
    "unpose.report.figures",  # pictures drawn from arrays, for the commands
    "unpose.report.page",  # the page of `unpose cluster`
    "unpose.report.symmetry_page",  # the page of `unpose discover`
    "unpose.runs.audits",  # the audit of a whole model; imports torch, which `unpose --help` must not wait for
    "unpose.runs.duplicates",  # the folder of a search for duplicates; imports torch
    "unpose.runs.folder",  # the folder of a run in progress: lock, checkpoints, what may be replaced
    "unpose.runs.moves",  # moves of files that can be undone
    "unpose.runs.settings",  # the settings of a run and its config.toml
    "unpose.runs.tables",  # CSV that is safe in spreadsheets
    "unpose.train.cards",  # model cards, for `unpose models` and for those who ship networks
    "unpose.train.cost",  # what a training costs, for `unpose train`
    "unpose.train.processes",  # several processes under torchrun
    "unpose.train.state",  # the state of a training that another room's loop saves and continues
}


def reachable(room, arrows=ARROWS):
    seen, todo = set(), list(arrows[room])
    while todo:
        if (there := todo.pop()) not in seen:
            seen.add(there)
            todo += arrows[there]
    return seen


@cache  # and not when the tests are collected, which every process of the suite does
def modules():
    """Module name -> syntax tree, for every file of the package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("unpose", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


@cache
def nodes(module):
    """The imports, calls and assertions of a module: one walk through its tree serves all tests."""
    wanted = ast.Import | ast.ImportFrom | ast.Call | ast.Assert
    return [node for node in ast.walk(modules()[module]) if isinstance(node, wanted)]


def imports(name, nodes, known):
    """The package's modules that a module imports, wherever in the file the import stands."""
    package = name if (SOURCE.parent / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            targets = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            # Imported by name: a literal, or an f-string whose constant beginning says which room.
            argument = node.args[0]
            parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
            targets = [parts[0].value.rstrip(".")] if isinstance(parts[0], ast.Constant) else []
        else:
            continue
        yield from (target for target in targets if target in known and target != name)


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


@cache
def edges():
    """Module name -> the modules it imports."""
    return {name: set(imports(name, nodes(name), modules())) for name in modules()}


def for_every_module(law):
    """One test of all modules; one test each would be more than a thousand."""

    def test():
        for module in sorted(modules()):
            law(module)

    test.__name__ = law.__name__
    return test


def test_the_arrows_themselves_have_no_cycle():
    assert not [room for room in ARROWS if room in reachable(room)]


def test_every_room_is_in_the_plan_and_on_the_map():
    assert {room_of(name) for name in modules()} - {""} == set(ARROWS)
    assert set(ARROWS) - {"cli"} <= set(unpose.__all__)
    assert len(dir(unpose)) == len(set(dir(unpose)))
    assert all(f"``{room}``" in unpose.__doc__ for room in set(ARROWS) - {"cli"})


@for_every_module
def test_arrows_point_one_way(module):
    room = room_of(module)
    if not room:
        return  # the package's own door
    for target in edges()[module]:
        there = room_of(target)
        if room in ("cli", "runs", "cluster") and target == "unpose":
            continue  # for the version, which stands at the package's door
        assert there in {room} | reachable(room), f"{module} ({room}) may not import {target} ({there})"


@pytest.mark.parametrize("room", INNER_ARROWS)
def test_arrows_inside_a_room_point_one_way(room):
    arrows = INNER_ARROWS[room]
    folders = {name: name.split(".")[2] for name in modules() if room_of(name) == room and name.count(".") > 1}
    assert set(folders.values()) == set(arrows), f"the folders of {room} are not those of the plan"
    for module, folder in folders.items():
        allowed = {folder} | reachable(folder, arrows)
        for target in edges()[module]:
            assert folders.get(target, folder) in allowed, f"{module} may not import {target}"


def test_no_module_imports_itself_through_others():
    # A package's __init__ re-exports its modules; the cycle that matters is among the modules themselves.
    def visit(module, path):
        assert module not in path, f"cycle: {' -> '.join([*path, module])}"
        for target in sorted(edges()[module]):
            if target.count(".") != 1:
                visit(target, [*path, module])

    for module in modules():
        visit(module, [])


def exported(module):
    """The names in a module's ``__all__``, or None where it has none."""
    for node in modules()[module].body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return set(ast.literal_eval(node.value))
    return None


def is_door(module):
    return module.count(".") == 1 or module in SIDE_DOORS


@for_every_module
def test_rooms_are_entered_through_their_doors(module):
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                target = alias.name
                if target in modules() and room_of(target) and room_of(target) != room_of(module):
                    assert is_door(target), f"{module}:{node.lineno} imports {target}, past the door of its room"
        if not isinstance(node, ast.ImportFrom) or node.module not in modules() or not room_of(node.module):
            continue
        if room_of(node.module) == room_of(module):
            continue
        assert is_door(node.module), f"{module}:{node.lineno} imports from {node.module}, past the door of its room"
        for alias in node.names:
            is_side_door = f"{node.module}.{alias.name}" in SIDE_DOORS
            assert is_side_door or alias.name in (exported(node.module) or ()), (
                f"{module}:{node.lineno} imports {alias.name}, which {node.module} does not list in __all__"
            )


@for_every_module
def test_no_private_name_is_imported(module):
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unpose"):
            for alias in node.names:
                assert not alias.name.startswith("_"), f"{module}:{node.lineno} imports the private {alias.name}"


def test_every_side_door_says_what_it_offers():
    assert all(exported(module) for module in SIDE_DOORS)


def test_a_wrong_arrow_would_be_seen():
    tree = ast.parse("def late():\n    from unpose.cluster import published\n")
    assert "unpose.cluster.published" in set(imports("unpose.groups.lie", ast.walk(tree), modules()))
    assert "cluster" not in reachable("groups")


@for_every_module
def test_only_the_command_line_prints_and_nobody_asserts(module):
    for node in nodes(module):
        assert not isinstance(node, ast.Assert), f"{module}:{node.lineno}: raise an error that speaks to the caller"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            assert room_of(module) == "cli", f"{module}:{node.lineno} prints"


# Rooms that may touch the disk.
DISK_ROOMS = {"cli", "runs", "train", "files"}
DISK_CALLS = {
    "open", "read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "glob", "rglob", "scandir", "listdir",
    "mkdir", "makedirs", "touch", "unlink", "rmdir", "rmtree", "rename", "mkstemp", "mkdtemp", "memmap", "fromfile",
    "exists", "is_file", "is_dir", "stat", "savez", "savez_compressed", "loadtxt", "savetxt",
}  # fmt: skip


def disk_calls(nodes):
    """Lines of a module that open, list, make or remove files: by a function's or a method's name."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in DISK_CALLS:
                yield node.lineno


@for_every_module
def test_only_those_who_may_touch_the_disk(module):
    if room_of(module) not in DISK_ROOMS:
        for line in disk_calls(nodes(module)):
            pytest.fail(f"{module}:{line} touches the disk; unpose.files reads and writes")


def test_a_file_opened_in_the_wrong_room_would_be_seen():
    assert list(disk_calls(ast.walk(ast.parse("def sneak(path):\n    return path.read_bytes()")))) == [2]
    assert list(disk_calls(nodes("unpose.files.outputs"))), "the list of calls has gone stale"


@pytest.mark.parametrize("name", ["utils", "helpers", "misc", "common"])
def test_no_drawer_for_everything(name):
    assert not [module for module in modules() if module.endswith(f".{name}")]
