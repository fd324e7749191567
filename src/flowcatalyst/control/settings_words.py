"""What is wrong with a setting, in a sentence. Pure."""

import re
from collections.abc import Collection, Sequence
from typing import Final

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


def in_words(one: ErrorDetails, names: Sequence[str], variables: Collection[str]) -> str:
    """What is wrong with a setting. A value is repeated only where none can be a secret: of numbers and choices, but
    for those of auth, where keys end up in the wrong line."""
    name = ".".join(str(part) for part in one["loc"]) or "settings"
    said = _WORDS.get(one["type"]) or _BEGINNING.sub("", one["msg"])
    if one["type"] == "extra_forbidden":
        tables = {section.removesuffix("[]") for section in environment.sections_of(names)}
        meant = re.sub(r"\.\d+\.", "[].", name)
        known = [one for one in names if ("[]" in one) <= ("[]" in meant)]  # whoever writes no list means none
        said += environment.did_you_mean(meant, [*known, *tables])
    if one["type"].startswith(_OF_NUMBERS_AND_CHOICES) and one["loc"][0] != "auth":
        said += f", not {str(one['input'])[:60]!r}"
    parts = [str(part) for part in one["loc"]]
    of_parts = [environment.variable_of(".".join(parts[:length])) for length in range(len(parts), 0, -1)]
    variable = next((variable for variable in of_parts if variable in variables), None)
    return f"{name} {said}" if variable is None else f"{name} {said} (variable {variable})"
