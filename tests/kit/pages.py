"""The pages that this package writes, with one text wherever a page takes a name, and what a page consists of."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from unpose.report import Rejected, Reproduction
from unpose.report import audit as of_audit
from unpose.report import duplicates as of_duplicates
from unpose.report import page as of_cluster
from unpose.report import symmetry_page as of_discover

HOSTILE_TEXTS = [
    "<img src=x onerror=document.title='hit'>.png", "</script><script>document.title='hit'</script>.png", "-->.png",
    "</script ><svg/onload=document.title='hit'>", "</script x.png", "<!--<script>.png", "<!--<script x",
    "\"onfocus=document.title='hit' autofocus x=\"", "javascript:document.title='hit'", "\"'`.png", "a\nb\r\n.png",
    "\u202egnp.exe", "{{ 7 * 7 }}{% raw %}.png", "&lt;b&gt;&amp;.png", "\u2028\u2029.png",
    "caf\u00e9-\u732b-\U0001f600.png", "bytes-\udcff\udc80.png", "=HYPERLINK(1).png",
]  # fmt: skip
"""Names of files and classes that a page could take for markup, script or a template."""


class Parsed(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts, styles and others by id or tag."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self._open = [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open = dict(attributes).get("id") or tag

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, text):
        self.texts[self._open] = self.texts.get(self._open, "") + text

    @property
    def data(self):
        """What the page's script reads."""
        return json.loads(self.texts["data"])


def clustered(n=23, k=3, shape=(11, 17), seed=0, **changes):
    """Random results of a clustering."""
    rng = np.random.default_rng(seed)
    labels = np.append(np.arange(k), rng.integers(-1, k, n - k)) if k else np.full(n, -1)
    clusters = [
        of_cluster.Cluster(
            rng.random(shape), float(rng.random()), int(np.flatnonzero(labels == c)[0]), rng.random(shape[:2])
        )
        for c in range(k)
    ]
    made = of_cluster.Results(
        question="What is here?",
        images=rng.random((n, *shape)),
        names=[f"folder/image {i}.png" for i in range(n)],
        labels=labels,
        confidences=rng.random(n),
        poses=np.eye(3) + 0.1 * rng.normal(size=(n, 3, 3)) * [[1], [1], [0]],
        layout=rng.normal(size=(n, 2)),
        clusters=clusters,
        reproduction=Reproduction("unpose cluster folder -o run", 5, "1.2.3", {"group": "se2"}),
    )
    return replace(made, **changes)


def cluster_page(text):
    """The page of ``unpose cluster``."""
    return of_cluster.render(clustered(
        n=17, question=text, names=[text] * 17, rejected=[Rejected(text, text)], agreement={text: 0.5},
        reproduction=Reproduction(text, 5, text, {text: text}), attention=np.eye(17), remarks=[text],
        rounds=[of_cluster.Round(np.zeros((2, 5, 7)), text)],
    ))  # fmt: skip


def audit_page(text):
    """The page of ``unpose audit``."""
    turns = [
        of_audit.AuditedElement(f"turn {d}", d % 90 == 0, 0.2, 0, 0.1, 0, 0.9, float(d)) for d in range(0, 360, 30)
    ]
    picture = np.eye(9)
    return of_audit.render_audit(of_audit.AuditResults(
        model=text, group="c4", images=text, count=200, elements=turns, discrimination=0.8, tolerance=1e-5,
        control=of_audit.AuditedElement("mirror", True, 0.4, 0, 0.3, 0, 0.5), angles=turns, angles_count=64,
        reproduction=Reproduction(text, 3, text, {text: text}), repair_images=(50, 50), advice=text, labelled=True,
        classes=[of_audit.AuditedClass(text, 40, "turn 90", 0.31, 0.0, 0.9, 0.7)], failures=[Rejected(text, text)],
        modules=[of_audit.AuditedModule(text, text, 1, 0.3, True, text)],
        shares=[of_audit.LayerShare(text, text, 0.8, text)],
        worst_images=[of_audit.WorstImage(text, "turn 90", text, text, picture, picture, text, 0.9, 0.6)],
        repairs=[of_audit.Repair(text, 0.9, 0.6, 0.07, 1.0), of_audit.Repair(text, 0.9, 0.9, 0.0, 4.0, True)],
        comparison=of_audit.Comparison(text, [("turn 90", 0.2, 0.07)], 0.1, [(text, text, text)]),
        pairs=of_audit.RealPairs(20, 0.3, 0.2, 0.1, 0.25, 0.1, 0.0, [(text,) * 4]), remarks=[text],
    ))  # fmt: skip


def symmetry_page(text):
    """The page of ``unpose discover``."""
    families = [
        of_discover.SymmetryFamily(
            text, text, "does not hold", text, [f"{d} degrees" for d in (90, 180)], [0.5, 0.2], [0.1, 0.4],
            ["+1 %", "-1 %"], text, [(np.eye(9), text)],
        ),
    ]  # fmt: skip
    return of_discover.render_symmetry(of_discover.SymmetryResults(
        text, 100, True, text, [text], families, Reproduction(text, 0, text, {text: text})
    ))  # fmt: skip


def duplicates_page(text):
    """The page of ``unpose dedupe``."""
    pair = of_duplicates.ShownPair(text, text, [text], [(text, np.eye(9)), (text, None)])
    return of_duplicates.render_duplicates(
        [of_duplicates.ShownSet(text, text, [pair])], [text], [(text, text)], text
    )  # fmt: skip


PAGES = {"page": cluster_page, "audit": audit_page, "symmetry": symmetry_page, "duplicates": duplicates_page}
"""Template -> a function that writes its page, with a text in every place that takes one."""
