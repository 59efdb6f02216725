"""The workbench in a real browser: a simulated person who sorts a run, and the speed of a page of 30,000 images.

    UNPOSE_DATA=/path/to/arrays python benchmarks/workbench.py fit plankton -o runs [--seed 0] [--device cuda]
    python benchmarks/workbench.py person runs/plankton-0 [--care 0.85] [--most 60] [--checks 6] [--out FILE]
    python benchmarks/workbench.py table FILE...
    python benchmarks/workbench.py curve FILE... -o docs/pictures/workbench.png
    UNPOSE_DATA=/path/to/arrays python benchmarks/workbench.py speed

Needs chromium, chromedriver and selenium; `fit` needs the extra `unpose[features]`. `fit` writes the run of 2,000
plankton images (20 kinds, 100 of each) or of 3,000 red cells (13 kinds), with the number of groups that `unpose
cluster` finds, and the true classes beside it.

`person` opens the page of that run. The person knows the true class of every picture that the page shows, and nothing
else. She reads the question, decides by a fixed rule (class `Person`) and answers with the controls of the page: a name
typed in, a number key, the slider, a tile pressed, accept, reject, split, skip. Each of these is one action. `right`
counts images with an accepted name that is true; `right with proposals` also counts images that are not settled and
whose proposed name is true. The peer names images one by one in random order, one action for each, without an error.

`speed` opens a page of all 30,336 plankton images with a graph of their 8 nearest neighbours by 64 principal components
of their pixels. It reads the browser's own measurements: marks for the time to open, Event Timing for the time from a
key to the next frame. Beside them stand the load of the machine and the processor time of the page's thread, which
other programs hardly change.

`table` prints the figures of the documentation from the files that `person` wrote, and `curve` draws them.
"""

import argparse
import csv
import io
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--window-size=1200,900", "--no-first-run", "--disable-background-networking")  # fmt: skip
GOAL = 0.95
ENTER = "\ue007"


def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    )
    driver.set_page_load_timeout(600)
    driver.set_script_timeout(600)
    return driver


