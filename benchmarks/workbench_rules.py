"""Rules for what the workbench asks next, tried by the simulated person of `workbench.py` without a browser.

    python benchmarks/workbench_rules.py runs/plankton-10 runs/cells-10

The runs are those of `workbench.py fit`. Names are spread, groups ordered and split, and questions ranked as the page
does it (`report/assets/graph.js` and `questions.js`), in NumPy; single images and growing are left out, which do not
occur among the first actions. The first row is the rule of the page and gives the numbers of the browser up to a few
images; the others change one thing each.

Two more tables say what any rule could do with these graphs. *At once*: if every group were answered by a single action
at the best point, in the order of the page or by share. *Left*: after the last number of actions, the share of right
names among the surest images that are left, by the graph, by a linear classifier of the features that is fitted to the
settled images, and by both together, as `unpose cluster --labels` does it.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

MEMORY, STEPS = 0.95, 60
SHOWN, FEWEST = 60, 4
CARE, EFFORT = 0.85, 10.0


@dataclass(frozen=True)
class Rule:
    cut: float = 0.5  # of the best score of a group: where the slider stands
    power: float = 3.0  # of the scores in the expected gain of a question
    rest_competes: bool = True  # what is left of a group stays a group
    split_below: float = 0.0  # groups with a smaller normalised cut are split before they are asked for
    by_share: bool = False  # images of a group are ordered by its share of the scores that spread from all groups


@dataclass
class Page:
    weights: sparse.csr_array
    group: np.ndarray
    rule: Rule
    names: dict[int, int] = field(default_factory=dict)  # group -> class
    settled: np.ndarray = field(init=False)
    skipped: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self):
        n = self.weights.shape[0]
        self.settled = np.zeros(n, bool)
        self.degree = np.asarray(self.weights.sum(1)).ravel()
        scale = 1 / np.sqrt(np.maximum(self.degree, 1e-12))
        self.walk = sparse.csr_array(self.weights.multiply(scale[:, None]).multiply(scale))
        step = sparse.csr_array(self.weights.multiply(scale[:, None] ** 2))
        self.two_steps = sparse.csr_array(step @ step)
        self.two_steps.setdiag(0)
        todo = list(self.open_groups()) if self.rule.split_below else []
        while todo:
            images = self.asked_of(group := todo.pop())
            if len(images) >= 30:
                cost, _, second = self.halves(images)
                if cost < self.rule.split_below:
                    todo += [group, self.put_in_new_group(second)]
        self.refresh()

    def open_groups(self):
        return sorted(set(self.group[self.group >= 0].tolist()) - set(self.group[self.settled].tolist()))

    def asked_of(self, group):
        return np.flatnonzero((self.group == group) & ~self.settled & (self.degree > 0))

    def put_in_new_group(self, images):
        self.group[images] = new = int(self.group.max()) + 1
        return new

    def refresh(self):
        """Compute how far images stay in their group, and the scores of all names."""
        labels, where = np.unique(self.group, return_inverse=True)
        member = sparse.csr_array((np.ones(len(where)), (np.arange(len(where)), where)), (len(where), len(labels)))
        self.own = self.staying = (self.two_steps @ member).toarray()[np.arange(len(where)), where]
        self.classes = sorted(set(self.group[self.settled & (self.degree > 0)].tolist()))
        starts = np.zeros((len(where), len(self.classes) + 1))
        for column, group in enumerate(self.classes):
            known = (self.group == group) & self.settled & (self.degree > 0)
            starts[known, column] = 1 / known.sum()
        for group in self.open_groups():
            images = self.asked_of(group)
            starts[images, -1] = 1 / max(1, len(images))
        if self.rule.by_share and (opened := self.open_groups()):
            members = np.stack([np.isin(np.arange(len(where)), self.asked_of(group)) for group in opened], axis=1)
            spread = self.spread(np.concatenate([starts[:, :-1], members / np.maximum(members.sum(0), 1)], axis=1))
            spread /= np.maximum(spread.sum(1, keepdims=True), 1e-300)
            self.own = np.where(members, spread[:, len(self.classes) :], 0).sum(1)
        scores = self.spread(starts) if self.classes else starts
        total = np.maximum(scores.sum(1), 1e-300)
        shares = np.where(self.settled[:, None], 0, scores[:, :-1]) / total[:, None]
        self.shares = scores[:, :-1] / total[:, None]
        best = shares.argmax(1) if self.classes else np.zeros(len(where), int)
        self.share = shares.max(1) if self.classes else np.zeros(len(where))
        self.best = np.where(self.share > 0, np.array([*self.classes, -1])[best], -1)

    def spread(self, starts):
        """Scores that spread over the graph from the columns of starts."""
        scores = starts
        for _ in range(STEPS):
            scores = MEMORY * (self.walk @ scores) + (1 - MEMORY) * starts
        return scores

    def scored(self, kind, group):
        """The images of a question and their scores, best first."""
        if kind == "group":
            images = self.asked_of(group)
            scores = self.own[images]
        else:
            images = np.flatnonzero((self.best == group) & ~self.settled & (self.degree > 0))
            scores = self.share[images]
        order = np.lexsort((images, -scores))
        return images[order], scores[order]

    def next_question(self):
        """Kind and group of the question with the largest expected gain, and the largest gain of all."""
        ranked = []
        for kind, groups in (("group", self.open_groups()), ("class", self.classes)):
            for group in groups:
                scores = self.staying[self.asked_of(group)] if kind == "group" else self.scored(kind, group)[1]
                if len(scores):
                    ranked.append((float((scores**self.rule.power).sum()), kind, group))
        ranked.sort(key=lambda each: -each[0])
        if all((kind, group) in self.skipped for _, kind, group in ranked):
            self.skipped.clear()
        chosen = next(((kind, group) for _, kind, group in ranked if (kind, group) not in self.skipped), None)
        return chosen, ranked[0][0] if ranked else 0.0

    def settle(self, kind, group, images, chosen, name):
        target = next((known for known, its in self.names.items() if its == name), None)
        if kind == "group":
            rest = np.setdiff1d(images, chosen)
            if target is None:
                target = group
            if len(rest) >= FEWEST and self.rule.rest_competes:
                self.put_in_new_group(rest)
            else:
                self.group[rest] = -1
        elif target is None:
            target = self.put_in_new_group(chosen)
        self.names[target] = name
        self.group[chosen], self.settled[chosen] = target, True
        self.refresh()

    def halves(self, images):
        """The cut with the least normalised weight along the second eigenvector: its cost, larger and smaller half."""
        inside, m = sparse.csr_array(self.weights[images][:, images]), len(images)
        degree = np.asarray(inside.sum(1)).ravel() + 1e-9
        vector, volume = np.sin(12.9898 * np.arange(1, m + 1)), degree.sum()
        for _ in range(300):
            vector = vector - vector @ degree / volume
            vector = 0.5 * vector + 0.5 * (inside @ vector) / degree
            vector /= np.linalg.norm(vector) or 1
        order = np.argsort(vector, kind="stable")
        sorted_rows = sparse.coo_array(inside[order][:, order])
        steps = np.zeros(m + 1)
        np.add.at(steps, np.minimum(sorted_rows.row, sorted_rows.col), sorted_rows.data / 2)
        np.add.at(steps, np.maximum(sorted_rows.row, sorted_rows.col), -sorted_rows.data / 2)
        sizes, cut, part = np.arange(1, m), np.cumsum(steps)[: m - 1], np.cumsum(degree[order])[:-1]
        costs = np.where((sizes >= m / 10) & (sizes <= m - m / 10), cut / part + cut / (volume - part), np.inf)
        at = int(costs.argmin()) + 1
        first, second = sorted((images[order[:at]], images[order[at:]]), key=len, reverse=True)
        return float(costs.min()), first, second


def answer(page: Page, classes: np.ndarray) -> int:
    """Let the person answer one question; returns her actions, 0 if nothing is left to ask."""
    question, promised = page.next_question()
    if question is None:
        return 0
    kind, group = question
    images, scores = page.scored(kind, group)
    total, effort = len(images), min(EFFORT, max(1.0, round(promised) / 5))
    cut = int((scores >= (page.rule.cut * scores[0] if kind == "group" else 0.5)).sum())
    ranks = np.unique(np.round(np.linspace(0, total - 1, min(total, SHOWN))).astype(int))
    kinds, best, plan = classes[images[ranks]], 0.0, None
    for name in np.unique(kinds):
        right = np.cumsum(kinds == name)
        for count in np.flatnonzero(right > 0) + 1:
            end = total if count == len(ranks) else int(ranks[count - 1] + ranks[count] + 1) // 2
            wrong, moved = int(count - right[count - 1]), int(end != cut)
            for out in {0, wrong} if len(ranks) == total else {0}:
                gain = right[count - 1] * total / len(ranks) - effort * (1 + moved + out)
                if right[count - 1] / (count - out) >= CARE and gain > best:
                    best, plan = gain, (name, end, moved, out)
    if plan is not None:
        name, end, moved, out = plan
        chosen = images[:end]
        page.settle(kind, group, images, chosen[classes[chosen] == name] if out else chosen, int(name))
        return 1 + moved + out
    if kind == "group" and total >= 2 * FEWEST:
        page.put_in_new_group(page.halves(images)[2])
    elif kind == "group":
        page.group[images] = -1
    else:
        page.skipped.add(question)
        return 1
    page.refresh()
    return 1


def start(run: Path, rule: Rule) -> tuple[Page, np.ndarray, Any]:
    """The page of a run, the classes of its images, and their features."""
    from unpose.runs import read_run

    read = read_run(run)
    weights = sparse.csr_array(read.model.weights_)
    weights = sparse.csr_array(weights.maximum(weights.T))
    weights.setdiag(0)
    return Page(weights, np.array(read.labels), rule), np.load(run / "classes.npy"), read.model.features_


def follow(page: Page, classes: np.ndarray, limits: tuple[int, ...]) -> list[tuple[int, float]]:
    """Images settled, and their precision, after some numbers of actions."""
    actions, found = 0, []
    for limit in limits:
        while actions < limit and (used := answer(page, classes)):
            actions += used
        right = named(page)[page.settled] == classes[page.settled]
        found.append((int(page.settled.sum()), float(right.mean())))
    return found


def named(page: Page) -> np.ndarray:
    """The class that the group of each image is named by, -1 for none."""
    return np.array([page.names.get(int(group), -1) for group in page.group])


def at_once(page: Page, classes: np.ndarray) -> int:
    """Images that one answer for each group settles, if each is cut at the best point that the person accepts."""
    total = 0
    for group in page.open_groups():
        kinds = classes[page.scored("group", group)[0]]
        ranks = np.arange(1, len(kinds) + 1)
        total += max(
            (int(ranks[np.cumsum(kinds == kind) >= CARE * ranks].max(initial=0)) for kind in np.unique(kinds)),
            default=0,
        )
    return total


def left_over(page: Page, classes: np.ndarray, features: Any) -> dict[str, np.ndarray]:
    """Whether the likeliest names of the images that are left are right, the surest first, in three ways."""
    from sklearn.linear_model import LogisticRegression

    from unpose.cluster.labels import class_probabilities

    known, left, names = page.settled, np.flatnonzero(~page.settled & (page.degree > 0)), named(page)
    kinds, numbers = np.unique(names[known], return_inverse=True)
    given = np.full(len(names), -1)
    given[known] = numbers
    groups = np.array([page.names[group] for group in page.classes])
    points, weight = 3 * features.points, 1 - features.pixel_share
    linear = LogisticRegression(max_iter=500).fit(points[known], numbers)
    judged = {
        "graph": (groups, page.shares[left]),
        "classifier": (kinds, linear.predict_proba(points[left])),
        "both": (kinds, class_probabilities(page.weights, given, len(kinds), features.points, weight)[left]),
    }
    return {
        how: (its[shares.argmax(1)] == classes[left])[np.argsort(-shares.max(1), kind="stable")]
        for how, (its, shares) in judged.items()
    }


RULES: dict[str, Callable[[Rule], Rule]] = {
    "the rule of the page": lambda rule: rule,
    "cut at 0.3 of the best score": lambda rule: replace(rule, cut=0.3),
    "cut at 0.7": lambda rule: replace(rule, cut=0.7),
    "gain by the first power: large groups first": lambda rule: replace(rule, power=1.0),
    "gain by the eighth power: pure groups first": lambda rule: replace(rule, power=8.0),
    "what is left of a group competes with no name": lambda rule: replace(rule, rest_competes=False),
    "images of a group by its share of all groups": lambda rule: replace(rule, by_share=True),
    "groups with a cut below 0.1 are split first": lambda rule: replace(rule, split_below=0.1),
    "groups with a cut below 0.2 are split first": lambda rule: replace(rule, split_below=0.2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--actions", type=int, nargs="+", default=[22, 40])
    options = parser.parse_args()
    columns = [f"{run.name}, {count} actions" for run in options.runs for count in options.actions]
    print("| images settled (precision) | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for name, change in RULES.items():
        cells = []
        for run in options.runs:
            page, classes, _ = start(run, change(Rule()))
            cells += [f"{count:,} ({share:.3f})" for count, share in follow(page, classes, tuple(options.actions))]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    sure = (50, 100, 200, 400)
    print("\n| at once | groups | in the order of the page | by share |\n|---|---|---|---|")
    for run in options.runs:
        totals = []
        for rule in (Rule(), Rule(by_share=True)):
            page, classes, _ = start(run, rule)
            totals.append(at_once(page, classes))
        print(f"| {run.name} | {len(page.open_groups())} | " + " | ".join(f"{total:,}" for total in totals) + " |")
    print("\n| left, surest | " + " | ".join(map(str, sure)) + " |\n" + "|---" * (len(sure) + 1) + "|")
    for run in options.runs:
        page, classes, features = start(run, Rule())
        follow(page, classes, tuple(options.actions))
        for how, right in left_over(page, classes, features).items():
            print(f"| {run.name}, {how} | " + " | ".join(f"{right[:count].mean():.2f}" for count in sure) + " |")


if __name__ == "__main__":
    main()
