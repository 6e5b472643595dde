"""Help texts: one layout for all commands, with each option's environment variable.

The text is made from what the command declares and not by Typer's formatters, whose boxes and
wording change from release to release: `docs/reference/cli.md` holds these texts, and operators
read them in logs and pipes, too.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from typer.core import TyperCommand, TyperGroup

_WIDEST = 100
_MARGIN = 2
_COLUMN = 26
_TOGETHER = "\N{NO-BREAK SPACE}"
"""Between words that stay on one line."""


class Command(TyperCommand):
    """A command with our help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(render(self, ctx.command_path))


class Group(TyperGroup):
    """A command of commands with our help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(render(self, ctx.command_path))


def render(command: Any, path: str, width: int | None = None) -> str:
    """The help of a command.

    Args:
        command: Typer's command or group.
        path: How it is called, such as `mongosaver ttl set`.
        width: Columns; by default the terminal's, at most 100.
    """
    width = min(width or shutil.get_terminal_size().columns, _WIDEST)
    blocks = [_usage(command, path), *_paragraphs(command.help, width)]
    if hasattr(command, "commands"):
        rows = [(name, _short(each)) for name, each in command.commands.items() if not each.hidden]
        blocks.append(_section("Commands", rows, width))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if arguments:
        rows = [(each.metavar, each.help or "") for each in arguments]
        blocks.append(_section("Arguments", rows, width))
    panels: dict[str, list[tuple[str, str]]] = {"Options": []}
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            panel = option.rich_help_panel or "Options"
            panels.setdefault(panel, []).append((_names(option), _about(option)))
    panels["Options"].append(("--help", "Show this text."))
    blocks += [_section(panel, rows, width) for panel, rows in panels.items()]
    blocks += _paragraphs(command.epilog, width)
    return "\n\n".join(blocks) + "\n"


def _usage(command: Any, path: str) -> str:
    words = [path, "[OPTIONS]"]
    if hasattr(command, "commands"):
        words.append("COMMAND ...")
    for each in command.params:
        if each.param_type_name == "argument":
            word = each.metavar + ("..." if each.nargs < 0 else "")
            words.append(word if each.required else f"[{word}]")
    return f"Usage: {' '.join(words)}"


def _paragraphs(text: str | None, width: int) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph:
            lines = paragraph.splitlines()
            # Lines of a list stay lines of their own.
            parts = lines if lines[0].startswith("- ") else [" ".join(lines)]
            yield "\n".join(_wrapped(part, width) for part in parts)


def _wrapped(text: str, width: int) -> str:
    later = "    " if text.startswith("- ") else "  "
    return _fill(text, width, "  ", later)


def _fill(text: str, width: int, first: str, later: str) -> str:
    filled = textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_TOGETHER, " ")


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> str:
    lines = [f"{title}:"]
    for name, text in rows:
        start = " " * _MARGIN + name
        indent = " " * _COLUMN
        if len(start) > _COLUMN - 2:
            lines.append(start)
            start = ""
        lines.append(_fill(text, width, start.ljust(_COLUMN), indent).rstrip())
    return "\n".join(lines)


def _short(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")


def _names(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag or not option.metavar else f"{names} {option.metavar}"


def _about(option: Any) -> str:
    notes = []
    if option.envvar:
        notes.append(f"env: {option.envvar}")
    default = option.default
    if default is not None and not callable(default) and option.show_default:
        if isinstance(option.show_default, str):
            notes.append(f"default: {option.show_default}")
        elif not option.is_flag and default not in ((), []):
            value = default.value if isinstance(default, Enum) else default
            notes.append(f"default: {value}")
    if option.required:
        notes.append("required")
    about = option.help or ""
    told = "; ".join(note.replace(" ", _TOGETHER) for note in notes)
    return f"{about} [{told}]" if notes else about
