"""``unpose audit``: how invariant a model is, what breaks it, and what would help."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.any_model import AnyModel, external, fitting, load_any, single_outputs
from unpose.cli.shared.audit_output import as_dictionary, images_table, junit_cases, measure_lines, plot, verdict_line
from unpose.cli.shared.audited_images import (
    check_memory,
    class_folders,
    noise_images,
    read_audited,
    read_class_names,
    read_pairs,
)
from unpose.cli.shared.auto_group import AUTO, discovered
from unpose.cli.shared.errors import UserError, parameter_errors
from unpose.cli.shared.inputs import ImagesPath, memory_budget, pick_device
from unpose.cli.shared.junit import junit_text
from unpose.cli.shared.options import ByteSize, FiniteRange, NumberOrAuto
from unpose.cli.shared.output import (
    check_output,
    check_picture,
    check_results_folder,
    counted,
    write_output,
    write_picture,
)
from unpose.cli.shared.progress import progress
from unpose.runs.folder import folder_lock
from unpose.runs.settings import is_users_mistake

if TYPE_CHECKING:
    from torch import Tensor

    from unpose.report.audit import Comparison, RealPairs
    from unpose.runs.audits import AuditedImages, AuditRun, RememberedCalls

_MODEL_FAILED = 3
"""Exit status if the model itself fails."""
_DEFAULT_BATCH = 64
_MEASURES = ("explanations", "completeness")
_STDOUT = "-"
_FINISHED, _CALLS = "audit.json", "calls"
_ARGUMENTS = "unpose.audit.arguments"
_NAMES_OF_FILES = (".jpg", ".jpeg", ".pdf", ".svg", ".tif", ".tiff", ".html", ".json", ".xml", ".csv")


class _JsonOption(click.Command):
    """Lets --json stand alone, which prints, or before the name of a .json file, which is written."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given: list[str] = []
        for i, word in enumerate(args):
            follows = args[i + 1] if i + 1 < len(args) else ""
            given.append(f"--json={_STDOUT}" if word == "--json" and not follows.endswith(".json") else word)
        ctx.meta[_ARGUMENTS] = [word for word in args if word != "--force"]
        return super().parse_args(ctx, given)


@click.command(
    cls=_JsonOption,
    epilog="""\b
    Examples:
      unpose audit mnist-c8                                a network of the package, on noise
      unpose audit model.onnx --images photos/ -o audit/   any model; then open audit/report.html
      unpose audit model.onnx --images photos/ --group c8  rotations by 45 degrees, too
      unpose audit my_models:classifier --images photos/   an object in my_models.py
      unpose audit --command 'classify {input} {output}' --images photos/
      unpose audit old.onnx new.onnx --images photos/      what got better, what got worse
      unpose audit model.safetensors -o audit.png          only a plot of the error against the angle
    \b
    In continuous integration, and with a class for each folder below photos/:
      unpose audit model.onnx --images photos/ --fail-above 0.02 --junit audit.xml
      unpose audit model.onnx --images photos/ --json | jq .worst
    """,
)
@click.argument("models", metavar="[MODEL] [NEW_MODEL]", nargs=-1)
@click.option(
    "--images", type=ImagesPath(),
    help="A folder of images, a stack or a .npy file; by default smooth noise of the network's size.",
)  # fmt: skip
@click.option(
    "--group",
    help="Transformations to test, such as c4, d4, c8 or se2; by default the network's own group, or c4. auto finds "
    "them from the images, as unpose discover does.",
)
@click.option(
    "--command", "program", metavar="LINE",
    help="Audit another program: it reads the PNG files in {input} and writes the CSV file {output}, with the name of "
    "each file and its scores, or one of the --classes.",
)  # fmt: skip
@click.option(
    "--labels", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file with the name and the class of each image; by default its folder, if there is one for each class.",
)  # fmt: skip
@click.option(
    "--classes", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Names of the model's classes, one per line, in the order of its scores; by default the sorted labels.",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(["scores", "embedding", "image"]),
    help="What the model returns: scores of classes, a vector that should not change, or a map that moves with the "
    "image. By default this is taken from the shape.",
)  # fmt: skip
@click.option(
    "--count", type=click.IntRange(2), help="Number of images to use. [default: 200, evenly chosen; 4 of noise]"
)
@click.option("--size", type=click.IntRange(8, 4096), help="Side of the images, where the model does not say.")
@click.option(
    "--mean", default="0", show_default=True, help="Subtracted from pixels in [0, 1]; one, or one per channel."
)
@click.option("--std", default="1", show_default=True, help="Pixels are then divided by this.")
@click.option("--output", help="Name or number of the output to audit. By default each is audited.")
@click.option(
    "--pairs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file with the columns image, thing and, where it is known, angle (degrees, counter-clockwise): "
    "photographs of the same things at several angles, beside the table. Says how far the digital audit is from them.",
)  # fmt: skip
@click.option(
    "--measures", default="", metavar="NAMES",
    help="Further measures, separated by commas: explanations (are those of transformed images transformed? by "
    "integrated gradients and occlusion, too), completeness (different images with the same output), or all.",
)  # fmt: skip
@click.option("--repair/--no-repair", default=True, show_default=True, help="Try what would help.")
@click.option(
    "--steps", default=0, show_default=True, type=click.IntRange(0),
    help="Also try a canonicalizer trained for this many steps, as `unpose adapt` does with 600; needs 120 images.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Random seed.")
