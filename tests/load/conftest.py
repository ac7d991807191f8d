"""What tests of the loader share: photographs and packs, as the tests of packs make them."""

from tests.pack.conftest import folder, make_pack, photos  # noqa: F401  fixtures
