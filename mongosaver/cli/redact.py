"""Nothing secret is ever printed: what to hide is known from the connection string beforehand.

Messages come from many places (PyMongo, the server, Typer's own complaints about arguments), so
they are not checked one by one: whatever goes to a terminal passes through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote, unquote_plus

HIDDEN: Final = "***"

_LOGIN: Final = re.compile(r"(mongodb(?:\+srv)?://[^\s:@/]*):[^\s]*@")
_OPTIONS: Final = re.compile(
    r"((?:tlsCertificateKeyFilePassword|authMechanismProperties|proxyPassword)=)[^&\s\"']+",
    re.IGNORECASE,
)
_VARIABLES: Final = ("MONGOSAVER_URI", "LANGGRAPH_AES_KEY")
_SHORT: Final = 4


class Redactor:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide this text from now on, as it is and as it is decoded."""
        self._secrets |= {secret, unquote(secret), unquote_plus(secret)} - {""}

    def add_uri(self, uri: str) -> None:
        """Hide what is secret in a connection string, also in one that is none."""
        rest = uri.partition("://")[2]
        login, at, _ = rest.rpartition("@")
        if at:
            self.add(login.partition(":")[2])
        for option in _OPTIONS.finditer(uri):
            self.add(option[0].partition("=")[2])

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        text = _OPTIONS.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1:{HIDDEN}@", text))
        # The longest first: one may be part of another.
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) < _SHORT:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
            else:
                text = text.replace(secret, HIDDEN)
        return text


def for_process(arguments: Iterable[str], environment: Mapping[str, str]) -> Redactor:
    """What a process was given: on its command line, where anything may be a connection string."""
    redactor = Redactor()
    for each in (*arguments, environment.get(_VARIABLES[0], "")):
        if "://" in each:
            redactor.add_uri(each)
    redactor.add(environment.get(_VARIABLES[1], ""))
    return redactor
