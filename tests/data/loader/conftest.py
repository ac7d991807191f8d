"""What tests of the loader share: photographs and packs, as the tests of packs make them."""

from tests.data.conftest import folder, make_pack, photos  # noqa: F401  fixtures
