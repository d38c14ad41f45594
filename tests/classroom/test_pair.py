"""A session for several people: names, addresses, one kernel, turns. No browser; see tests/labs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpulab.bootstrap import _extras
from tpulab.classroom import jupyter_settings, lab, pair, roles, together, updates
from tpulab.classroom.jupyter_settings import Partner, server_environment, server_options
from tpulab.classroom.pair import open_pair, tunnel
from tpulab.classroom.roles import Turns, turns
from tpulab.classroom.server import LabError, Running
from tpulab.errors import UsageError

ADA, GRACE = Partner("Ada", "a" * 48), Partner("Grace", "b" * 48)
BROWSER_HALVES = {
    "@jupyter/collaboration-extension",
    "@jupyter/docprovider-extension",
    "@datalayer/jupyter-server-nbmodel",
}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["Ada"], "2 to 7 people"),
        ([str(number) for number in range(8)], "2 to 7 people"),
        (["Ada", " Ada "], "same name"),
        (["Ada", ""], "cursor"),
        (["Ada", "Gr\nace"], "cursor"),
        (["Ada", "G" * 31], "cursor"),
    ],
)
def test_names_that_cannot_be_told_apart_start_nothing(
    names: list[str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        open_pair(tmp_path / "work", names=names)
    assert not (tmp_path / "work").exists()


def test_without_its_packages_it_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pair, "find_spec", lambda module: None)
    with pytest.raises(
        LabError, match="jupyter-collaboration and jupyter-server-nbmodel"
    ) as raised:
        open_pair(tmp_path / "work")
    assert "python3 -m tpulab pair" in str(raised.value)
    assert "tpulab[pair]" in str(raised.value)
    assert not (tmp_path / "work").exists()


def test_the_bootstrap_installs_them_for_this_verb_only() -> None:
    assert _extras("pair") == ("pair",)
    assert _extras("lab") == ()


def test_a_remote_partner_forwards_a_port_and_nothing_else() -> None:
    words = tunnel(8890).split()
    assert words[:4] == ["ssh", "-N", "-L", "8890:127.0.0.1:8890"]
    user, _, host = words[4].partition("@")
    assert user
    assert host
    assert len(words) == 5


def page_config(runtime: Path) -> dict[str, Any]:
    return json.loads((runtime / "config/labconfig/page_config.json").read_text())


def test_alone_nothing_of_it_runs(tmp_path: Path) -> None:
    server_environment(tmp_path / "state", tmp_path)
    disabled = page_config(tmp_path)["disabledExtensions"]
    assert disabled.keys() >= BROWSER_HALVES
    options = server_options(tmp_path, tmp_path, 8888, together=False)
    (extensions,) = [o for o in options if "jpserver_extensions" in o]
    for name in ("jupyter_server_ydoc", "jupyter_server_nbmodel", "jupyter_server_fileid"):
        assert f"'{name}': False" in extensions
    assert not [o for o in options if "YDoc" in o or "together" in o]


def test_together_every_store_lies_outside_the_served_folder(tmp_path: Path) -> None:
    work, runtime = tmp_path / "work", tmp_path / "runtime"
    runtime.mkdir()
    environment = server_environment(tmp_path / "state", runtime, (ADA, GRACE))
    assert not page_config(runtime)["disabledExtensions"].keys() & BROWSER_HALVES
    assert json.loads(environment[jupyter_settings.PARTNERS_VARIABLE]) == ["Ada", "Grace"]
    options = server_options(work, runtime, 8888, together=True)
    stores = [o.partition("=")[2] for o in options if "db_path" in o or "store_path" in o]
    assert len(stores) == 3
    assert all(Path(store).is_relative_to(runtime) for store in stores)
    assert "--YDocExtension.server_side_execution=True" in options
    assert "--ServerApp.ip=127.0.0.1" in options
    assert "--ServerApp.port_retries=0" in options
    # whoever lists the processes of this machine sees no token
    assert not [o for o in options if ADA.token in o or GRACE.token in o]
    assert ADA.token not in repr(ADA)


def test_two_servers_do_not_change_each_others_settings(tmp_path: Path) -> None:
    for name, partners in (("pair", (ADA, GRACE)), ("lab", ())):
        (tmp_path / name).mkdir()
        server_environment(tmp_path / "state", tmp_path / name, partners)
    assert not page_config(tmp_path / "pair")["disabledExtensions"].keys() & BROWSER_HALVES
    assert page_config(tmp_path / "lab")["disabledExtensions"].keys() >= BROWSER_HALVES


def test_a_second_server_on_the_folder_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Started(Exception):
        pass

    def start(*_: object) -> None:
        raise Started

    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    others = [
        Running("http://127.0.0.1:8888/", "t", 11, tmp_path),  # serves work with all around it
        Running("http://127.0.0.1:8889/", "t", 12, elsewhere),
    ]
    monkeypatch.setattr(lab, "running_servers", lambda: others)
    monkeypatch.setattr(lab, "server_environment", start)
    said: list[str] = []
    with pytest.raises(Started):
        open_pair(work, say=said.append)
    warnings = [line for line in said if line.startswith("careful")]
    assert len(warnings) == 1
    assert "http://127.0.0.1:8888/ (process 11)" in warnings[0]


def test_a_token_is_a_name() -> None:
    provider = together.Partners(partners={ADA.token: "Ada", GRACE.token: "Grace Hopper"})

    def who(token: str) -> Any:
        handler = SimpleNamespace(
            get_argument=lambda name, default="": token,
            request=SimpleNamespace(headers={}, remote_ip="127.0.0.1"),
            token="c" * 48,
        )
        return asyncio.run(provider.get_user_token(handler))

    ada, grace = who(ADA.token), who(GRACE.token)
    assert (ada.display_name, ada.initials) == ("Ada", "AD")
    assert (grace.display_name, grace.initials) == ("Grace Hopper", "GH")
    assert ada.username != grace.username
    assert ada.color != grace.color
    assert who("d" * 48) is None
    assert who("") is None


def test_whoever_names_a_kernel_second_joins_the_first() -> None:

    from jupyter_server.services.contents.manager import ContentsManager
    from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

    class Kernels(MappingKernelManager):
        """Kernels that cost nothing and take their time to start."""

        def kernel_model(self, kernel_id: str) -> dict[str, str]:
            return {"id": kernel_id}

        def update_env(self, **_: object) -> None:
            pass

        async def start_kernel(self, **_: object) -> str:
            await asyncio.sleep(0)
            self._kernels[f"kernel-{len(self._kernels)}"] = object()
            return list(self._kernels)[-1]

    async def open_at_once() -> list[dict[str, Any]]:
        contents = ContentsManager()
        manager = together.OneKernel(kernel_manager=Kernels(), contents_manager=contents)

        async def browser(made_up: str, path: str) -> dict[str, Any]:
            session = await manager.create_session(path=made_up, kernel_name="python3")
            await manager.update_session(session["id"], path=path)
            return await manager.get_session(session_id=session["id"])

        return await asyncio.gather(
            browser("made-up-1", "10.ipynb"),
            browser("made-up-2", "10.ipynb"),
            browser("made-up-3", "20.ipynb"),
        )

    first, second, other = asyncio.run(open_at_once())
    assert first["kernel"]["id"] == second["kernel"]["id"]
    assert other["kernel"]["id"] != first["kernel"]["id"]


# displays that are updated in place -----------------------------------------------------------


def message(kind: str, text: str, display_id: str | None) -> dict[str, Any]:
    content: dict[str, Any] = {"data": {"text/plain": text}, "metadata": {}}
    if display_id is not None:
        content["transient"] = {"display_id": display_id}
    return {"header": {"msg_type": kind}, "content": content}


def test_a_display_is_replaced_where_it_stands() -> None:
    def hook(outputs: list[Any], cell: Any, state: object, message: dict[str, Any]) -> None:
        # as the server's own does: updates are dropped
        if message["header"]["msg_type"] != "update_display_data":
            output = {"output_type": "display_data", "data": message["content"]["data"]}
            cell["outputs"].append(output)

    hook_with_updates = updates.with_updates(hook)
    cell: dict[str, list[Any]] = {"outputs": []}

    def send(*words: Any) -> list[str]:
        hook_with_updates([], cell, object(), message(*words))
        return [output["data"]["text/plain"] for output in cell["outputs"]]

    send("display_data", "first", "one")
    send("display_data", "between", None)
    send("display_data", "third", "two")
    assert send("update_display_data", "1st", "one") == ["1st", "between", "third"]
    assert send("update_display_data", "3rd", "two") == ["1st", "between", "3rd"]
    assert send("update_display_data", "1.", "one") == ["1.", "between", "3rd"]
    assert send("update_display_data", "who?", "nobody") == ["1.", "between", "3rd"]
    # the cell runs again: what stands there now is not what the old handle showed
    cell["outputs"].clear()
    send("display_data", "anew", None)
    assert send("update_display_data", "late", "one") == ["anew"]
    assert send("update_display_data", "late", "two") == ["anew"]


def test_the_servers_hook_is_the_one_that_is_extended() -> None:
    actions = pytest.importorskip("jupyter_server_nbmodel.actions")
    assert hasattr(actions._output_hook, "places")
    extended = actions._output_hook
    updates.install()
    assert actions._output_hook is extended


# turns -------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved by hand; and no turns from an earlier test."""
    now = [1_000_000.0]
    monkeypatch.setattr(roles.time, "time", lambda: now[0])
    monkeypatch.setattr(roles, "_turns", None)
    return now