class Person:
    """Looks at the page and answers by a fixed rule.

    For every class she sees among the pictures, and every point up to which she might accept, she counts how many of
    the accepted pictures are of the class. She takes the answer that settles most, less a few images for each action it
    takes (a fifth of what the page expects of its best question, at most ``effort`` and at least 1), among those with a
    share of right pictures of at least ``care``. If all pictures of the question are shown, she may also press single
    wrong ones out. If no answer is worth its actions, she splits a large group, dissolves a small one, and refuses or
    skips a proposal.
    """

    def __init__(self, driver, classes, names, care=0.9, effort=10.0):
        self.driver, self.classes, self.names = driver, classes, names
        self.care, self.effort, self.actions = care, effort, 0

    def see(self):
        """What the page shows: the question, its pictures in order, the names on the keys, and how many there are."""
        return self.driver.execute_script(
            "return {title: document.getElementById('question-title').textContent,"
            " done: document.getElementById('answering').hidden && 'reached' in document.documentElement.dataset,"
            " answer: document.getElementById('naming').value,"
            " tiles: [...document.querySelectorAll('.choose')].map(b => [+b.dataset.image, +b.dataset.rank]),"
            " total: +document.getElementById('cut').max, cut: +document.getElementById('cut').value,"
            " canSplit: !document.getElementById('split').disabled,"
            " promised: +(document.querySelector('#next small')?.textContent.replace(/\\D/g, '') ?? 1),"
            " names: [...document.querySelectorAll('#choices bdi')].map(b => b.textContent)}"
        )

    def press(self, keys):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=0).send_keys(keys).perform()
        self.actions += 1

    def click(self, selector):
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)
        self.driver.execute_script("document.getElementById('question').focus()")
        self.actions += 1

    def slide(self, value):
        self.driver.execute_script(
            "const s = document.getElementById('cut'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))",
            value,
        )
        self.actions += 1

    def say(self, name, seen):
        """Give the chosen images a name, in one action: by its key, or typed."""
        if seen["answer"] == name:
            self.press(" ")
        elif name in seen["names"]:
            self.press(str(seen["names"].index(name) + 1))
        else:
            self.press(f"n{name}{ENTER}")

    def check(self):
        """Look at a few settled pictures again, and press out those with a wrong name."""
        self.click("#check")
        seen = self.see()
        called = self.driver.execute_script("return [...document.querySelectorAll('.called')].map(b => b.textContent)")
        for (image, _), name in zip(seen["tiles"], called, strict=True):
            if self.names[self.classes[image]] != name:
                self.click(f'.choose[data-image="{image}"]')
        self.press(" ")

    def answer(self, seen):
        tiles, effort = seen["tiles"], min(self.effort, max(1.0, seen["promised"] / 5))
        kinds = self.classes[[image for image, _ in tiles]]
        if len(tiles) == 1:
            return self.say(self.names[kinds[0]], seen)
        total, is_whole = seen["total"], len(tiles) == seen["total"]
        each = total / len(tiles)  # images that one picture stands for
        best, plan = 0.0, None
        for kind in np.unique(kinds):
            right = np.cumsum(kinds == kind)
            for count in range(1, len(tiles) + 1):
                wrong = count - right[count - 1]
                if not right[count - 1]:
                    continue
                end = total if count == len(tiles) else (tiles[count - 1][1] + tiles[count][1] + 1) // 2
                moved = end != seen["cut"]
                for out in (0, wrong) if is_whole and wrong else (0,):
                    share = right[count - 1] / (count - out)
                    gain = right[count - 1] * each - effort * (1 + moved + out)
                    if share >= self.care and gain > best:
                        best, plan = gain, (kind, count, end, moved, out)
        if plan is not None:
            kind, count, end, moved, out = plan
            if moved:
                self.slide(end)
            for (image, _), its in zip(tiles[:count], kinds[:count], strict=True):
                if out and its != kind:
                    self.click(f'.choose[data-image="{image}"]')
            return self.say(self.names[kind], seen)
        if "What are they" in seen["title"]:
            return self.press("s") if seen["canSplit"] else (self.slide(total), self.press("x"))
        asked = np.array([self.names[kind] == seen["answer"] for kind in kinds])
        inside = np.array([rank < seen["cut"] for _, rank in tiles])
        if inside.any() and not asked[inside].any():
            return self.press("x")
        return self.press("j")


CATCH = """
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { window.saved = blob; return make(blob); };
HTMLAnchorElement.prototype.click = () => {};
"""
"""Keeps the table that the page saves in the page, so that it can be read after every answer without a download."""


def table(driver):
    """Name, settled and proposed name of every image, from the table that the page would save: three arrays (n,)."""
    text = driver.execute_async_script(
        "const done = arguments[0]; document.getElementById('save').click(); window.saved.text().then(done)"
    )
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    settled = np.array([row["settled"] == "true" for row in rows])
    return np.array([row["name"] for row in rows]), settled, np.array([row["proposed"] for row in rows])


def follow(page, classes, names, care, effort, most, checks):
    """Let the person work on a page; returns one row for every action that changed something."""
    driver = browser()
    try:
        driver.get(page.as_uri())
        driver.execute_script(CATCH + "document.getElementById('question').focus()")
        person, rows, truth = Person(driver, classes, names, care, effort), [], np.array(names)[classes]
        while person.actions < most:
            seen = person.see()
            if seen["done"]:
                break
            if not seen["tiles"]:
                time.sleep(0.1)  # the page looks for the images to ask for
                continue
            person.answer(seen)
            name, settled, proposed = table(driver)
            right = settled & (name == truth)
            likely = right | (~settled & (proposed == truth))
            rows.append({
                "actions": person.actions, "settled": int(settled.sum()), "right": round(float(right.mean()), 4),
                "precision": round(float(right.sum() / max(1, settled.sum())), 4),
                "right with proposals": round(float(likely.mean()), 4),
            })  # fmt: skip
            if rows[-1]["right"] >= GOAL:
                break
        before = person.actions
        for _ in range(checks):
            person.check()
        said = driver.find_element("id", "progress-line").text if checks else ""
        return rows, {"checks": checks, "actions of checks": person.actions - before, "page after checks": said}
    finally:
        driver.quit()


