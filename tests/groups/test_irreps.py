"""Laws of the real irreducible representations of the finite groups, and of the Fourier basis."""

import pytest
import torch

from unpose.groups import dilations, fourier_basis, irreducible_representations, parse

pytestmark = pytest.mark.laws
GROUPS = ["c1", "c2", "c3", "c4", "c5", "c8", "d1", "d2", "d3", "d4", "d5", "d6", "d8"]


@pytest.mark.parametrize("name", GROUPS)
def test_every_representation_is_a_homomorphism_of_orthogonal_matrices(name):
    group = parse(name)
    irreps = irreducible_representations(group)
    for rho in (*irreps.singles[:, :, None, None], *irreps.pairs):  # (order, d, d) each
        assert torch.allclose(rho[:, None] @ rho[None], rho[group.product], atol=1e-12)
        assert torch.allclose(rho @ rho.mT, torch.eye(rho.shape[-1]).double(), atol=1e-12)


@pytest.mark.parametrize("name", GROUPS)
def test_matrix_entries_are_an_orthonormal_basis(name):
    basis = fourier_basis(parse(name))
    assert basis.shape == (parse(name).order,) * 2
    assert torch.allclose(basis @ basis.T, torch.eye(len(basis)).double(), atol=1e-12)


@pytest.mark.parametrize("name", GROUPS)
def test_the_basis_makes_the_regular_representation_block_diagonal(name):
    group = parse(name)
    irreps, basis = irreducible_representations(group), fourier_basis(group)
    blocks = [rho[:, None, None] for rho in irreps.singles]
    # Components are outside, copies inside: rho(g) kron identity.
    blocks += [
        torch.einsum("gij,ab->giajb", rho, torch.eye(irreps.copies).double()).reshape(
            group.order, *[2 * irreps.copies] * 2
        )
        for rho in irreps.pairs
    ]
    for element in range(group.order):
        wanted = torch.block_diag(*[block[element] for block in blocks])
        assert torch.allclose(basis @ group.regular_representation[element] @ basis.T, wanted, atol=1e-12)


@pytest.mark.parametrize("name", GROUPS)
def test_no_representation_is_reducible_or_occurs_twice(name):
    group = parse(name)
    irreps = irreducible_representations(group)
    characters = torch.cat([irreps.singles, irreps.pairs.diagonal(dim1=-2, dim2=-1).sum(-1)])
    products = characters @ characters.T / group.order
    # A real representation of complex type has the norm 2: over the complex numbers it is two different ones.
    norms = [1.0] * len(irreps.singles) + [2.0 / irreps.copies] * len(irreps.pairs)
    assert torch.allclose(products, torch.diag(torch.tensor(norms).double()), atol=1e-12)


def test_quarter_turns_are_exact_and_dilations_are_refused():
    assert set(irreducible_representations(parse("d4")).pairs.unique().tolist()) == {-1.0, 0.0, 1.0}
    with pytest.raises(ValueError, match="cyclic and dihedral"):
        irreducible_representations(dilations(3))
