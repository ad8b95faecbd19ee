"""Commands and groups whose examples keep their lines in the help."""

import re
from typing import Any

import click

_EXAMPLES = re.compile(r"^( *)(Examples?:)$", re.MULTILINE)


class Verb(click.Command):
    """A command; the paragraph under `Example:` in its docstring is printed as it stands."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - whatever click takes
        super().__init__(*arguments, **options)
        # click leaves a paragraph alone that starts with this mark.
        self.help = None if self.help is None else _EXAMPLES.sub("\\1\b\n\\1\\2", self.help)


class Noun(click.Group):
    """A group of verbs."""

    command_class = Verb
