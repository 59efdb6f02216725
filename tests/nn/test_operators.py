"""Every operator of the layers on its example: the kernels and the plain form agree, and both have gradients."""

import pytest
import torch

from kit.kernels import kernel_tests, operator_kernel
from unpose.nn import group_attention  # registers all operators
from unpose.nn.ops.dispatch import OPERATORS

assert group_attention


def example(name, device="cpu", dtype=torch.float16):
    """Arguments of the example, and the tensors among them."""
    torch.manual_seed(3)
    arguments = OPERATORS[name].example()
    given = [each for each in arguments if isinstance(each, torch.Tensor)]
    tensors = [each.detach().to(device, dtype).requires_grad_(each.requires_grad) for each in given]
    return arguments, tensors


def call(function, name, *tensors):
    """The function with the tensors in place of those of its example."""
    left = iter(tensors)
    return function(*(next(left) if isinstance(each, torch.Tensor) else each for each in example(name)[0]))


KERNELS = {
    name: operator_kernel(operator, lambda case, device: example(case, device)[1], {"example": name}, 2e-2, call=call)
    for name, operator in OPERATORS.items()
}
test_interpreted, _, test_on_a_gpu = kernel_tests(__file__, KERNELS)


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_the_plain_form_equal_finite_differences(name):
    _, tensors = example(name, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *given: call(OPERATORS[name].plain, name, *given), tensors, fast_mode=True)
