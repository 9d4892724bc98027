"""docs/cli-reference.md, from the click commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import click

from ottla.cli.main import cli
from tools.source import GENERATED

_HEAD: Final = (
    f"{GENERATED}`make reference`; edit the help of the command or option -->\n# Commands\n\n"
    "Every command and option, as `ottla COMMAND --help` shows them. [The command line](cli.md) has examples, the form "
    "of the output and the exit codes.\n"
)


def cli_page() -> str:
    """The page."""
    return _HEAD + "".join(_command_lines(cli, "ottla", frozenset()))


def _command_lines(command: click.Command, path: str, common: frozenset[str]) -> Iterator[str]:
    """A command, its options without those that every command has, and the commands in it."""
    yield f"\n## {path}\n\n{_help_text(command)}\n\n```text\n{_usage(command, path)}\n```\n"
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    own = [each for each in options if each.opts[-1] not in common]
    if own:
        yield "\n| option | meaning |\n|---|---|\n"
        yield from map(_option_row, own)
    if isinstance(command, click.Group):
        shared = common | {each.opts[-1] for each in options}
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command_lines(inner, f"{path} {name}", shared)


def _usage(command: click.Command, path: str) -> str:
    words = [path, "[OPTIONS]"]
    for each in command.params:
        if isinstance(each, click.Argument):
            name = (each.metavar or str(each.name).upper()).strip("[].…")
            many = "…" if each.nargs != 1 else ""
            words.append(f"{name}{many}" if each.required else f"[{name}]{many}")
    if isinstance(command, click.Group):
        words.append("COMMAND …")
    return " ".join(words)


def _help_text(command: click.Command) -> str:
    """The paragraphs of the help, each on one line; indented ones as they are."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    blocks = [block for block in text.split("\n\n") if block.strip()]
    return "\n\n".join(map(_paragraph, blocks))


def _paragraph(block: str) -> str:
    if block.startswith("\b"):
        return "```text\n" + block.removeprefix("\b").strip("\n") + "\n```"
    return _escape(" ".join(block.split()))


def _option_row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = _value_text(option)
    default = f" Default: `{option.default}`." if option.show_default and option.default not in (None, "") else ""
    repeat = " May repeat." if option.multiple else ""
    needed = " Required." if option.required else ""
    text = " ".join((option.help or "").split())
    return f"| {names}{f' {value}' if value else ''} | {_escape(text)}{default}{repeat}{needed} |\n"


def _value_text(option: click.Option) -> str:
    """What the option takes; nothing for a flag."""
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        choices = [str(choice) for choice in option.type.choices]
        return " \\| ".join(f"`{choice}`" for choice in choices) if len(choices) <= 8 else "NAME"
    return _escape(option.metavar or option.type.name.upper().replace(" ", "_").removesuffix("_RANGE"))


def _escape(text: str) -> str:
    """Signs that Markdown would read."""
    for sign in "|*_<":
        text = text.replace(sign, "\\" + sign)
    return text
