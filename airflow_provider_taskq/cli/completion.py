"""completion: what a shell needs to complete verbs, options, topics and states."""

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(taskq completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(taskq completion zsh)" in ~/.zshrc',
    "fish": "taskq completion fish > ~/.config/fish/completions/taskq.fish",
}


@click.command(
    help="Print the completion of a shell for `taskq`.\n\n\b\n"
    + "\n".join(f"{shell}: {how}" for shell, how in _HOW.items())
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints it."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"click {click.__version__} has no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "taskq", "_TASKQ_COMPLETE").source())
