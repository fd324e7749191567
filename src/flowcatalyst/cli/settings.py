"""`flowcatalyst settings`: what can be set."""

from flowcatalyst.control.settings import describe_settings


def settings() -> None:
    """Print every setting with its default.

    It is the table of docs/operations.md.
    """
    print("| setting | default | what it is |\n|---|---|---|")
    for setting in describe_settings():
        print(f"| `{setting.name}` | {setting.default} | {setting.description} |")
