"""What tests of benchmarks share: packs, as the tests of packs make them."""

from tests.data.conftest import make_pack  # noqa: F401  fixture
