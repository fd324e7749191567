"""Which keys a process has: its secrets are sealed with them, and tokens made."""

from collections.abc import Callable

from flowcatalyst.control.settings import Settings
from flowcatalyst.dispatch.sealing import GivenKeys, KeyFile, Keys, NoKeys, Sealer, read_secret_keys
from flowcatalyst.storage.backup import KEY_FILE


def keys_of(settings: Settings, has_sealed: Callable[[], bool] = lambda: False) -> Keys:
    """There may be none: then they raise `SealError` when one is asked for, and not before.

    `has_sealed`: whether there are secrets already, so that a file of keys that is not there is lost.
    """
    platform = settings.platform
    if platform.secret_key is not None:
        return GivenKeys(read_secret_keys(platform.secret_key.get_secret_value()))
    if platform.database_url is not None:
        return NoKeys()
    return KeyFile(settings.data_dir / KEY_FILE, has_sealed)


def lack_of_key(settings: Settings) -> str | None:
    """What to say at a start, or before it, where secrets will be needed and cannot be kept."""
    platform = settings.platform
    if platform.database_url is None or platform.secret_key is not None or platform.enabled is False:
        return None
    return (
        "is not set, though platform.database_url is: no secret of a subscription can be kept or read; set it to what "
        "`flowcatalyst secret-key` prints, the same in all processes on the database"
    )


def sealer_of(settings: Settings) -> Sealer:
    return Sealer(keys_of(settings))