def one_by_one(n, seed=0):
    """Actions until GOAL of n images are named when each is named by itself, in random order: all are right."""
    return int(np.ceil(GOAL * n))


def person(options):
    from unpose.runs import read_run

    run = read_run(options.run)
    classes = np.load(options.run / "classes.npy")
    names = [f"kind {kind:02d}" for kind in range(int(classes.max()) + 1)]
    run.write_page()
    page = run.path.resolve() / "report.html"
    rows, checked = follow(page, classes, names, options.care, options.effort, options.most, options.checks)
    result = summary(rows, len(classes)) | checked | {
        "run": run.path.name, "images": len(classes), "title": options.title, "care": options.care,
        "effort": options.effort, "groups": run.model.n_clusters_, "machine": platform.platform(), "rows": rows,
    }  # fmt: skip
    print({key: value for key, value in result.items() if key != "rows"})
    Path(options.out).write_text(json.dumps(result) + "\n")


def summary(rows, n):
    """The figures of the documentation, from the rows of one person on n images."""
    precise = [row for row in rows if row["precision"] >= 0.9]
    most = max(precise, key=lambda row: row["settled"] / row["actions"], default=None)
    reached = {
        f"actions to {goal:.0%} {what}": next((row["actions"] for row in rows if row[what] >= goal), None)
        for goal in (0.5, 0.75, 0.9, GOAL) for what in ("right", "right with proposals")
    }  # fmt: skip
    goal = [row for row in precise if row["settled"] >= 40 * row["actions"]]
    return reached | {
        "actions": rows[-1]["actions"],
        "right": rows[-1]["right"],
        "precision": rows[-1]["precision"],
        "one by one": one_by_one(n),
        "most settled per action at precision 0.9": most and round(most["settled"] / most["actions"], 1),
        "last with 40 per action at precision 0.9": goal
        and (goal[-1]["actions"], goal[-1]["settled"], goal[-1]["precision"]),
    }


