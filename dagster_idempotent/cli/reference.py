"""`python -m dagster_idempotent.cli.reference`: the reference page of the command line, made from its help texts."""

import click

from dagster_idempotent.cli.root import main

_HEAD = """\
# Command line

Made from the help texts by `python -m dagster_idempotent.cli.reference > docs/reference/cli.md`; a test compares them.
"""
_WIDTH = 110


def page() -> str:
    """Return the page: the help of every command, in order."""
    root = click.Context(
        main,
        info_name="dagster-idempotent",
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )
    return "\n".join([_HEAD, *_sections(main, root, level=2)])


def _sections(command: click.Command, context: click.Context, *, level: int) -> list[str]:
    sections = [f"{'#' * level} `{context.command_path}`\n", f"```text\n{command.get_help(context)}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                below = click.Context(
                    child, info_name=name, parent=context, terminal_width=_WIDTH, max_content_width=_WIDTH
                )
                sections += _sections(child, below, level=min(level + 1, 4))
    return sections


if __name__ == "__main__":
    click.echo(page(), nl=False)
