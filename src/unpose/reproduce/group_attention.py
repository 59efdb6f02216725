"""The items of Group Equivariant Stand-Alone Self-Attention For Vision.

The laws are in ``attention_laws.py``, the pictures in ``attention_pictures.py``, the trained tables in
``published_networks.py``.
"""

from typing import Any

from unpose.reproduce import attention_laws, attention_pictures
from unpose.reproduce.items import Item, Option, Outcome, Settings
from unpose.reproduce.published_networks import TABLE1, TABLE2, train_cell

_PAPER = "Group Equivariant Stand-Alone Self-Attention"


def table1(settings: Settings, **options: Any) -> Outcome:
    """Train four rotations with windows of 3 to 28 pixels (table 1 and figure 3)."""
    return train_cell(settings, TABLE1, **options)


def table2(settings: Settings, **options: Any) -> Outcome:
    """Train the networks of table 2."""
    return train_cell(settings, TABLE2, **options)


def _table_options(default: str, cells: dict[str, Any]) -> tuple[Option, ...]:
    return (
        Option("cell", default, "Row of the table; 'all' lists the rows and their cost.", choices=("all", *cells)),
        Option("seeds", 1, "Number of runs, with the seeds from --seed on.", bounds=(1, 100)),
        Option(
            "recipe", "published", "The settings of the paper, or our own recipe for the data.",
            choices=("published", "ours"),
        ),
        Option(
            "mode", "relative",
            "Group attention: our smaller sum, the paper's sum made equivariant, or equation 16 as printed.",
            choices=("relative", "paper", "printed"),
        ),
        Option("device", "cpu", "Where to train.", choices=("cpu", "cuda")),
    )  # fmt: skip


_SMALL = (
    "The small run trains two epochs on few images of half the size; --full trains to the end, resumes after an "
    "interruption, and needs a GPU. Where the data are missing, the small run uses a stand-in and says so."
)

GROUP_ATTENTION: tuple[Item, ...] = (
    Item(
        "attention-figure1", _PAPER, "Figure 1", "Rotating the input rotates the feature maps and permutes them",
        attention_pictures.figure1, seconds=10, description="A lifting and a group layer for four rotations.",
    ),
    Item(
        "propositions", _PAPER, "Propositions 4.1 to 5.2", "With which transformations attention commutes",
        attention_laws.propositions, seconds=10, description="One relative error for each statement, in float64.",
    ),
    Item(
        "attention-figure2", _PAPER, "Figure 2", "Rotating a discrete kernel and rotating a position encoding",
        attention_pictures.figure2, seconds=5, description="A kernel has to be interpolated, an encoding is evaluated.",
    ),
    Item(
        "equation16", _PAPER, "Equations 14 and 16", "The sum over the group as printed is not equivariant",
        attention_laws.equation16, seconds=40,
        description="Errors under quarter turns and mirrors: lifting, our relative form, the paper's sum with "
        "invariant relative elements, as printed, and with the index arithmetic of the released code.",
    ),
    Item(
        "convolution", _PAPER, "Section 5.3", "A group convolution is a group attention with enough heads",
        attention_laws.convolution, seconds=10, description="The layer is built from the kernel; both are compared.",
    ),
    Item(
        "table1", _PAPER, "Table 1 and figure 3", "Accuracy against neighbourhood size on rotated MNIST", table1,
        seconds=100, full_seconds=1320, description=_SMALL, options=_table_options("r4-5x5", TABLE1),
    ),
    Item(
        "table2", _PAPER, "Table 2", "Classification: rotated MNIST, CIFAR-10, PatchCamelyon", table2, seconds=100,
        full_seconds=1320, description=_SMALL, options=_table_options("rotmnist-r4", TABLE2),
    ),
    Item(
        "attention-figureA1", _PAPER, "Figure A.1", "A kernel is fixed, attention weights depend on the query",
        attention_pictures.figure_a1, seconds=5, description="Weights of three queries of a local attention layer.",
    ),
    Item(
        "attention-figureB1", _PAPER, "Figure B.1", "Lifting self-attention: rotated encodings and their maps",
        attention_pictures.figure_b1, seconds=5, description="Four rotations; one encoding and one map for each.",
    ),
    Item(
        "attention-figureB2", _PAPER, "Figure B.2", "Group self-attention: encodings of pairs of elements, and maps",
        attention_pictures.figure_b2, seconds=5, description="Four rotations; an encoding for each pair of elements.",
    ),
    Item(
        "haar-measure", _PAPER, "Appendix E, equations 20 and 21", "Where the factor of the measure belongs",
        attention_laws.dilations, seconds=5, description="A scene at two sizes, with the factor outside and inside.",
    ),
    Item(
        "architectures", _PAPER, "Figure F.1 and appendix F", "Numbers of parameters of the published networks",
        attention_laws.parameters, seconds=5, description="Compared with the numbers in table 2.",
    ),
)  # fmt: skip