@click.option(
    "--tolerance", type=FiniteRange(0, min_open=True),
    help="Largest relative error under a quarter turn or mirror that counts as rounding. By default measured: from the "
    "type in which the model computes, and how much it amplifies rounding.",
)  # fmt: skip
@click.option(
    "--fail-above", type=FiniteRange(0), metavar="SHARE",
    help="End with status 1 only if some transformation changes a larger share of the answers (without answers: the "
    "output by a larger share), not counting what interpolation alone changes.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), help="Images per call of the model. [default: 64]")
@click.option(
    "--memory", type=NumberOrAuto(ByteSize(), "SIZE"), default="auto",
    help="Memory budget of the audit, such as 2GB, besides the model's own; more is refused before it starts. By "
    "default four fifths of the memory that is free.",
)  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Where torch models run: cpu, cuda, cuda:1, ...")
@click.option("--json", "json_out", metavar="[FILE]", help="Print the results as JSON, or write them to FILE.json.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JUnit XML.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path),
    help="Folder for the page and the tables; an audit that was stopped continues there. A name that ends in .png: "
    "only a plot of the error against the angle.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.pass_context
def command(ctx: click.Context, models: tuple[str, ...], **options: Any) -> None:
    """Measure how invariant a model is, find what breaks it, and try what would help.

    MODEL is an ONNX file, an object in Python (MODULE:NAME, a torch module, a scikit-learn estimator or a function on
    arrays (n, h, w, c); NAME() is called first), a run of `unpose train` or the network file in it, or a name that
    `unpose models` lists. With --command any other program is audited. Two models are compared. A MODULE is imported
    and run: it can do anything that you can. The other files are read as data.

    For every element of a group, the model's output on transformed images is compared with its output on the images
    themselves. Quarter turns and mirrors only permute pixels, so a network that claims a group with them must not
    change at all. Other rotations need interpolation; for these the table also gives the floor: the change of the
    output when images are rotated and rotated back.

    The command prints a table and a verdict in words: how many answers change, in which class most, which module
    breaks the symmetry, and what would help, tried on images kept apart. With -o it writes a page to look at.

    Images on which the model fails are left out and listed. If it fails altogether, the answers so far stay in the
    folder of -o, and the same command continues there.

    \b
    Exit status:
      0  every quarter turn and mirror of the group is within the tolerance, different images give different outputs,
         and the output depends on the image alone. A group may have no such element, which the output states
         ("decides": false). With --fail-above: no transformation changes more than this.
      1  the model is not invariant, its output is nearly constant, or it is random, keeps state or depends on the
         other images of a call; with --fail-above: more changes than that, except that a random model may pass
      2  the call is wrong, or a file cannot be read
      3  the model fails; what was measured is kept in the folder of -o
    """
    asked = _Asked(models=models, arguments=ctx.meta[_ARGUMENTS], **options)
    _check(asked)
    loaded = _load(asked)
    group = asked.group or (loaded[-1].own.description["group"] if loaded[-1].own is not None else "c4")
    images, rejected, remarks = _images(asked, loaded[-1])
    if group == AUTO:
        pixels = images.batch.movedim(1, -1).cpu().numpy()  # (n, h, w, c)
        group = discovered(pixels, images.labels, quiet=asked.quiet).finite_group
    _parse(group)
    runs = []
    with nullcontext() if asked.folder is None else folder_lock(asked.folder):
        _check_unfinished(asked)  # another process may have finished since the first check
        with _kept_answers(asked), progress(quiet=asked.quiet or asked.images is None) as report:
            outputs = {}
            if len(loaded) == 1:
                remember = partial(_remembered, asked, loaded[0])
                outputs = single_outputs(loaded[0], images.batch[:2], remember, _classes(asked))
            for model in outputs.values() if len(outputs) > 1 else loaded:
                stage = "" if len(loaded) == len(outputs) == 1 else f"{model.name}: "
                show = lambda name, done, total, stage=stage: report(stage + name, done, total)  # noqa: E731
                runs.append(_run(asked, model, images, group, rejected, remarks, show))
            if len(loaded) == 2:
                runs = [replace(runs[1], results=replace(runs[1].results, comparison=_comparison(runs)))]
        named = dict(zip(outputs if len(outputs) > 1 else [""], runs, strict=True))
        _write(asked, named, loaded[-1])
    _print(asked, named, loaded[-1])
    if not all(run.results.passes for run in runs):
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class _Asked:
    """The options of the command."""

    models: tuple[str, ...]
    arguments: list[str]
    images: Path | None
    group: str | None
    program: str | None
    labels: Path | None
    classes: Path | None
    kind: str | None
    count: int | None
    size: int | None
    mean: str
    std: str
    output: str | None
    pairs: Path | None
    measures: str
    repair: bool
    steps: int
    seed: int
    tolerance: float | None
    fail_above: float | None
    batch: int | None
    memory: int | str
    device: str
    json_out: str | None
    junit: Path | None
    out: Path | None
    force: bool

    @property
    def wanted(self) -> list[str]:
        """The further measures, by name."""
        names = [name.strip() for name in self.measures.split(",") if name.strip()]
        return list(_MEASURES) if names == ["all"] else names

    @property
    def quiet(self) -> bool:
        """Whether nothing but JSON is printed."""
        return self.json_out == _STDOUT

    @property
    def json_file(self) -> Path | None:
        """The file for the results as JSON, if one was asked for."""
        return None if self.json_out in (None, _STDOUT) else Path(str(self.json_out))

    @property
    def picture(self) -> Path | None:
        """The file of the plot, if only that was asked for."""
        return self.out if self.out is not None and self.out.suffix.lower() == ".png" else None

    @property
    def folder(self) -> Path | None:
        """The folder of results, if one was asked for."""
        return None if self.picture is not None else self.out


def _check(asked: _Asked) -> None:
    """Refuse wrong calls before any work is done."""
    if asked.program is not None and asked.models:
        raise click.UsageError("give a MODEL or --command, not both")
    if asked.program is None and not 1 <= len(asked.models) <= 2:
        raise click.UsageError(f"give one MODEL, two to compare them, or --command; got {len(asked.models)}")
    if unknown := [name for name in asked.wanted if name not in _MEASURES]:
        raise click.BadParameter(
            f"there is no measure {unknown[0]!r}; give some of {', '.join(_MEASURES)}, or all", param_hint="--measures"
        )
    if asked.group == AUTO and asked.images is None:
        raise click.UsageError("--group auto looks at your images; give --images, or name the group")
    if asked.group not in (None, AUTO):
        _parse(asked.group)
    pick_device(asked.device)
    if asked.images is None and (asked.labels or asked.program or asked.pairs):
        raise click.UsageError("--labels, --pairs and --command need --images")
    if asked.picture is not None:
        check_picture(asked.picture, asked.force)
    folder = asked.folder
    if folder is not None:
        check_results_folder(folder, "audit", _holds_audit, [] if asked.images is None else [asked.images])
        if folder.suffix.lower() in _NAMES_OF_FILES and not folder.is_dir():
            raise UserError(f"{folder} looks like a file; give a folder for the results, or a name that ends with .png")
        _check_unfinished(asked)
    for file in (asked.junit, asked.json_file):
        if file is not None:
            check_output(file, asked.force)


def _holds_audit(folder: Path) -> bool:
    """Whether a folder holds an audit, finished or stopped."""
    try:
        return "headline" in json.loads((folder / _FINISHED).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return (folder / _CALLS).is_dir()


def _check_unfinished(asked: _Asked) -> None:
    if asked.folder is not None and (asked.folder / _FINISHED).exists() and not asked.force:
        raise UserError(f"{asked.folder} already holds an audit; give another folder, or --force to replace it")


def _parse(group: str) -> None:
    from unpose.groups import parse

    with parameter_errors("--group"):
        parse(group)


def _load(asked: _Asked) -> list[AnyModel]:
    """The models, the newest last; names that are equal become paths."""
    if asked.program is not None:
        return [external(asked.program, _classes(asked))]
    found = [
        load_any(text, device=asked.device, output=asked.output, class_names=_classes(asked)) for text in asked.models
    ]
    if len(found) == 2 and found[0].name == found[1].name:
        return [replace(model, name=text) for model, text in zip(found, asked.models, strict=True)]
    return found


def _classes(asked: _Asked) -> tuple[str, ...]:
    """The classes that a model may answer with by name: those of --classes, or the folders of the images."""
    if asked.classes is not None or asked.images is None:
        return read_class_names(asked.classes)
    return class_folders(asked.images, asked.labels)


def _images(asked: _Asked, model: AnyModel) -> "tuple[AuditedImages, list[tuple[str, str]], list[str]]":
    memory = memory_budget(asked.memory)
    rejected: list[tuple[str, str]] = []
    remarks: list[str] = []
    if asked.images is None:
        images = noise_images(model, asked.count, asked.size, asked.seed)
    else:
        images, rejected, remarks = read_audited(
            asked.images, model, count=asked.count, size=asked.size, mean=asked.mean, std=asked.std,
            labels=asked.labels, classes=asked.classes, memory=memory, quiet=asked.quiet,
        )  # fmt: skip
    check_memory(images.batch, memory)
    return images, rejected, remarks


def _run(
    asked: _Asked, model: AnyModel, images: "AuditedImages", group: str, rejected: list[tuple[str, str]],
    remarks: list[str], report: Callable[[str, int, int], None],
) -> "AuditRun":  # fmt: skip
    """Audit one model."""
    import unpose
    from unpose.audit import ModelCallError
    from unpose.report import Reproduction
    from unpose.runs.audits import run_audit

    calls = _remembered(asked, model, fitting(model))
    settings = {"group": group, "batch": _batch_size(asked, model), "device": asked.device}
    try:
        found = run_audit(
            calls, images, group, kind=asked.kind, network=model.network,
            name=model.name, tolerance=asked.tolerance, angles=asked.out is not None,
            repair=asked.repair and asked.images is not None and asked.picture is None, steps=asked.steps,
            measures=asked.wanted, random_state=asked.seed, memory=memory_budget(asked.memory),
            reproduction=Reproduction(_command_line(asked), asked.seed, unpose.__version__, settings),
            rejected=rejected, progress=report,
        )  # fmt: skip
    except ModelCallError as error:
        text = str(error).replace("as_model(model, output=...)", "--output NAME").rstrip(".")
        raise _ModelFailed(f"{model.name}: {text}. {_kept(asked)}") from error
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        raise click.UsageError(f"{model.name} cannot be audited under {group}: {error}") from error
    found = replace(found, results=replace(found.results, fail_above=asked.fail_above))
    if asked.pairs is not None:
        found = replace(found, results=replace(found.results, pairs=_pairs(asked.pairs, calls, found)))
    if asked.picture is not None:
        with parameter_errors("--out"):
            picture = plot(found)
        write_picture(asked.picture, picture)
    return replace(found, results=replace(found.results, remarks=[*found.results.remarks, *remarks]))


def _pairs(table: Path, calls: "RememberedCalls", found: "AuditRun") -> "RealPairs":
    from unpose.runs.audits import real_pairs

    images, things, degrees = read_pairs(table, found.images)
    kind = "scores" if found.answers is not None else "embedding"
    with parameter_errors("--pairs"):
        return real_pairs(calls.strict, images, things, degrees, kind)


class _ModelFailed(click.ClickException):
    exit_code = _MODEL_FAILED


def _comparison(runs: "list[AuditRun]") -> "Comparison":
    from unpose.runs.audits import compare_audits

    try:
        return compare_audits(*runs)
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        raise UserError(f"the models cannot be compared: {error}") from error


def _batch_size(asked: _Asked, model: AnyModel) -> int:
    return asked.batch or model.batch_size or _DEFAULT_BATCH


def _remembered(asked: _Asked, model: AnyModel, call: "Callable[[Tensor], Any]") -> "RememberedCalls":
    """A function of a model whose answers are kept in the folder while the audit runs."""
    from unpose.runs.audits import RememberedCalls

    memory = memory_budget(asked.memory)
    return RememberedCalls(
        call, _calls_folder(asked, model), batch_size=_batch_size(asked, model),
        memory=None if memory is None else memory // 2,
    )  # fmt: skip


def _calls_folder(asked: _Asked, model: AnyModel) -> Path | None:
    """Where the answers of a model are kept until the audit is finished; another model gets another folder."""
    if asked.folder is None:
        return None
    settings = f"{model.fingerprint} {model.name} {_batch_size(asked, model)} {asked.output} {asked.device}"
    settings += f" {_classes(asked)}"  # models that answer by name
    folder = asked.folder / _CALLS / hashlib.sha256(settings.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"cannot write {folder}: {error.strerror}", param_hint="--out") from error
    return folder


@contextmanager
def _kept_answers(asked: _Asked) -> Iterator[None]:
    """Say after Ctrl-C what was kept."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nStopped. {_kept(asked)}", err=True)
        raise click.exceptions.Exit(130) from None


def _kept(asked: _Asked) -> str:
    if asked.folder is None:
        return "Nothing was kept; with -o FOLDER an audit can be continued."
    return f"The answers so far are kept; continue with: {_command_line(asked)}"


def _write(asked: _Asked, runs: "dict[str, AuditRun]", model: AnyModel) -> None:
    """Write the files that were asked for; the answers of the model are not needed any more."""
    from unpose.report.audit import headline, render_audit

    text = json.dumps(_dictionary(asked, runs, model), indent=2) + "\n"
    if asked.json_file is not None:
        write_output(asked.json_file, text.encode())
    if asked.junit is not None:
        cases = [case for name, run in runs.items() for case in junit_cases(run, name)]
        write_output(asked.junit, junit_text(f"unpose audit {model.name}", cases).encode())
    if (folder := asked.folder) is not None:
        places = {name: f"output-{i}" if len(runs) > 1 else "" for i, name in enumerate(runs)}
        pages = [(name, headline(run.results), f"{places[name]}/report.html") for name, run in runs.items()]
        worst = _worst(runs)
        shown = replace(worst.results, outputs=pages) if len(runs) > 1 else worst.results
        for name, run in runs.items():
            write_output(folder / places[name] / "images.csv", images_table(run).encode())
            if len(runs) > 1:
                write_output(folder / places[name] / "report.html", render_audit(run.results).encode())
        write_output(folder / "report.html", render_audit(shown).encode())
        write_output(folder / "audit.json", text.encode())  # last: it marks the audit as finished
        shutil.rmtree(folder / _CALLS, ignore_errors=True)


def _worst(runs: "dict[str, AuditRun]") -> "AuditRun":
    """The run of the output that changes most, of those that fail if there are any."""
    return max(
        runs.values(), key=lambda run: (not run.results.passes, run.results.worst.excess, run.results.worst.error)
    )


def _dictionary(asked: _Asked, runs: "dict[str, AuditRun]", model: AnyModel) -> dict[str, Any]:
    """The results for JSON; with several outputs those of the worst, and all of them by name."""
    where = str(model.path) if model.path is not None else model.name
    texts = {name: as_dictionary(run, where) for name, run in runs.items()}
    worst = _worst(runs)
    text = next(texts[name] for name, run in runs.items() if run is worst)
    return text if len(runs) == 1 else text | {"outputs": texts}


def _print(asked: _Asked, runs: "dict[str, AuditRun]", model: AnyModel) -> None:
    if asked.quiet:
        click.echo(json.dumps(_dictionary(asked, runs, model), indent=2))
        return
    for name, run in runs.items():
        if name:
            click.echo(f"\noutput {name}\n{'=' * (7 + len(name))}")
        _print_run(asked, run)
    if asked.folder is not None:
        click.echo(f"\nOpen {asked.folder / 'report.html'}")


def _print_run(asked: _Asked, run: "AuditRun") -> None:
    from unpose.report.audit import sentences

    results = run.results
    click.echo(run.report.table())
    click.echo(verdict_line(run.report, results))
    if run.modules is not None:
        click.echo(f"\n{run.modules.table()}")
    if run.answers is not None:
        click.echo(f"\n{run.answers}")
    if results.measures:
        click.echo("\n" + "\n".join(measure_lines(results)))
    if asked.images is not None or results.comparison is not None:
        click.echo("\n" + "\n".join(click.wrap_text(sentence, 100) for sentence in sentences(results)))
    if results.failures:
        click.echo(f"\nLeft out: {counted(len(results.failures), 'image')}; {results.failures[0].name}: "
                   f"{results.failures[0].reason}")  # fmt: skip
    said = {text.replace("f is", "the model is") for text in run.report.remarks()}  # notes of the table
    for remark in results.remarks:
        if remark[0].lower() + remark[1:-1] not in said:
            click.echo(f"note: {remark}")
    if asked.fail_above is not None:
        worst = results.worst
        word = "within" if worst.excess <= asked.fail_above else "above"
        click.echo(f"Worst: {worst.excess:.4g} ({worst.name}), {word} --fail-above {asked.fail_above:g}.")


def _command_line(asked: _Asked) -> str:
    """The command that repeats or continues this audit."""
    return shlex.join(["unpose", "audit", *asked.arguments])
