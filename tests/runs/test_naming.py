"""Names from the page in a run: groups, averages and poses anew, and nothing but the run folder is written."""

import csv
import io
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from unpose.cli import main
from unpose.cluster import apply_poses
from unpose.runs import RunError, apply_names, named_dataset, read_names, read_run


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run that may be changed, as far from its images as the run."""
    return read_run(shutil.copytree(run.path, run.path.with_name(f"copy of {tmp_path.name}")))


def table(run, names, **columns):
    """A table as the page saves it."""
    rows = [{"path": path, "name": name} for path, name in zip(run.names, names, strict=True)]
    for column, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[column] = value
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return "\ufeff" + text.getvalue()


def test_names_become_groups_with_averages_and_poses(copy, images):
    names = ["hook", "hook", "odd", "tri", "tri", "tri"]
    done = apply_names(copy, read_names(table(copy, names), copy), images[1])
    assert done.cluster_names == ["tri", "hook", "odd"]  # by size
    assert [done.cluster_names[label] for label in done.labels] == names
    assert done.settled.all()
    assert (done.confidences == 1).all()
    aligned = apply_poses(images[1].images, done.poses)
    for label, mean in enumerate(done.means):
        low, high = done.display_range
        assert np.abs(aligned[done.labels == label].mean(0).clip(low, high) - mean).max() < 2 * (high - low) / 65535
    assert sorted(path.name for path in (done.path / "means").glob("*-error.png")) == [
        f"cluster-{label:03d}-error.png" for label in range(3)
    ]
    written = list(csv.DictReader(io.StringIO((done.path / "labels.csv").read_text())))
    assert [row["name"] for row in written] == names
    assert {row["settled"] for row in written} == {"yes"}
    assert not list(done.path.glob(".*"))  # neither a lock nor a temporary folder is left
    again = apply_names(done, read_names((done.path / "labels.csv").read_text(), done), images[1])
    np.testing.assert_array_equal(again.labels, done.labels)


def test_what_is_not_named_keeps_its_group_and_what_was_taken_out_is_unsorted(copy):
    label = copy.labels[0]
    groups = read_names(
        table(copy, ["=sum", "Group 0", "", "Group 1", "Group 1", "Group 1"], cluster=[7, label, -1, *copy.labels[3:]],
              named=["true", "false", "false", "false", "false", "false"],
              settled=["true", "false", "false", "false", "false", "false"]), copy)  # fmt: skip
    assert sorted(groups.names) == ["", "", "=sum", "unsorted"]
    assert groups.settled.tolist() == [True] + [False] * 5
    assert len(set(groups.labels[3:])) == 1
    assert len(set(groups.labels[:4])) == 4
    partial = read_names(f"path,name\n{copy.names[4]},x\nelsewhere.png,y\n", copy)
    assert partial.unknown == ["elsewhere.png"]
    assert partial.settled.tolist() == [False] * 4 + [True, False]


def test_what_was_rejected_is_kept_by_the_run_and_its_table(copy, images):
    names = ["hook", "hook", "hook", "tri", "tri", "tri"]
    settled = ["true", "true", "false", "true", "true", "false"]
    rejected = ['["hook", "a, \\"quoted\\" name"]', '["hook"]', '["hook", 7, 99]', "", "=tri", "'-typed"]
    clusters = [1, 1, 1, 0, 0, 7]
    named = ["true"] * 5 + ["false"]
    given = table(copy, names, settled=settled, rejected_names=rejected, cluster=clusters, named=named)
    groups = read_names(given, copy)
    # The third image is not settled, and leaves the group that it was rejected for; the first two were accepted later.
    assert [groups.names[label] for label in groups.labels] == ["hook", "hook", "unsorted", "tri", "tri", ""]
    unnamed = groups.names.index("")
    assert groups.rejected == {0: ['a, "quoted" name'], 2: ["hook", unnamed], 4: ["=tri"], 5: ["-typed"]}
    done = apply_names(copy, groups, images[1])
    assert done.rejected_names == groups.rejected
    again = read_names((done.path / "labels.csv").read_text(), done)
    assert again.rejected == groups.rejected
    old = "\n".join(f"{path},{name}" for path, name in zip(done.names, names, strict=True))
    kept = read_names(f"path,name\n{old}\n", done).rejected  # a table without the column changes nothing
    assert {image: list(each) for image, each in kept.items()} == {
        0: ['a, "quoted" name'], 4: ["=tri"], 5: ["-typed"],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "path,class\na,b\n", "path,name\nnowhere.png,x\n"])
def test_a_table_of_something_else_is_refused(copy, text):
    with pytest.raises(RunError):
        read_names(text, copy)


def test_changed_images_are_refused_and_the_run_stays(copy, images):
    from dataclasses import replace

    before = {path.name: path.read_bytes() for path in copy.path.iterdir() if path.is_file()}
    groups = read_names(table(copy, list("aabbcc")), copy)
    with pytest.raises(RunError, match="changed"):
        apply_names(copy, groups, replace(images[1], images=1 - images[1].images))
    assert {path.name: path.read_bytes() for path in copy.path.iterdir() if path.is_file()} == before


def test_the_command_and_what_follows_it(copy, images, tmp_path):
    source = images[0].read_bytes()
    labels = tmp_path / "labels.csv"
    labels.write_text(table(copy, ["a/hook", "a/hook", "a/hook", "a_hook", "tri", "tri"]))
    tool = CliRunner()
    said = tool.invoke(main, ["apply", str(copy.path), str(labels)])
    assert said.exit_code == 0, said.output
    assert "3 groups, 3 of them named; 6 images of 6 settled." in said.output
    done = tool.invoke(main, ["export", str(copy.path), "--to", "folders", "-o", str(tmp_path / "sorted")])
    assert done.exit_code == 0, done.output
    counts = {path.name: len(list(path.iterdir())) for path in (tmp_path / "sorted").iterdir()}
    assert counts == {
        "a_hook-cluster-000": 3,
        "tri": 2,
        "a_hook-cluster-002": 1,
    }  # two names that a disk cannot tell apart
    again = ["export", str(copy.path), "--to", "folders", "-o", str(tmp_path / "sorted"), "--force"]
    assert tool.invoke(main, again).exit_code == 0
    (tmp_path / "sorted" / "tri" / "mine.txt").write_text("keep me")
    refused = tool.invoke(main, again)
    assert refused.exit_code == 2
    assert "mine.txt" in refused.output
    assert images[0].read_bytes() == source
    few = tool.invoke(main, ["train", str(copy.path), "--quick", "-o", str(tmp_path / "network")])
    assert few.exit_code == 2
    assert "too few images" in few.output


def test_settled_images_are_a_data_set(copy, images):
    found = images[1]
    names = [["hook", "tri"][i // 3] for i in range(6)]
    run = apply_names(copy, read_names(table(copy, names), copy), found)
    dataset = named_dataset(run, found)
    assert dataset.classes == ("hook", "tri")
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [2, 2, 2]
    one = apply_names(run, read_names(table(run, ["all"] * 6), run), found)
    with pytest.raises(RunError, match="1 named classes"):
        named_dataset(one, found)
