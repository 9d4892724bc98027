"""`ottla completion`: the script that makes a shell complete commands and options.

Zone: real. Prints only; the help explains where to put the script.
"""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  eval "$(ottla completion bash)"      in ~/.bashrc
    zsh:   eval "$(ottla completion zsh)"       in ~/.zshrc
    fish:  ottla completion fish > ~/.config/fish/completions/ottla.fish
    """
    root = click.get_current_context().find_root()
    complete = _SHELLS[shell](root.command, {}, "ottla", "_OTTLA_COMPLETE")
    # Not `source()`: for bash it starts a shell to check its version, but the script may be used on another machine.
    click.echo(complete.source_template % complete.source_vars())
