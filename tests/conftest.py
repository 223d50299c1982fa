"""Settings every test shares."""

from collections.abc import Sequence

import pytest
from hypothesis import settings

# A busy machine is no reason to fail: no law here is about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Under `pytest -n` the tests of a file share a process, and what they import, unless they are marked."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
