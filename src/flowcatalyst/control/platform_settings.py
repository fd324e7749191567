"""Settings of the dispatch platform."""

from pydantic import Field, SecretStr, field_validator

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import check_target
from flowcatalyst.core.settings import Section
from flowcatalyst.dispatch.sealing import read_secret_keys


class PlatformSettings(Section):
    """The dispatch platform."""

    enabled: bool | None = Field(
        None,
        description="Take events, and keep and deliver dispatch jobs; unset: `flowcatalyst up` and `platform` do, "
        "`router` does not",
    )
    database_url: SecretStr | None = Field(
        None,
        description="postgresql://user:password@host:5432/database of the jobs, with ?schema= and &sslmode= if needed; "
        "any number of processes work on it. Unset: jobs.db in the data folder",
    )
    secret_key: SecretStr | None = Field(
        None,
        description="Key that secrets of subscriptions are sealed with: what `flowcatalyst secret-key` prints; "
        "several, separated by commas, the newest first. Unset: secret.key in the data folder, made when it is "
        "needed; with database_url no secret can be kept",
    )
    retention_days: float = Field(
        30.0, ge=0, description="How long finished dispatch jobs, with their attempts, and events are kept; 0: for ever"
    )
    public_url: str | None = Field(
        None,
        description="http:// or https:// URL at which routers on other machines reach this API; needed for pools that "
        "name a queue",
    )
    queued_limit_s: float = Field(
        900.0, ge=1, description="How long a job may be out with a router elsewhere before it is published anew"
    )

    @field_validator("public_url")
    @classmethod
    def _can_be_called(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                check_target(value)
            except InvalidMessageError as error:
                raise ValueError(str(error).replace("mediationTarget ", "", 1)) from None
            if "?" in value or "#" in value:
                raise ValueError("should have no query and no fragment: paths of the API are put behind it")
        return value

    @field_validator("secret_key")
    @classmethod
    def _is_a_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            read_secret_keys(value.get_secret_value())
        return value
