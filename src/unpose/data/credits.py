"""What to cite for each named data set, and its licence."""

from dataclasses import dataclass

from unpose.data.folders import InputError


@dataclass(frozen=True)
class Credit:
    """What to state when results on a data set are published.

    Parameters
    ----------
    citation : str
        The publication to cite.
    licence : str
        The licence of the images.

    Examples
    --------
    >>> Credit("A. Author: Ten images, 2020", "CC0").licence
    'CC0'
    """

    citation: str
    licence: str


_MNIST = Credit(
    "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition, Proceedings "
    "of the IEEE 86, 1998",
    "CC BY-SA 3.0, as the documentation of Keras gives it; the copyright is Y. LeCun's and C. Cortes's",
)

CREDITS = {
    "mnist": _MNIST,
    "rotated-mnist": Credit(
        f"{_MNIST.citation}; turned as in H. Larochelle, D. Erhan, A. Courville, J. Bergstra, Y. Bengio: An empirical "
        "evaluation of deep architectures on problems with many factors of variation, ICML 2007",
        _MNIST.licence,
    ),
    "fashion-mnist": Credit(
        "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine learning "
        "algorithms, 2017",
        "MIT, Zalando SE",
    ),
    "cifar-10": Credit(
        "A. Krizhevsky: Learning multiple layers of features from tiny images, 2009", "none stated by its author"
    ),
    "patch-camelyon": Credit(
        "B. S. Veeling, J. Linmans, J. Winkens, T. Cohen, M. Welling: Rotation equivariant CNNs for digital pathology, "
        "MICCAI 2018; made from Camelyon16",
        "CC0",
    ),
    "digits": Credit(
        "E. Alpaydin, C. Kaynak: Optical recognition of handwritten digits, UCI Machine Learning Repository, 1998",
        "CC BY 4.0",
    ),
}
"""Credits by the names that :func:`unpose.data.load` knows."""


def credit(name: str) -> Credit:
    """Look up what to cite for a named data set.

    Parameters
    ----------
    name : str
        One of the names that :func:`unpose.data.load` knows.

    Returns
    -------
    Credit
        Citation and licence.

    Examples
    --------
    >>> credit("patch-camelyon").licence
    'CC0'
    """
    if name not in CREDITS:
        raise InputError(f"no credit is known for the data {name!r}; known: {', '.join(CREDITS)}")
    return CREDITS[name]
