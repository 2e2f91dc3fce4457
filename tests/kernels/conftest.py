"""What the kernels' tests share."""

from collections.abc import Iterator

import pytest
from support.kernel_inputs import BACKENDS

from kellet import kernels


@pytest.fixture(params=BACKENDS)
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with each backend."""
    before = kernels.backend()
    kernels.use_backend(request.param)
    yield request.param
    kernels.use_backend(before)
