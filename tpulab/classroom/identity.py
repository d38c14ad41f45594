"""Who is who in a shared session. Imported by the JupyterLab server itself."""

from __future__ import annotations

import hmac
from typing import Any

from jupyter_server.auth import User
from jupyter_server.auth.identity import PasswordIdentityProvider
from traitlets import Dict, Unicode


class Partners(PasswordIdentityProvider):
    """Every partner has a token of their own, and with it a name.

    JupyterLab's single token lets everybody in as "Anonymous" and a moon of some planet, so that
    nobody knows whose cursor is whose.
    """

    partners = Dict(value_trait=Unicode(), key_trait=Unicode(), config=True, help="token → name")

    async def get_user_token(self, handler: Any) -> User | None:
        """The partner whose token a request brings, or whom the server's own token stands for."""
        token = self.get_token(handler) or ""
        for number, (known, name) in enumerate(self.partners.items(), 1):
            if hmac.compare_digest(known.encode(), token.encode()):
                return User(
                    username=f"partner-{number}",
                    name=name,
                    display_name=name,
                    initials=initials(name),
                    color=f"var(--jp-collaborator-color{number})",
                )
        return await super().get_user_token(handler)


def initials(name: str) -> str:
    """At most two letters that stand for a name."""
    words = name.split()
    letters = words[0][0] + words[-1][0] if len(words) > 1 else name[:2]
    return letters.upper()
