"""The conformance suite of platform stores: what they do besides keeping jobs. It goes with `JobStoreSuite`."""

from tests.conformance.catalog_suite import CatalogSuite
from tests.conformance.event_suite import EventSuite
from tests.conformance.pause_suite import PauseSuite
from tests.conformance.position_suite import PositionSuite


class PlatformSuite(EventSuite, CatalogSuite, PauseSuite, PositionSuite):
    pass