def test_the_next_one_drives_with_a_whole_turn(clock: list[float]) -> None:
    taken = Turns(["Ada", "Grace", "Edsger"], 10)
    clock[0] += 240
    assert repr(taken) == "Ada drives, Grace and Edsger navigate; 6 of 10 minutes left"
    taken.hand_over()
    assert repr(taken) == "Grace drives, Ada and Edsger navigate; 10 of 10 minutes left"
    taken.hand_over()
    taken.hand_over()
    assert taken.names[taken.driver] == "Ada"
    clock[0] += 3600
    assert "0 of 10 minutes left" in repr(taken)


def test_two_presses_in_the_same_moment_are_one(clock: list[float]) -> None:
    taken = Turns(["Ada", "Grace"], 10)
    for _ in range(2):
        taken._handle_custom_msg({"hand_over_from": 0}, [])
    assert taken.driver == 1
    taken._handle_custom_msg({"hand_over_from": 1}, [])
    assert taken.driver == 0


def test_a_notebook_has_one_set_of_turns(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jupyter_settings.PARTNERS_VARIABLE, json.dumps(["Ada", "Grace"]))
    taken = turns()
    assert taken.names == ["Ada", "Grace"]
    taken.hand_over()
    assert turns() is taken
    assert turns(minutes=5) is taken
    assert (taken.driver, taken.minutes, taken.until) == (1, 5, clock[0] + 300)
    assert turns("Barbara", "Liskov") is not taken
    monkeypatch.setattr(roles, "_turns", None)
    for nonsense in ("", "[]", "no json", '["Ada"]', "3"):
        monkeypatch.setenv(jupyter_settings.PARTNERS_VARIABLE, nonsense)
        assert tuple(turns().names) == pair.NAMES
    with pytest.raises(UsageError, match="nobody to hand over"):
        turns("Ada")
    for minutes in (0, -1, 1e9, float("nan")):
        with pytest.raises(UsageError, match="minutes"):
            turns(minutes=minutes)


def test_whoever_sees_no_widgets_reads_the_roles(clock: list[float]) -> None:
    bundle = Turns(["<Ada>", "Grace"], 10)._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"].startswith("<Ada> drives, Grace navigates")
    assert "&lt;Ada&gt; drives" in data["text/html"]
