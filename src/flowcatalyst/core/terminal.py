"""Text for terminals. What a sender, an endpoint or a broker wrote must not steer them."""


def visible(text: str, keep: str = "") -> str:
    r"""The text with its control and other invisible characters written out, as \x1b, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )
