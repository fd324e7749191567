"""Which key the secrets of a process are sealed with."""

from flowcatalyst.control.settings import Settings
from flowcatalyst.dispatch.sealing import GivenKeys, KeyFile, NoKeys, Sealer, read_secret_keys
from flowcatalyst.storage.backup import KEY_FILE


def sealer_of(settings: Settings) -> Sealer:
    """It may have no key: then it raises `SealError` when it is used, and not before."""
    platform = settings.platform
    if platform.secret_key is not None:
        return Sealer(GivenKeys(read_secret_keys(platform.secret_key.get_secret_value())))
    if platform.database_url is not None:
        return Sealer(NoKeys())
    return Sealer(KeyFile(settings.data_dir / KEY_FILE))
