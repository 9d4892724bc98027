"""Where a command gets a password: from a prompt, a file or the environment, or it makes one. Never from its words,
which `ps` shows to every user of the machine.

Zone: real. Prompts on standard error.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ottla.cli.options import print_note

F = TypeVar("F", bound=Callable[..., Any])
_FILE_MAX: Final = 1 << 16
_RANDOM_BYTES: Final = 24


def password_options(command: F) -> F:
    """`--password-file`, `--password-env` and `--generate`; `read_password` takes their values."""
    for option in reversed(
        (
            click.option("--password-file", type=click.Path(dir_okay=False), metavar="FILE",
                         help="Read the password from the first line of this file; - is standard input."),
            click.option("--password-env", metavar="NAME", help="Take the password from this environment variable."),
            click.option("--generate", "generated_file", type=click.Path(dir_okay=False), metavar="FILE",
                         help="Make a random password, and write it to this new file, which only you can read."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def read_password(user: str, password_file: str | None, password_env: str | None, generated_file: str | None) -> str:
    """The password of a user; asks for it twice if no option is given. Raises click.UsageError.

    A password that is made is not written yet: `generated_file` is the caller's, when the user exists.
    """
    if sum(each is not None for each in (password_file, password_env, generated_file)) > 1:
        raise click.UsageError("give one of --password-file, --password-env and --generate")
    if generated_file is not None:
        if os.path.lexists(generated_file):
            raise click.UsageError(f"{generated_file} exists, and is not overwritten: name another file")
        return make_password()
    if password_file is not None:
        password, where = _read_first_line(password_file), password_file
    elif password_env is not None:
        password, where = os.environ.get(password_env, ""), f"the environment variable {password_env}"
    else:
        password, where = _ask_twice(user), "the answer"
    if not password:
        raise click.UsageError(f"{where} has no password")
    return password


def make_password() -> str:
    """A random password of letters, digits, - and _: 192 bits."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def _read_first_line(path: str) -> str:
    from ottla.cli.security.secret_files import is_private

    if path == "-":
        content = sys.stdin.buffer.readline(_FILE_MAX)
    else:
        with open(path, "rb") as file:
            content = file.readline(_FILE_MAX)
        if not is_private(path):
            print_note(f"{path} can be read by other users of this machine: chmod 600 {path}")
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # `from None`: the error of Python has the content.
        raise click.UsageError(f"the password in {path} is not text in UTF-8") from None


def _ask_twice(user: str) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask for the password, as stdin is not a terminal: add --password-file, --password-env or --generate"
        )
    password: str = click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    return password