def speed(options):
    """Open a page of all plankton images and answer it; prints milliseconds."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NearestNeighbors

    from arrays import load
    from unpose.cluster.graph import attention_matrix
    from unpose.report import Reproduction
    from unpose.report.page import Cluster, Results, render

    images, classes = load("plankton_ndsb.npz", "x", "y")
    images, n = images[: options.images], len(images[: options.images])
    points = PCA(64, random_state=0).fit_transform(images.reshape(n, -1) / np.float32(255))
    distances, indices = NearestNeighbors(n_neighbors=13).fit(points).kneighbors(points)
    weights = attention_matrix(indices[:, 1:], distances[:, 1:])
    labels = MiniBatchKMeans(120, random_state=0, n_init=1).fit_predict(points)
    labels = np.unique(labels, return_inverse=True)[1]
    means = [images[labels == label].mean(0) / 255 for label in range(labels.max() + 1)]
    clusters = [Cluster(mean, 0.5, int(np.flatnonzero(labels == label)[0])) for label, mean in enumerate(means)]
    results = Results(
        question="Speed", images=images, names=[f"plankton/{i:05d}.png" for i in range(n)], labels=labels,
        confidences=np.full(n, 0.5), poses=np.tile(np.eye(3), (n, 1, 1)), layout=points[:, :2], clusters=clusters,
        reproduction=Reproduction("unpose cluster", 0, "0"), attention=weights, stability=0.5,
    )  # fmt: skip
    text = render(results)
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "report.html"
        page.write_text(text, encoding="utf-8")
        driver = browser()
        try:
            driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
            loads, opened, painted, used = [os.getloadavg()[0]], [], [], []
            for _ in range(options.openings):
                driver.get("about:blank")
                before = cpu_seconds(driver)
                driver.get(page.as_uri())
                opened.append(driver.execute_script("return performance.getEntriesByName('ready')[0].startTime"))
                paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
                painted.append(driver.execute_script(paint))
                used.append(1000 * (cpu_seconds(driver) - before))
            shown = driver.execute_script("return JSON.parse(document.getElementById('data').textContent).shown.length")
            driver.execute_script(WATCH)
            durations, handled, answered = [], [], []
            for k in range(options.answers):
                time.sleep(1)  # the name before is spread in the meantime, as while a person looks
                for values, value in zip(
                    (durations, handled, answered), answer(driver, f"kind {classes[k]}"), strict=True
                ):
                    values.append(value)
            loads.append(os.getloadavg()[0])
        finally:
            driver.quit()
    print(
        f"{n:,} images, {shown:,} of them with a picture; {weights.nnz:,} weights; a page of {len(text) / 1e6:.1f} MB."
    )
    print(f"{os.cpu_count()} cores with a load of {min(loads):.1f} to {max(loads):.1f} by all programs.\n")
    print("| | median, ms | fastest | slowest | times |\n|---|---|---|---|---|")
    rows = {
        "from the request to the first picture drawn": painted, "from the request until the page can be used": opened,
        "the same, processor time of the page": used, "from a key to the next question drawn": durations,
        "of which the script that handles the key": handled, "processor time of the page for one answer": answered,
    }  # fmt: skip
    for what, values in rows.items():
        kept = np.array(values)
        print(f"| {what} | {np.median(kept):,.0f} | {kept.min():,.0f} | {kept.max():,.0f} | {len(kept)} |")


def cpu_seconds(driver):
    """Processor time of the page's thread so far."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def answer(driver, name):
    """Name what the page shows by real keys; returns what the browser measured for the last one, in milliseconds.

    They are the duration from the key to the next frame and that of the script (the browser's Event Timing), and the
    processor time of the page's thread.
    """
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver, duration=0).send_keys(f"n{name}").perform()
    pressed, before = driver.execute_script("return performance.now()"), cpu_seconds(driver)
    ActionChains(driver, duration=0).send_keys(ENTER).perform()
    later = "return window.timed.filter((each) => each[0] >= arguments[0])"
    while not (found := driver.execute_script(later, pressed)):
        time.sleep(0.05)
    used = 1000 * (cpu_seconds(driver) - before)
    return max(each[1] for each in found), max(each[2] for each in found), used


WATCH = """
window.timed = [];
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) {
    if (each.name !== "keydown") continue;
    window.timed.push([each.startTime, each.duration, each.processingEnd - each.processingStart]);
  }
}).observe({ type: "event", durationThreshold: 16 });
document.getElementById("question").focus();
"""
"""Keeps what the browser itself measures of keys."""


def fit(options):
    """Write the run of a set, as `unpose cluster` would, with its classes."""
    from unpose.cluster import InvariantClustering
    from unpose.data import read_folder
    from unpose.runs import RunSettings, write_run
    from wild import drawn, plankton

    x, y = plankton(options.seed) if options.set == "plankton" else drawn("chula_rbc.npz", 3000, options.seed)
    folder = options.out / f"{options.set}-{options.seed}"
    folder.mkdir(parents=True)
    stack = options.out / f"{options.set}-{options.seed}.npy"
    np.save(stack, (x * 255 + 0.5).astype(np.uint8))
    images = read_folder(stack)
    model = InvariantClustering(group="se2+mirror", features="efficientnet-lite0", device=options.device)
    settings = RunSettings(group="se2+mirror", features="efficientnet-lite0", device=options.device)
    write_run(folder, stack, images, model.fit(images.images), settings, "benchmarks/workbench.py fit").write_page()
    np.save(folder / "classes.npy", y)


