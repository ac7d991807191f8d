"""Records made from plain numbers, as the tests of the analysis have them."""

from tests.analyse.conftest import make_data, make_log, make_records

__all__ = ["make_data", "make_log", "make_records"]
