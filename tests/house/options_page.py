"""The page of a server's options, made from the structs that declare them.

python tests/house/options_page.py --write    write docs/reference/server-options.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from parley.cli.settings.options import CommandFlag
from parley.cli.settings.server import FLAGS, server_flags
from parley.host.options import AppKeywords, ServerOptions, options_of
from parley.server.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "server-options.md"

HEAD = """\
# Options of a server

`parley.serve(agent, store=..., limits=[...])` and `parley.asgi` take these as keywords,
`parley serve` as flags, or from the environment. `parley config show` shows the values in force and
their sources. A list in a variable is separated by spaces, limits by semicolons; `1` or `true` sets
a flag.

`parley.serve` and `parley.asgi` read only the variables of egress, signing keys, the secret key,
the publisher and the namespace. The default store of `parley.asgi` is `memory:`. Bindings have
further options, such as [`--envelope-keys`](../guides/envelope/operate.md#identity-and-signatures)
(`PARLEY_ENVELOPE_KEYS`).

This page is made from the code (`parley.host.options.ServerOptions`).
"""

SETTINGS = """\
## `settings`

Some [settings](settings.md) are flags:
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def _row(name: str, flag: CommandFlag | None, default: str, text: str, variable: str) -> str:
    flagged = "" if flag is None else f"`{flag.flag}`"
    named = f"`{variable}`" if variable else ""
    return f"| `{name}` | {_cell(flagged)} | {_cell(named)} | {_cell(default)} | {_cell(text)} |"


def _table(rows: list[str]) -> str:
    head = "| Keyword | Flag | Variable | Default | Meaning |\n|---|---|---|---|---|"
    return "\n".join([head, *rows]) + "\n"


def page() -> str:
    """Return the text of the page."""
    flags = {
        flag.name: flag for struct in (ServerOptions, Settings) for flag in server_flags(struct)
    }
    own, serving = [], []
    for name, option in options_of(ServerOptions).items():
        flag = flags.get(name)
        variable = option.variable or "" if flag is None else flag.variable
        default = option.default if flag is None else flag.default_text
        row = _row(name, flag, default, option.help, variable)
        (own if name in AppKeywords.__annotations__ else serving).append(row)
    settings = [
        _row(name, flags[name], flags[name].default_text, option.help, flags[name].variable)
        for name, option in options_of(Settings).items()
    ]
    others = [
        _row(" ", flag, flag.default_text, flag.option.help, flag.variable)
        for _, flag in FLAGS.values()
        if flag.name not in flags
    ]
    return "\n".join(
        [
            HEAD,
            "## `parley.asgi` and `parley.serve`\n",
            _table(own),
            "## `parley.serve` alone\n",
            _table(serving),
            SETTINGS,
            _table(settings),
            "## Flags of `egress` and `webhook_certificate`\n",
            _table(others).replace("| ` ` |", "| |"),
        ]
    )


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PAGE.write_text(page(), "utf-8")
