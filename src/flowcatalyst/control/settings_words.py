"""What is wrong with a setting, in a sentence. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic_core import ErrorDetails

from flowcatalyst.control import environment

_OF_NUMBERS_AND_CHOICES: Final = ("int_", "float_", "bool_", "literal_", "enum", "greater_", "less_", "finite_")
_BEGINNING: Final = re.compile("Value error, |Input |String |List |Set ")
_WORDS: Final = {
    "extra_forbidden": "is not a setting",
    "missing": "is missing",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "string_type": "should be text",
    "path_type": "should be the path of a file",
    "list_type": "should be a list",
    "set_type": "should be a list",
    "model_type": "should be a table of settings",
    "model_attributes_type": "should be a table of settings",
}


def in_words(
    one: ErrorDetails, names: Sequence[str], variables: Collection[str], written: Mapping[str, Any] | None = None
) -> str:
    """What is wrong with a setting; `written` is the settings file, where entries of lists have names.

    A value is repeated only where none can be a secret: of numbers and choices, but for those of auth, where keys end
    up in the wrong line.
    """
    name = ".".join(str(part) for part in one["loc"]) or "settings"
    said = _WORDS.get(one["type"]) or _BEGINNING.sub("", one["msg"])
    if one["type"] == "extra_forbidden":
        tables = {section.removesuffix("[]") for section in environment.sections_of(names)}
        meant = re.sub(r"\.\d+\.", "[].", name)
        known = [one for one in names if ("[]" in one) <= ("[]" in meant)]  # whoever writes no list means none
        said += environment.did_you_mean(meant, [*known, *tables])
    if one["type"].startswith(_OF_NUMBERS_AND_CHOICES) and one["loc"][0] != "auth":
        said += f", not {str(one['input'])[:60]!r}"
    said += _of_entry(one["loc"], written or {})
    parts = [str(part) for part in one["loc"]]
    of_parts = [environment.variable_of(".".join(parts[:length])) for length in range(len(parts), 0, -1)]
    variable = next((variable for variable in of_parts if variable in variables), None)
    return f"{name} {said}" if variable is None else f"{name} {said} (variable {variable})"


def _of_entry(place: Sequence[int | str], written: Mapping[str, Any]) -> str:
    """Whose setting it is, if it belongs to an entry of a list that has a name: who counts them begins with 1."""
    match place:
        case [str(section), int(number), _, *_]:
            entries = written.get(section)
            entry = entries[number] if isinstance(entries, list) and number < len(entries) else None
            name = (entry.get("code") or entry.get("name")) if isinstance(entry, dict) else None
            return f" ({section.removesuffix('s')} {name[:60]!r})" if isinstance(name, str) else ""
    return ""
