"""What the JupyterLab server itself does differently in a shared session; it imports this."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from jupyter_server.auth import User
from jupyter_server.auth.identity import PasswordIdentityProvider
from jupyter_server.services.sessions.sessionmanager import SessionManager
from traitlets import Dict, Unicode

from tpulab.classroom import updates

updates.install()


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


class OneKernel(SessionManager):
    """One kernel for a notebook, also when two partners open it in the same second.

    A browser that sees no kernel for a notebook starts one under a made-up path and then names it
    after the notebook. Two that do so at the same time get one each, and the variables and widgets
    of one partner are missing for the other. So whoever comes second with a notebook's name gets
    the kernel of the first; JupyterLab stops the other kernel and reconnects by itself.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._naming = asyncio.Lock()

    async def update_session(self, session_id: str, **changes: Any) -> None:
        """Change a session; one that is given the path of another one joins its kernel."""
        async with self._naming:
            path = changes.get("path")
            if path is not None and "kernel_id" not in changes:
                for other in await self.list_sessions():
                    if other["path"] == path and other["id"] != session_id and other["kernel"]:
                        changes["kernel_id"] = other["kernel"]["id"]
                        break
            await super().update_session(session_id, **changes)
