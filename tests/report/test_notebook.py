"""What results show in notebooks: tables and pictures that are well-formed, escaped, and hold the numbers."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch import nn

from unpose.adapt import Trial, Trials
from unpose.align import Alignment, Neighbours, align, nearest
from unpose.audit import (
    answer_changes,
    audit_model,
    audit_modules,
    equivariance_error,
    invariant_set,
    lie_derivative,
    orbit_outputs,
)
from unpose.cluster import InvariantClustering
from unpose.contours import outline_distances, resample
from unpose.data import Dataset, Split, posed, read_folder
from unpose.dedupe import find_duplicates
from unpose.discover import Discovery, Finding, Reading
from unpose.points import register
from unpose.report import curve_html, pictures_html, table_html
from unpose.runs import RunSettings, read_run, write_run
from unpose.train import ClassFigures, QuickNetwork, QuickResult, TrainingResult


class WellFormed(HTMLParser):
    """Fails where a tag is closed that was not open, and knows the text of the cells."""

    def __init__(self, html):
        super().__init__()
        self.open, self.cells = [], []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += data


def shown(result):
    html = result._repr_html_()
    assert "object at 0x" not in html
    assert "array(" not in html
    return WellFormed(html).cells


def test_tables_hold_what_they_are_given_and_run_nothing():
    html = table_html(
        {"<b>name": ["<script>alert(1)</script>", "plain"], "value": [0.123456, float("nan")], "is": [True, None]},
        title="a & b", notes=["c < d"], bars=["value"],
    )  # fmt: skip
    assert "<script" not in html
    assert "a &amp; b" in html
    assert "c &lt; d" in html
    assert WellFormed(html).cells == ["<b>name", "value", "is", "<script>alert(1)</script>", "0.123", "yes",
                                      "plain", "", ""]  # fmt: skip


def test_long_tables_say_how_much_is_left_out():
    html = table_html({"n": list(range(1000))})
    assert html.count("<tr>") == 25
    assert "976 more rows" in html


def test_bars_are_as_long_as_their_numbers():
    widths = re.findall(
        r"width:(\d+)px;height", table_html({"a": [0.0, 1.0, 2.0], "b": [4.0, -1.0, 0.5]}, bars=["a", "b"])
    )
    assert widths == ["0", "80", "20", "0", "40", "10"]
    assert "height" not in table_html({"a": [0.0, 0.0]}, bars=["a"])


@pytest.mark.parametrize("values", [[0.5], [0.0, 2.0, -1.0]])
def test_curves_stay_inside_of_their_cell(values):
    heights = [float(point.split(",")[1]) for point in re.search(r'points="([^"]*)"', curve_html(values))[1].split()]
    assert len(heights) == max(len(values), 2)
    assert all(2 <= height <= 18 for height in heights)


def test_pictures_are_pictures():
    html = pictures_html(np.random.default_rng(0).random((3, 5, 7, 2)), ['a"b', "c", "d"])
    assert html.count("data:image/png;base64,") == 3
    assert 'a"b' not in html
    WellFormed(html)
    assert pictures_html(np.zeros((0, 5, 7)), []) == ""


def test_search_results_show_poses_and_neighbours():
    image = np.zeros((1, 16, 16), np.float32)
    image[:, 3:13, 7:9] = image[:, 3:5, 7:12] = 1
    images = np.concatenate([image, np.rot90(image, 1, (1, 2)), np.zeros_like(image) + np.tri(16, dtype=np.float32)])
    found = align(np.rot90(image, 1, (1, 2)).copy(), image)
    cells = shown(found)
    assert [cell.split()[0] for cell in cells[:3]] == ["image", "angle", "shift"]
    assert float(cells[9]) == pytest.approx(-90, abs=0.5)
    assert shown(nearest(images, 1))[3].startswith("1 (")
    grid = Alignment(np.tile(np.eye(3), (2, 3, 1, 1)), np.ones((2, 3)), np.ones((2, 3)), [np.zeros((0, 3, 3))] * 6,
                     np.ones((2, 3), bool))  # fmt: skip
    assert "1, 2" in shown(grid)
    assert len(shown(Neighbours(np.zeros((0, 2), int), np.zeros((0, 2)), np.zeros((0, 2, 3, 3))))) == 3


def test_clusters_show_their_averages(tmp_path):
    images = posed(np.tri(12, dtype=np.float32)[None], copies=4, max_shift=1.0)
    assert repr(images) == "Posed(4 images of 12x12)"
    assert images._repr_html_().count("<img") == 4
    model = InvariantClustering(1, features="pixels")
    before = model._repr_html_()
    assert "<img" not in before
    assert "InvariantClustering" in before
    model.fit(images.images)
    assert model._repr_html_() == model._repr_mimebundle_()["text/html"]
    assert "0: 4 images" in model._repr_html_()
    np.save(tmp_path / "stack.npy", images.images)
    stack = read_folder(tmp_path / "stack.npy")
    write_run(tmp_path / "run", tmp_path / "stack.npy", stack, model, RunSettings(clusters=1), "python")
    assert "0: 4 images" in read_run(tmp_path / "run")._repr_html_()


def test_data_sets_show_an_image_of_each_class():
    part = Split(np.random.default_rng(0).random((5, 8, 7)), np.array([0, 2, 2, 0, 2]))
    dataset = Dataset("<made up>", "here", ("a", "b", "c"), part, part, part)
    assert "train=Split(5 images of 8x7)" in repr(dataset)
    html = dataset._repr_html_()
    assert html.count("<img") == 2
    assert "c: 3" in html
    assert "&lt;made up&gt;: 3 classes, images of 8 x 7 pixels" in html
    WellFormed(html)


def test_audits_show_tables_with_bars():
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    report = equivariance_error(lambda x: x.sum((2, 3)), images, "c4")
    cells = shown(report)
    assert cells[:3] == ["under c4", "error", "floor"]
    assert "turn 90" in cells
    assert "control: mirror" in cells
    pool = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9, 2))
    odd = torch.rand(4, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    modules = audit_modules(pool, odd, "c4")
    assert "breaks c4: 0" in modules._repr_html_()
    assert shown(modules)
    audit = audit_model(pool, odd, "c4", sizes=())
    assert "not equivariant to c4" in audit._repr_html_()
    assert "broken" in shown(audit)
    halves = orbit_outputs(
        lambda x: torch.stack([x[..., :4].mean((1, 2, 3)), x[..., 4:].mean((1, 2, 3))], 1), images, "c4"
    )
    assert "changed" in shown(answer_changes(halves))
    assert "accuracy" in shown(answer_changes(halves, labels=np.array([0, 1, 0, 1])))
    text = lie_derivative(nn.Sequential(nn.Tanh(), nn.Flatten()), images, ("x",))._repr_html_()
    assert text.startswith("<pre>change per pixel")
    assert invariant_set(lambda x: x[:, 0, 2, 2], (1, 5, 5), n=2, steps=5)._repr_html_().count("<img") == 2


def test_other_results_show_themselves():
    cells = shown(
        Trials([Trial("plain", nn.Identity(), 90.0, 50.0, 1.0), Trial("mean", nn.Identity(), 89.0, 80.0, 4.0)])
    )
    assert cells[4:8] == ["plain", "90", "50", "1"]
    turns = Finding("turns", "holds up to", 20.0, "A < B.", (Reading(5.0, 0.1, 0.9, 0.02),), ())
    mirror = Finding("mirror", "does not hold", None, "Never.", (), ())
    cells = shown(Discovery((turns, mirror), 500, False))
    assert cells[4:] == [
        "turns",
        "holds up to 20 degrees",
        "",
        "A < B.",
        "mirror",
        "does not hold",
        "",
        "Never.",
    ]
    cloud = np.random.default_rng(0).normal(size=(50, 3)) * (1, 2, 3)
    assert shown(register(cloud, cloud + 1))[:4] == ["linear 0", "linear 1", "linear 2", "shift"]
    squares = np.stack([resample([[0, 0], [0, 4], [4, 4], [4, 0]], 32)] * 2)
    assert outline_distances(squares)._repr_html_().count("<img") == 1
    pictures = np.random.default_rng(0).random((2, 12, 16)).repeat(6, 1).repeat(6, 2)
    found = find_duplicates([*pictures, pictures[1][:, ::-1]])
    assert shown(found)[5:6] == ["1 and 2"]
    assert shown(found)[-1] == "yes"


def test_what_was_read_shows_pictures_and_what_was_not_read(tmp_path):
    np.save(tmp_path / "stack.npy", np.random.default_rng(0).random((20, 9, 7)))
    (tmp_path / "bad.png").write_bytes(b"no picture")
    found = read_folder(tmp_path)
    assert repr(found) == "ImageSet(20 images of 9x7, 1 not read)"
    html = found._repr_html_()
    WellFormed(html)
    assert html.count("data:image/png;base64,") == 12
    assert "20 images of 9 x 7 pixels" in html
    assert "not read: bad.png" in html


def test_trained_networks_show_accuracies_and_the_worst_class():
    figures = ClassFigures(("cat", "<dog>"), np.array([[3, 1], [2, 0]]))
    history = [{"validation_accuracy": value} for value in (0.1, 0.6)]
    cells = shown(TrainingResult(None, history, 2, 0.6, 0.5, figures))
    assert cells[4:7] == ["0.5", "0.6", "2 of 2"]
    assert cells[-4:] == ["<dog>", "2", "0", "0"]
    assert "no &lt;dog&gt; is right" in figures._repr_html_()
    assert shown(QuickResult(QuickNetwork(1, 2, (8, 8)), "linear", 0.9, 70))[3:] == ["linear", "0.9", "70"]
