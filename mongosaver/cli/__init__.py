"""The command `mongosaver`: what operators do to the collections that savers use.

    pip install 'mongosaver[cli]'
    export MONGOSAVER_URI=mongodb://localhost:27017
    mongosaver threads

Typer and Rich are an extra, so nothing here imports them before it is known that they are there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = frozenset({"rich", "typer"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the entry point `mongosaver`.

    Args:
        arguments: What follows the command's name; by default the process's own.

    Returns:
        The exit code.
    """
    try:
        app = importlib.import_module("mongosaver.cli.app")
    except KeyboardInterrupt:
        sys.stderr.write("mongosaver: interrupted\n")
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(
            f"mongosaver: the command needs {error.name}: pip install 'mongosaver[cli]'\n"
        )
        return 1
    code: int = app.run(sys.argv[1:] if arguments is None else arguments)
    return code
