"""The platform of one process: what takes events in and knows who wants them."""

from dataclasses import dataclass

from flowcatalyst.dispatch.api_keys import ApiKeys
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.intake import Intake
from flowcatalyst.dispatch.sealing import Sealer
from flowcatalyst.dispatch.store.platform_contract import PlatformStore


@dataclass(slots=True, frozen=True)
class Platform:
    store: PlatformStore
    catalog: Catalog
    intake: Intake
    sealer: Sealer
    api_keys: ApiKeys