def table_of(options):
    """Print actions, precision and images for one action, for the files that `person` wrote."""
    runs = [json.loads(Path(file).read_text()) for file in options.files]
    careful = [run for run in runs if run["rows"][-1]["right"] >= GOAL]
    print("| set, images, groups found, `care` | 50 % | 75 % | 90 % | 95 % | one by one, 95 % |\n" + "|---" * 6 + "|")
    for run in careful:
        cells = []
        for goal in (0.5, 0.75, 0.9, GOAL):
            sure, likely = (run[f"actions to {goal:.0%} {what}"] for what in ("right", "right with proposals"))
            cells.append(f"{sure:,} ({likely:,})")
        about = f"{run['title']}, {run['images']:,}, {run['groups']}, {run['care']}"
        print(f"| {about} | {' | '.join(cells)} | {run['one by one']:,} |")
    print()
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    print("| settled | " + " | ".join(f"{share:.0%}" for share in shares) + " |\n|---|" + "---|" * len(shares))
    for run in runs:
        if run in careful:
            continue
        reached = [
            next((row for row in run["rows"] if row["settled"] >= share * run["images"]), None) for share in shares
        ]
        cells = [row and f"{row['settled'] / row['actions']:.0f} ({row['precision']:.2f})" for row in reached]
        print(f"| {run['title']}, `care` {run['care']} | " + " | ".join(cell or "" for cell in cells) + " |")
    for run in runs:
        if run not in careful and run["last with 40 per action at precision 0.9"]:
            actions, settled, precision = run["last with 40 per action at precision 0.9"]
            share = settled / run["images"]
            print(f"\n{run['title']}: 40 images for one action at a precision of 0.9 hold up to {settled:,} images "
                  f"({share:.0%}) in {actions} actions, precision {precision:.3f}.")  # fmt: skip
        if run["checks"]:
            print(f"\n{run['title']}, after {run['checks']} checks: {run['page after checks']} True precision: "
                  f"{run['precision']:.2f}.")  # fmt: skip


def curve(options):
    """Draw the share of rightly named images against actions, for the files that `person` wrote."""
    from unpose.files import write_image
    from unpose.report import figures

    panels = []
    for file in options.files:
        found = json.loads(Path(file).read_text())
        n, rows = found["images"], found["rows"]
        steps = np.linspace(0, rows[-1]["actions"], 200)
        actions = np.array([0, *(row["actions"] for row in rows)])
        lines = {
            what: np.array([0.0, *(row[what] for row in rows)])[np.searchsorted(actions, steps, side="right") - 1] * 100
            for what in ("right", "right with proposals")
        }  # fmt: skip
        lines["one by one"] = 100 * np.minimum(1, steps / n)
        lines = {what: line.tolist() for what, line in lines.items()}
        panels.append(
            figures.curve(
                lines, x=steps.tolist(), x_label="actions", y_label=f"{found['title']}: per cent named rightly"
            )
        )
    write_image(options.out, figures.beside(panels, title="Actions of a simulated person on the workbench"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    fast = commands.add_parser("speed")
    fast.add_argument("--images", type=int, default=30_336)
    fast.add_argument("--answers", type=int, default=20)
    fast.add_argument("--openings", type=int, default=5)
    fast.set_defaults(act=speed)
    fitting = commands.add_parser("fit")
    fitting.add_argument("set", choices=["plankton", "cells"])
    fitting.add_argument("-o", "--out", type=Path, default=Path("runs"))
    fitting.add_argument("--seed", type=int, default=0)
    fitting.add_argument("--device", default="cpu")
    fitting.set_defaults(act=fit)
    drawing = commands.add_parser("curve")
    drawing.add_argument("files", nargs="+")
    drawing.add_argument("-o", "--out", type=Path, default=Path("workbench.png"))
    drawing.set_defaults(act=curve)
    showing = commands.add_parser("table")
    showing.add_argument("files", nargs="+")
    showing.set_defaults(act=table_of)
    one = commands.add_parser("person")
    one.add_argument("run", type=Path)
    one.add_argument("--care", type=float, default=0.9)
    one.add_argument("--effort", type=float, default=10.0)
    one.add_argument("--most", type=int, default=1500)
    one.add_argument("--checks", type=int, default=0, help="checks of settled images at the end")
    one.add_argument("--title", default="", help="what the curve calls the set")
    one.add_argument("--out", default="workbench.json")
    one.set_defaults(act=person)
    options = parser.parse_args()
    options.act(options)


if __name__ == "__main__":
    main()
