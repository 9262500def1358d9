"""A group of commands that suggests the nearest name for a misspelled one."""

from difflib import get_close_matches

import click


class CommandGroup(click.Group):
    """Commands under one name, such as `taskq topics`; the program itself is one, too."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command; the error for a misspelled name suggests the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "Did you mean" in error.message:  # later versions of click suggest by themselves
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error
