"""``unpose demo learn``: a network that does not care about turns beside one that does, on small digits."""

import time
from dataclasses import replace
from pathlib import Path

import click

from unpose.cli.shared.networks import SWEEP, load_data, sweep_angles, sweep_picture, write_picture


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--out", default=Path("demo"), show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--epochs", default=16, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
def command(out: Path, epochs: int, seed: int) -> None:
    """Train two small networks on upright digits, then turn the test images.

    One is a convolution network on eight rotations (c8). The other is its twin for translations only, with as many
    parameters, trained the same way on the same digits. Both have seen upright digits only. Ends with the picture
    learn.png: right answers against the angle of the test images. One or two minutes on two cores; nothing is
    downloaded.
    """
    from unpose.nn import count_parameters
    from unpose.train import accuracy_by_angle, build_network, named_recipe, save_network, train, twin_description

    dataset = load_data("digits", None)
    recipe = named_recipe("digits").changed(group="c8", epochs=epochs, seed=seed)
    twin = twin_description(build_network(recipe, dataset).description)
    options = {name: twin[name] for name in ("width", "stages", "kernel_size")}
    networks = {
        "eight rotations (c8)": recipe,
        "its twin, translations only (c1)": replace(
            recipe, network=replace(recipe.network, group="c1", options=options)
        ),
    }
    lines = {}
    for name, each in networks.items():
        start = time.perf_counter()
        outcome = train(dataset, each)
        lines[name] = line = accuracy_by_angle(outcome.network, dataset.test, sweep_angles())
        out.mkdir(parents=True, exist_ok=True)
        file = out / f"learn-{each.network.group}.safetensors"
        save_network(file, outcome.network, classes=dataset.classes)
        click.echo(
            f"{name}: {count_parameters(outcome.network):,} parameters, {time.perf_counter() - start:.0f} s; "
            f"upright {line[0]:.1%} right, turned {line[1:].mean():.1%} on average, {line.min():.1%} at worst"
        )
    title = f"Trained upright, tested turned: {len(dataset.test)} digits at {SWEEP} angles"
    write_picture(out / "learn.png", sweep_picture(lines, title))
    click.echo(f"The picture is {out / 'learn.png'}.")
